"""Kernels in C, compiled once on the machine that runs them; without a compiler there are none, and torch's are used.

The sources are files of this package. The library is kept in the cache folder by the hash of sources, compiler and
processor, so compiling is paid once. What uses a kernel compares it with torch first, see ``install.py``.

``SPECPILOT_KERNELS=0`` turns this off.
"""

from __future__ import annotations

import ctypes
import hashlib
import logging
import os
import shutil
import subprocess
import threading
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

from runtime.engine.sources import cache_folder
from runtime.files import written_whole

LOGGER = logging.getLogger(__name__)

SOURCES = tuple(
    Path(__file__).with_name(name) for name in ("floats.c", "integers.c", "kernels.c", "layer.c", "decisions.c")
)
HEADER = Path(__file__).with_name("kernels.h")
VARIABLE = "SPECPILOT_KERNELS"
FLAGS = ("-O3", "-march=native", "-ffp-contract=fast", "-fno-math-errno", "-fno-trapping-math", "-fopenmp", "-fPIC",
         "-shared")  # fmt: skip
LIBRARIES = ("-lm",)  # behind the sources: a linker may leave out what nothing before it asks for
COMPILERS = ("cc", "gcc", "clang")
COMPILE_S = 120.0
"""A compiler that takes longer is given up."""

_ONE_AT_A_TIME = threading.Lock()
"""The loader's thread may ask while the decoder's does; both would compile into one file."""

_POINTER, _LONG, _INT = ctypes.c_void_p, ctypes.c_long, ctypes.c_int
_ARGUMENTS = {
    "multiply": (_INT, _POINTER, _LONG, _LONG, _POINTER, _POINTER, _POINTER, _LONG, _INT),
    "multiply_integers": (_INT, _POINTER, _LONG, _LONG, _POINTER, _POINTER, _POINTER, _LONG, _INT),
    "normalise": (_POINTER, _POINTER, _POINTER, _LONG, _LONG, ctypes.c_float, _INT),
    "gate": (_POINTER, _POINTER, _LONG, _LONG, _INT),
    "lead": (_POINTER, _LONG, _LONG, _POINTER, _POINTER),
    "share": (_POINTER, _LONG, _LONG, _POINTER, _POINTER),
    "attend": (*[_POINTER] * 6, *[_LONG] * 6, ctypes.c_float, _INT),
    "decode_layer": (*[_POINTER] * 7, *[_LONG] * 3, _INT),
    "decode_layers": (_POINTER, _LONG, *[_POINTER] * 6, _LONG, _LONG, _POINTER, _INT),
    "has_integers": (),
}
_RESULTS = dict.fromkeys(("multiply", "multiply_integers", "decode_layer", "decode_layers", "has_integers"), _INT)
"""Of functions that return something."""


@cache
def kernels() -> Any:
    """The library, its functions typed; None where it cannot be had."""
    if os.environ.get(VARIABLE) == "0":
        return None
    try:
        with _ONE_AT_A_TIME:
            return _kept_or_compiled()
    except (OSError, subprocess.SubprocessError, AttributeError) as error:
        LOGGER.info("no compiled kernels (%s): torch's are used", error)
        return None


def _kept_or_compiled() -> Any:
    compiler = _compiler()
    path = cache_folder() / "kernels" / f"{_key(compiler)}.so"
    if path.exists():
        with suppress(OSError):  # damaged, say by a full disk or a power cut: it is made again
            return _open(path)
    _compile(compiler, path)
    return _open(path)


def _compiler() -> str:
    named = [os.environ["CC"]] if os.environ.get("CC") else []
    for name in (*named, *COMPILERS):
        if found := shutil.which(name):
            return found
    raise FileNotFoundError(f"no C compiler: none of {', '.join((*named, *COMPILERS))} is there")


def _key(compiler: str) -> str:
    """Of what the library depends on: the source, the flags, the compiler, the processor."""
    version = subprocess.run([compiler, "--version"], capture_output=True, timeout=COMPILE_S, check=True).stdout
    options = " ".join((*FLAGS, *LIBRARIES)).encode()
    parts = (*(source.read_bytes() for source in (*SOURCES, HEADER)), options, version, _processor())
    return hashlib.sha256(b"\0".join(parts)).hexdigest()[:16]


def _processor() -> bytes:
    """What the processor can do, where the system tells."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return b""
    return "\n".join(sorted({line for line in lines if line.startswith(("flags", "Features", "model name"))})).encode()


def _compile(compiler: str, path: Path) -> None:
    with written_whole(path) as aside:
        command = [compiler, *FLAGS, *map(str, SOURCES), *LIBRARIES, "-o", str(aside)]
        done = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=COMPILE_S, check=False)
        if done.returncode:
            raise OSError(f"{compiler} failed: {(done.stderr.strip().splitlines() or ['no message'])[-1]}")


def _open(path: Path) -> Any:
    import torch  # noqa: F401 - its OpenMP library is loaded first, and shared

    library = ctypes.CDLL(str(path))
    for name, arguments in _ARGUMENTS.items():
        function = getattr(library, name)
        function.argtypes, function.restype = arguments, _RESULTS.get(name)
    return library
