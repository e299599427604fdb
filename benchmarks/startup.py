"""How long the server takes to start: until it can be called, and until the first token has come over HTTP.

    python -m benchmarks.startup --bundle DIR [--times 5] [--out FILE]

Cold: once, with the files of bundle, target and libraries dropped from the system's cache, as far as other programs let
go of them. Warm: so many times, medians. By parts: what importing, reading the bundle and opening the target take, in a
process of their own.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterable, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.serving import Serving, serving
from runtime.bundle import library_versions, read_bundle
from runtime.device import device_name
from runtime.engine.sources import resolve_first
from runtime.errors import UserError
from runtime.files import write_json

SCHEMA = 1
LIBRARIES = ("torch", "transformers", "tokenizers", "onnxruntime", "numpy")

PARTS = """
import json, sys, time
began = time.perf_counter()
def part(name):
    global began
    found[name] = time.perf_counter() - began
    began = time.perf_counter()
found = {}
from runtime.importing import importing
with importing():
    import runtime.server.listening, runtime.cli.serve
part("importing")
from pathlib import Path
from runtime.bundle import read_bundle
bundle = read_bundle(Path(sys.argv[1]))
bundle.zoo.verify_files()
part("bundle")
bundle.controller()
part("policy")
from runtime.live import open_models
open_models(bundle.zoo)
part("target")
print(json.dumps(found))
"""


class Start(NamedTuple):
    """One start, seconds."""

    listening_s: float
    first_token_s: float


def start(bundle: Path, options: Sequence[str], log: Path) -> Start:
    """Start the server and ask for one token."""
    began_s = time.perf_counter()
    with serving(bundle, options, log) as server:
        ask_for_one_token(server)
        return Start(server.listening_s, time.perf_counter() - began_s)


def ask_for_one_token(server: Serving) -> None:
    """A chat whose answer has one token."""
    body = {"model": server.model, "max_tokens": 1, "messages": [{"role": "user", "content": "Name a river."}]}
    request = urllib.request.Request(
        f"{server.url}/v1/chat/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request, timeout=300) as answer:
        answer.read()


def parts_of(bundle: Path) -> dict[str, float]:
    """Seconds of the parts of a start, by name."""
    done = subprocess.run([sys.executable, "-c", PARTS, str(bundle)], capture_output=True, text=True, check=False)
    if done.returncode:
        raise UserError(f"the parts could not be measured: {done.stderr.strip().splitlines()[-1]}")
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def drop_from_cache(folders: Iterable[Path]) -> None:
    """Ask the system to forget what it has cached of all files below; what others have mapped stays."""
    for folder in folders:
        for path in folder.rglob("*"):
            if path.is_file():
                with path.open("rb") as file:
                    os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def files_of(bundle: Path) -> list[Path]:
    """Folders that a start reads."""
    target = resolve_first(read_bundle(bundle).zoo.target.sources)
    specs = [find_spec(name) for name in LIBRARIES]
    return [bundle, target, *(Path(spec.origin).parent for spec in specs if spec is not None and spec.origin)]


def run(bundle: Path, times: int, options: Sequence[str], log: Path) -> dict[str, Any]:
    """Measure."""
    drop_from_cache(files_of(bundle))
    cold = start(bundle, options, log)
    warm = [start(bundle, options, log) for _ in range(times)]
    medians = Start(*(statistics.median(column) for column in zip(*warm, strict=True)))
    return {
        "schema": SCHEMA,
        "device": device_name(),
        "versions": library_versions("torch", "transformers"),
        "cold": cold._asdict(),
        "warm": {"times": times, "median": medians._asdict(), "all": [one._asdict() for one in warm]},
        "parts_s": parts_of(bundle),
    }


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.startup", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)  # fmt: skip
    add = parser.add_argument
    add("--bundle", type=Path, default=Path("outputs/latest/bundle"), help="folder of the bundle")
    add("--times", type=int, default=5, help="warm starts (default: 5)")
    add("--serve", action="append", default=[], metavar="OPTION", help="option of specpilot serve: --serve=--threads=1")
    add("--log", type=Path, default=Path("outputs/startup-server.log"), help="where the server's messages go")
    add("--out", type=Path, default=Path("outputs/startup.json"), help="report to write")
    options = parser.parse_args(arguments)
    try:
        report = run(options.bundle, options.times, options.serve, options.log)
    except UserError as error:
        print(f"benchmarks.startup: {error}", file=sys.stderr)
        return 2
    write_json(options.out, report)
    for name, found in (("cold", report["cold"]), (f"warm, median of {options.times}", report["warm"]["median"])):
        print(f"{name}: listening after {found['listening_s']:.2f} s, first token after {found['first_token_s']:.2f} s")
    print("parts: " + ", ".join(f"{name} {seconds:.2f} s" for name, seconds in report["parts_s"].items()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
