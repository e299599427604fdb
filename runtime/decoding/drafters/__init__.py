"""Those who guess: a small model, or a look-up of what was said before."""
