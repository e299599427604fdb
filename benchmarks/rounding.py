"""How much the width of a forward changes logits: what the margin of the guard must be above.

    python -m benchmarks.rounding --engine llamacpp [--positions N] [--out FILE]

Over the target's own held-out texts: every position by a forward of width 1, and by forwards of width 2 to 9, all
behind one and the same cache. *gap* is the change of the distance between two of a position's ten best tokens: that is
what can turn a greedy choice. *behind wide KV*: the same position by width 1, behind KV that wide forwards left.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from benchmarks.engines.prompts import held_out
from benchmarks.engines.setting import TRACES
from envs.traces import TraceSet
from runtime.bundle import library_versions
from runtime.decoding.greedy import margin_for
from runtime.device import device_name
from runtime.engine.base import TargetModel
from runtime.errors import UserError
from runtime.files import write_json
from runtime.live import open_models
from runtime.zoo import Zoo

SCHEMA = 1
WIDTHS = (2, 3, 5, 9)
BEST = 10


def largest_changes(narrow: torch.Tensor, wide: torch.Tensor) -> tuple[float, float]:
    """The largest change of the gap between two of the ten best tokens, and of any one logit; rows (n, vocab)."""
    best = narrow.topk(BEST, dim=-1).indices
    change = (wide - narrow).gather(-1, best)
    gap = (change.max(dim=-1).values - change.min(dim=-1).values).max()
    return float(gap), float((wide - narrow).abs().max())


def narrow_logits(target: TargetModel, prompt: Sequence[int], text: Sequence[int]) -> torch.Tensor:
    """Logits behind every token of the text, by forwards of width 1."""
    target.reset()
    target.forward(prompt, "last")
    return torch.cat([target.forward([token], "last") for token in text])


def wide_logits(target: TargetModel, prompt: Sequence[int], text: Sequence[int], width: int) -> torch.Tensor:
    """The same by forwards of ``width``, each behind KV of forwards of width 1."""
    rows = []
    for at in range(0, len(text), width):
        part = text[at : at + width]
        target.crop(len(prompt) + at)
        rows.append(target.forward(part, "all"))
        target.crop(len(prompt) + at)
        for token in part:
            target.forward([token], "last")
    return torch.cat(rows)


def behind_wide(target: TargetModel, prompt: Sequence[int], text: Sequence[int], width: int) -> torch.Tensor:
    """Logits of width 1, each behind KV that forwards of ``width`` left."""
    target.crop(len(prompt))
    rows = []
    for at in range(0, len(text), width):
        part = text[at : at + width]
        rows.append(target.forward(part[:1], "last"))
        target.crop(len(prompt) + at)
        target.forward(part, "last")
    return torch.cat(rows)


def run(options: argparse.Namespace) -> int:
    """Measure and report."""
    zoo = Zoo.load(options.zoo)
    target = open_models(zoo, engine=options.engine, dtype=options.dtype).target
    traces = {trace.prompt_id: trace for trace in TraceSet.load(options.traces, zoo.target.fingerprint).traces}
    margin, positions, close = margin_for(target), 0, 0
    worst: dict[str, float] = {}
    for prompt in held_out(options.traces, zoo.target.fingerprint, options.prompts):
        text = traces[prompt.prompt_id].output_ids[: options.tokens]
        narrow = narrow_logits(target, prompt.tokens, text)
        top = narrow.topk(2, dim=-1).values
        positions, close = positions + len(text), close + int((top[:, 0] - top[:, 1] < margin).sum())
        for width in WIDTHS:
            wide = wide_logits(target, prompt.tokens, text, width)
            behind = behind_wide(target, prompt.tokens, text, width)
            for what, got, of in (("", wide, narrow), (" behind wide KV", behind, narrow[::width])):
                for name, value in zip((f"gap{what}", f"any logit{what}"), largest_changes(of, got), strict=True):
                    key = f"{name}, width {width}"
                    worst[key] = max(worst.get(key, 0.0), value)
    found: dict[str, Any] = {"positions": positions, "margin": margin, "under_margin": close / positions, **worst}
    for name, value in found.items():
        print(f"{name:<34} {value:.3g}")
    facts = {"device": device_name(), "versions": library_versions("torch", "transformers", "llama-cpp-python"),
             "engine": target.engine, "dtype": str(target.dtype)}  # fmt: skip
    if options.out:
        write_json(options.out, {"schema": SCHEMA, **facts, **found})
    return 0


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.rounding", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)  # fmt: skip
    parser.add_argument("--zoo", type=Path, default=Path("envs/zoo/smollm2"), help="folder of the zoo")
    parser.add_argument("--traces", type=Path, default=TRACES, help="held-out traces, whose texts are read")
    parser.add_argument("--engine", default="transformers", help="engine of the target (default: transformers)")
    parser.add_argument("--dtype", default="float32", help="what it runs in (default: float32)")
    parser.add_argument("--prompts", type=int, default=20, help="how many texts (default: 20)")
    parser.add_argument("--tokens", type=int, default=45, help="most tokens of a text (default: 45)")
    parser.add_argument("--out", type=Path, help="report to write (default: none)")
    try:
        return run(parser.parse_args(arguments))
    except UserError as error:
        print(f"benchmarks.rounding: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
