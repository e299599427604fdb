"""What ships to the device: engines, decoding, memory, control. Imports nothing of training."""

from __future__ import annotations

import os

# oneDNN keeps the code it made for every shape, 1,024 of them; every new prompt length makes four. What decoding uses
# over and over is about 100 shapes. Read by oneDNN at its first product, so a value of the user's own counts.
os.environ.setdefault("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "128")

__version__ = "0.1.0"
