"""Checkpoints: all that training goes on from, in one file without pickle."""
