"""Forward times by width, with each step of the torch engine on CPU added, interleaved: ``make bench``.

plain        layers as transformers has them, our cache
packed       weights reordered for narrow batches
kernels      and compiled kernels between the products
compressed   and weights in as few bits as hold them exactly: what ``specpilot`` runs
int8         and what they multiply in 8 bit: ``specpilot --dtype int8``; its text is its own

With ``--device cuda``: ``eager``, and ``graphs``: narrow forwards recorded as CUDA graphs, what ``specpilot`` runs.

Asserts that all write the same greedy text, prints medians and ratios, writes ``outputs/bench.json``.
"""

from __future__ import annotations

import argparse
import sys
import time
from functools import partial
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM

from runtime.bundle import library_versions
from runtime.core import Request
from runtime.decoding.live import LiveDecoder
from runtime.device import device_name
from runtime.engine.native.library import kernels
from runtime.engine.sources import resolve_first
from runtime.engine.transformers_model import TransformersModel
from runtime.errors import UserError
from runtime.files import write_json
from runtime.threads import usable_threads
from runtime.timing import timed
from runtime.zoo import Zoo

WIDTHS = (1, 2, 3, 5, 9, 17, 65)
ROUNDS = 15
TEXT_TOKENS = 32
CLOCKS = {"wall": time.perf_counter, "cpu": time.process_time}
INT8 = "int8"
STEPS: dict[str, dict[str, bool]] = {
    "plain": {"pack": False, "native": False},
    "packed": {"native": False},
    "kernels": {"compress": False},
    "compressed": {},
    INT8: {"int8": True},
}
"""Arguments of ``TransformersModel``."""
CUDA_STEPS: dict[str, dict[str, bool]] = {"eager": {"graphs": False}, "graphs": {}}
"""The same on a CUDA device, where no layer is replaced."""


def greedy(model: TransformersModel, prompt: list[int], tokens: int) -> list[int]:
    """Plain decoding."""
    decoder = LiveDecoder(model, ())
    written = [decoder.begin(Request("bench", tuple(prompt), tokens), 0, ()).token]
    while len(written) < tokens:
        written += decoder.round(None, None, 0, 0.0).tokens
    return written


def forward(model: TransformersModel, tokens: list[int], context: int) -> None:
    """One forward behind the context, rolled back."""
    model.forward(tokens, "all")
    model.crop(context)


def run(zoo: Path, context: int, threads: int, clock: str, out: Path, device: str = "cpu") -> None:
    """Measure and report."""
    on_cuda = torch.device(device).type == "cuda"
    torch.set_num_threads(threads or usable_threads())
    folder = resolve_first(Zoo.load(zoo).target.sources)
    began_s = time.perf_counter()
    compiled = kernels() is not None
    compiled_s = time.perf_counter() - began_s
    models, load_s = {}, {}
    for name, settings in (CUDA_STEPS if on_cuda else STEPS).items():
        began_s = time.perf_counter()
        network = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
        models[name] = TransformersModel(network.to(device), **settings)  # type: ignore[arg-type]
        load_s[name] = time.perf_counter() - began_s
    tokens = [(7 * i + 3) % 1000 + 100 for i in range(context)]
    texts = {name: greedy(model, tokens[:40], TEXT_TOKENS) for name, model in models.items() if name != INT8}
    if any(text != next(iter(texts.values())) for text in texts.values()):
        raise AssertionError(f"the steps write different texts: {texts}")
    for model in models.values():
        model.reset()
        model.forward(tokens, "last")
    pieces = {
        f"{name} {width}": partial(forward, model, tokens[:width], context)
        for width in WIDTHS
        for name, model in models.items()
    }
    first = next(iter(models.values()))
    by = None if on_cuda and clock == "wall" else CLOCKS[clock]  # None: by the device's own events
    found = timed(pieces, ROUNDS, first.synchronize, clock=by, device=first.device)
    rows = []
    print(f"{'width':>5} " + " ".join(f"{name:>14}" for name in models))
    for width in WIDTHS:
        seconds = {name: found[f"{name} {width}"].seconds for name in models}
        rows.append({"width": width, **{f"{name}_s": value for name, value in seconds.items()}})
        print(f"{width:5d} " + " ".join(f"{value * 1e3:11.1f} ms" for value in seconds.values()))
    for name in models:
        print(f"{name}: width 5 / width 1: {found[f'{name} 5'].seconds / found[f'{name} 1'].seconds:.2f}")
    machine = torch.cuda.get_device_name(first.device) if on_cuda else device_name()
    facts = {"device": machine, "threads": torch.get_num_threads(), "versions": library_versions("torch")}
    more = {"clock": clock, "compiled": compiled, "kernels_s": compiled_s, "load_s": load_s}
    more["weight_bytes"] = {name: model.weight_bytes for name, model in models.items()}
    print(
        f"kernels at hand after {compiled_s:.2f} s; loading: {', '.join(f'{n} {s:.2f} s' for n, s in load_s.items())}"
    )
    write_json(out, {"schema": 2, **facts, **more, "identical": True, "context": context, "rows": rows})


def main() -> int:
    """Command line; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.run", description=__doc__)
    parser.add_argument("--zoo", type=Path, default=Path("envs/zoo/smollm2"), help="folder of the zoo")
    parser.add_argument("--context", type=int, default=200, help="tokens in the cache (default: 200)")
    parser.add_argument("--threads", type=int, default=0, help="CPU threads (default: all cores)")
    parser.add_argument("--clock", choices=CLOCKS, default="wall",
                        help="cpu: the process's own time, for a machine that others use; with one thread")  # fmt: skip
    parser.add_argument("--device", default="cpu", help="torch device (default: cpu)")
    parser.add_argument("--out", type=Path, default=Path("outputs/bench.json"), help="file to write")
    options = parser.parse_args()
    try:
        run(options.zoo, options.context, options.threads, options.clock, options.out, options.device)
    except UserError as error:
        print(f"bench: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
