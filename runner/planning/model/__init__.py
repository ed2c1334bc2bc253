"""What a model is to a planner: its layers and its bytes, from a GGUF header or from ``conf/model``."""
