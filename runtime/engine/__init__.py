"""A model that can forward, roll back, and say what it costs."""
