"""The random generators that training draws from, besides those of the environments."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch


def random_state() -> dict[str, Any]:
    """State of Python's, NumPy's and PyTorch's generators (CPU), as a tree."""
    return {
        "python": random.getstate(),
        "numpy": np.random.get_state(),  # noqa: NPY002 - stable-baselines3 shuffles with this one
        "torch": torch.get_rng_state(),
    }


def restore_random(state: Mapping[str, Any]) -> None:
    """Put the generators back to a state."""
    random.setstate(state["python"])
    np.random.set_state(state["numpy"])  # noqa: NPY002 - see above
    torch.set_rng_state(state["torch"])


@contextmanager
def untouched_random() -> Iterator[None]:
    """Whatever is drawn inside, training draws on as if it had not been."""
    state = random_state()
    try:
        yield
    finally:
        restore_random(state)
