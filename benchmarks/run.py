"""Forward times by width, packed against plain linear layers, interleaved: ``make bench``.

Asserts that both write the same greedy text, prints medians and ratios, writes ``outputs/bench.json``.
"""

from __future__ import annotations

import argparse
import os
import sys
from functools import partial
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM

from runtime.bundle import library_versions
from runtime.core import Request
from runtime.decoding.live import LiveDecoder
from runtime.device import device_name
from runtime.engine.sources import resolve_first
from runtime.engine.transformers_model import TransformersModel
from runtime.errors import UserError
from runtime.files import write_json
from runtime.timing import timed
from runtime.zoo import Zoo

WIDTHS = (1, 2, 3, 5, 9, 17, 65)
CONTEXT = 200
ROUNDS = 15


def greedy(model: TransformersModel, prompt: list[int], tokens: int) -> list[int]:
    """Plain decoding."""
    decoder = LiveDecoder(model, ())
    written = [decoder.begin(Request("bench", tuple(prompt), tokens), 0, ()).token]
    while len(written) < tokens:
        written += decoder.round(None, None, 0, 0.0).tokens
    return written


def forward(model: TransformersModel, tokens: list[int]) -> None:
    """One forward behind the context, rolled back."""
    model.forward(tokens, "all")
    model.crop(CONTEXT)


def run(zoo: Path, out: Path) -> None:
    """Measure and report."""
    torch.set_num_threads(os.cpu_count() or 1)
    folder = resolve_first(Zoo.load(zoo).target.sources)
    models = {
        name: TransformersModel(AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32), pack=pack)
        for name, pack in (("plain", False), ("packed", True))
    }
    tokens = [(7 * i + 3) % 1000 + 100 for i in range(CONTEXT)]
    texts = {name: greedy(model, tokens[:40], 32) for name, model in models.items()}
    if texts["plain"] != texts["packed"]:
        raise AssertionError(f"packed and plain layers write different texts: {texts}")
    for model in models.values():
        model.reset()
        model.forward(tokens, "last")
    pieces = {
        f"{name}-{width}": partial(forward, model, tokens[:width]) for width in WIDTHS for name, model in models.items()
    }
    found = timed(pieces, ROUNDS, models["plain"].synchronize)
    rows = []
    for width in WIDTHS:
        plain, packed = found[f"plain-{width}"].seconds, found[f"packed-{width}"].seconds
        rows.append({"width": width, "plain_s": plain, "packed_s": packed, "plain_over_packed": plain / packed})
        print(
            f"width {width:3d}  plain {plain * 1e3:6.1f} ms  packed {packed * 1e3:6.1f} ms  ratio {plain / packed:.2f}"
        )
    one = found["packed-1"].seconds
    print(f"packed, width 5 / width 1: {found['packed-5'].seconds / one:.2f}")
    facts = {"device": device_name(), "threads": torch.get_num_threads(), "versions": library_versions("torch")}
    write_json(out, {"schema": 1, **facts, "identical": True, "context": CONTEXT, "rows": rows})


def main() -> int:
    """Command line; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.run", description=__doc__)
    parser.add_argument("--zoo", type=Path, default=Path("envs/zoo/smollm2"), help="folder of the zoo")
    parser.add_argument("--out", type=Path, default=Path("outputs/bench.json"), help="file to write")
    options = parser.parse_args()
    try:
        run(options.zoo, options.out)
    except UserError as error:
        print(f"bench: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
