"""Is the committed text the target's own, token for token? ``python -m benchmarks.exactness``."""
