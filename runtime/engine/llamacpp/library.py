"""llama.cpp as ``llama-cpp-python`` brings it: imported when it is first needed, and silent.

What it would print is kept instead: its last warnings and errors become part of our own messages.
"""

from __future__ import annotations

import importlib
import importlib.util
import logging
from collections import deque
from functools import cache
from importlib.metadata import version
from typing import Any

from runtime.errors import UserError

LOGGER = logging.getLogger(__name__)

MODULE, DISTRIBUTION = "llama_cpp", "llama-cpp-python"
INSTALL = "pip install 'specpilot[llamacpp]'"
WARNING, ERROR = 3, 4
"""llama.cpp's levels (ggml_log_level). Its warnings are mostly about things that work."""
KEPT = 4
"""Lines of warnings and errors that are remembered."""

_last_lines: deque[str] = deque(maxlen=KEPT)


def is_installed() -> bool:
    """Whether ``llama-cpp-python`` is there, without importing it."""
    return importlib.util.find_spec(MODULE) is not None


def library_version() -> str:
    """The version of ``llama-cpp-python``; it stands for the llama.cpp it was built with."""
    return version(DISTRIBUTION)


@cache
def library() -> Any:
    """The module of low-level calls, its backend started.

    Raises:
        UserError: If it is not installed, or its shared library cannot be loaded.
    """
    try:
        module = importlib.import_module(MODULE)
    except ModuleNotFoundError as missing:
        raise UserError(
            f"the llama.cpp engine needs the package '{missing.name}', which is not installed: {INSTALL}"
        ) from None
    except (OSError, RuntimeError) as error:
        raise UserError(f"{DISTRIBUTION} cannot be loaded ({error}): install it again with {INSTALL}") from error
    module.llama_log_set(_log_callback(module), None)
    module.llama_backend_init()
    return module


def last_complaint() -> str:
    """The last thing llama.cpp warned about or called an error, for a message; empty if there was nothing."""
    return "; ".join(_last_lines)


def forget_complaints() -> None:
    """Before a step whose failure is to be explained."""
    _last_lines.clear()


@cache
def _log_callback(module: Any) -> Any:
    """Kept for as long as the process lives: llama.cpp holds a bare pointer to it."""

    def log(level: int, text: bytes, _: Any) -> None:
        line = text.decode("utf-8", "replace").strip()
        if not line:
            return
        serious = level in (WARNING, ERROR)
        if serious:
            _last_lines.append(line)
        LOGGER.log(logging.INFO if serious else logging.DEBUG, "%s", line)

    return module.llama_log_callback(log)
