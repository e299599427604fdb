"""Importing large libraries without searching them for garbage.

torch and transformers make 600,000 objects when they are imported. Python looks through all of them for garbage again
and again while their number grows, which takes a quarter of the time, and finds none. Later every full search, in the
middle of an answer, takes a third of a second for them.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def importing() -> Iterator[None]:
    """Import within. What is there at the end stays for as long as the process, and is searched no more."""
    searched, known = gc.isenabled(), len(sys.modules)
    gc.disable()
    try:
        yield
    finally:
        if len(sys.modules) > known:
            gc.freeze()
        if searched:
            gc.enable()
