"""Replay: traces and a profile on a virtual clock, behind the same contracts as the real models."""
