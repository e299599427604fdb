"""What ships to the device: engines, decoding, memory, control. Imports nothing of training."""

from __future__ import annotations

__version__ = "0.1.0"
