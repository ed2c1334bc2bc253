"""llama.cpp, and everything that has to know it is llama.cpp."""
