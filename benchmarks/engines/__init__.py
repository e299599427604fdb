"""Everybody on the same prompts and weights: this engine and its controllers against what people use now."""
