"""The engine that runs GGUF files through llama.cpp, by the low-level calls of ``llama-cpp-python``."""
