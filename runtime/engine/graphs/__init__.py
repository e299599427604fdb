"""Forwards that a CUDA device repeats by itself: fixed buffers, and the kernels of a whole forward recorded once."""
