"""Propose, verify, commit."""
