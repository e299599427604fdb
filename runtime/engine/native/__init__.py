"""Compiled kernels for narrow forwards on CPU, and the modules that call them."""
