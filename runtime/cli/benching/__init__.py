"""Measuring a bundle on this device: prompts, timed answers, ratios with intervals, and how they are told."""
