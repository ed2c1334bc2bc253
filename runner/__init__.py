"""kvswarm: a declarative runner for swarms of local LLM workers."""

__version__ = "0.1.0"
