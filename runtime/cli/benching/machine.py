"""What a measurement was made on."""

from __future__ import annotations

import os
import platform
import sys
from typing import Any

from runtime.device import device_name


def machine_facts(device: str, threads: int, dtype: str) -> dict[str, Any]:
    """Processor, accelerator, memory, system and settings of a run, as JSON. Sizes in bytes.

    Args:
        device: Torch device of the models.
        threads: CPU threads.
        dtype: What the target runs in.
    """
    import torch  # here, because the import takes seconds

    on_gpu = torch.device(device).type == "cuda"
    return {
        "processor": device_name(),
        "cores": os.cpu_count(),
        "accelerator": torch.cuda.get_device_name(device) if on_gpu else None,
        "memory_bytes": _memory_bytes(),
        "system": platform.platform(),
        "device": device,
        "threads": threads,
        "dtype": dtype,
    }


def peak_rss_bytes() -> int | None:
    """Most memory this process has held so far; None where the system does not say."""
    try:
        import resource
    except ImportError:  # Windows
        return None
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def _memory_bytes() -> int | None:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        return None
