"""RAKV-ASD's menu on the real models: ``python -m agents.menu runs=DIR suite=rakv_pruned_live out=DIR``.

Reads the pieces of a live evaluation of ``rakv_live`` or ``rakv_pruned_live`` and answers, without running a model:

* the acceptance at which a draft length breaks even, by replay of the very same rounds and by the device;
* the latency of a request by action, for short and for long prompts;
* how often a controller was right to speculate or not, beside the error of replay's predicted seconds.

Leaves ``DIR/menu.json``, ``break-even.png`` and ``latency.png``.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from itertools import pairwise
from pathlib import Path

import hydra
import numpy as np
import numpy.typing as npt
from hydra.utils import to_absolute_path
from omegaconf import DictConfig

from agents.agreement import ScriptedController, agreements
from agents.menu_answers import BreakEven, Choices, Latency
from agents.pieces import Piece, read_pieces
from agents.report.drawing import save_png
from agents.report.menu_charts import break_even_chart, latency_chart
from agents.serving import serve
from agents.setup import prepare
from agents.suite import HELDOUT_SEED
from envs.workload import Stream
from runtime.core import GAMMAS
from runtime.errors import UserError
from runtime.files import write_json, written_whole
from runtime.session import DecodeSession

MENU_SCHEMA = 2
Floats = npt.NDArray[np.float64]
FIXED = tuple(f"fixed:{gamma}" for gamma in GAMMAS)
PLAIN = "plain_reuse"
REAL = 1e-9
"""An imaginary part below this is rounding."""
PASSES, LEAST_DEVIATION_S = 50, 1e-4
"""Of the fit of round times: passes, and the deviation below which a request is not weighted up any more."""
LONG_PROMPT = 200
"""Prompts of at least so many tokens are long."""


def round_seconds(pieces: Mapping[str, Sequence[Piece]], streams: Sequence[Stream]) -> dict[int, float]:
    """Seconds of a round by guesses allowed (0 = plain): least absolute deviations over requests of the fixed lengths.

    Two things besides rounds take time behind the first token, and have a term of their own: a draft absorbs the prompt
    before its first guess (a line over prompt tokens), and the text's KV is copied out at the end (once a request).
    """
    kinds = (0, *GAMMAS)
    rows, seconds = [], []
    for name in (PLAIN, *FIXED):
        for piece, stream in zip(pieces[name], streams, strict=False):
            for number, (decisions, item) in enumerate(zip(piece.decisions, stream, strict=True)):
                lengths = [d.gamma if d.draft is not None else 0 for d in decisions[1:-1]]
                absorbed = len(item.request.prompt_ids) if any(lengths) else 0
                rows.append([*(lengths.count(kind) for kind in kinds), absorbed, absorbed > 0, 1])
                seconds.append(piece.result.request_s[number] - piece.result.ttft_s[number])
    found = _least_deviations(np.array(rows, dtype=np.float64), np.array(seconds))
    return dict(zip(kinds, map(float, found), strict=False))


def _least_deviations(rows: Floats, values: Floats) -> Floats:
    """Coefficients with the least sum of absolute deviations: a request that something disturbed hardly counts.

    Source: Schlossmacher 1973, "An iterative technique for absolute deviations curve fitting": least squares, weighted
    by the inverse of the last deviations.
    """
    weights = np.ones(len(values))
    found: Floats = np.zeros(rows.shape[1])
    for _ in range(PASSES):
        root = np.sqrt(weights)
        found = np.asarray(np.linalg.lstsq(rows * root[:, None], values * root, rcond=None)[0], dtype=np.float64)
        weights = 1.0 / np.maximum(np.abs(values - rows @ found), LEAST_DEVIATION_S)
    return found


def break_evens(predicted_s: Mapping[int, float], measured_s: Mapping[int, float]) -> list[BreakEven]:
    """Where each length breaks even by the seconds of its rounds, on replay and on the device."""
    return [
        BreakEven(gamma, *(_solve(seconds[gamma] / seconds[0], gamma) for seconds in (predicted_s, measured_s)))
        for gamma in GAMMAS
    ]


def on_replay(
    pieces: Mapping[str, Sequence[Piece]], streams: Sequence[Stream], make_session: Callable[[], DecodeSession]
) -> dict[str, list[Piece]]:
    """The same decisions of the compared actions on the virtual clock: what replay says they take."""
    return {
        name: [
            replace(piece, result=serve(ScriptedController(name, piece.decisions), stream, make_session(), name)[0])
            for piece, stream in zip(pieces[name], streams, strict=True)
        ]
        for name in (PLAIN, *FIXED)
    }


def _solve(cost: float, gamma: int) -> float:
    """The acceptance a at which a round's tokens, 1 + a + … + a^gamma, equal its cost in plain steps."""
    if cost <= 1.0:
        return 0.0
    roots = np.roots([*[1.0] * gamma, 1.0 - cost])
    return float(max(root.real for root in roots if abs(root.imag) < REAL))


def latencies(pieces: Mapping[str, Sequence[Piece]], streams: Sequence[Stream]) -> list[Latency]:
    """Mean latency of a request by action, short and long prompts apart."""
    found = []
    for name, served in pieces.items():
        by_kind: dict[bool, list[float]] = {False: [], True: []}
        for piece, stream in zip(served, streams, strict=False):
            for item, seconds in zip(stream, piece.result.request_s, strict=True):
                by_kind[len(item.request.prompt_ids) >= LONG_PROMPT].append(seconds)
        short_s, long_s = (float(np.mean(by_kind[long] or [0.0])) for long in (False, True))
        found.append(Latency(name, short_s, long_s, sum(map(len, by_kind.values()))))
    return found


def choices(
    name: str, pieces: Mapping[str, Sequence[Piece]], predicted_s: Mapping[str, float], spread: float
) -> Choices:
    """Judge one controller's choice to speculate, by the seconds both sides took for the very same requests."""
    clear = right = 0
    sides = [pieces[PLAIN], *(pieces[fixed] for fixed in FIXED)]
    for index, piece in enumerate(pieces[name]):
        for number, decisions in enumerate(piece.decisions):
            rounds = decisions[1:-1]
            if not rounds:
                continue
            plain_s, *guessing_s = (side[index].result.request_s[number] for side in sides)
            better_s, worse_s = sorted((plain_s, min(guessing_s)))
            if worse_s / better_s - 1.0 <= 2.0 * spread:
                continue
            clear += 1
            speculated = sum(d.draft is not None for d in rounds) * 2 > len(rounds)
            right += speculated == (min(guessing_s) < plain_s)
    live_s = sum(piece.result.seconds for piece in pieces[name])
    return Choices(name, clear, right, spread, abs(predicted_s[name] / live_s - 1.0))


def repeat_spread(pieces: Mapping[str, Sequence[Piece]], names: Sequence[str]) -> float:
    """Half the inter-quartile range of the ratio of two runs that did the same with the same request."""
    ratios = []
    for first, second in pairwise(names):
        for a, b in zip(pieces[first], pieces[second], strict=True):
            for number, (x, y) in enumerate(zip(a.result.request_s, b.result.request_s, strict=True)):
                if a.decisions[number] == b.decisions[number]:
                    ratios.append(x / y)
    if not ratios:
        return 0.0
    low, high = np.percentile(ratios, [25, 75])
    return float(high - low) / 2.0


def run_menu(config: DictConfig) -> Path:
    """Answer the three questions; returns the path of ``menu.json``.

    Raises:
        UserError: If there are no pieces of the actions that are compared.
    """
    setting = prepare(config)
    folder = Path(to_absolute_path(config.runs))
    pieces = read_pieces(folder / "pieces")
    missing = [name for name in (PLAIN, *FIXED) if name not in pieces]
    if missing:
        raise UserError(f"{folder}: no pieces of {', '.join(missing)}: run `python -m agents.evaluate suite=rakv_live`")
    count = min(len(served) for served in pieces.values())
    pieces = {name: served[:count] for name, served in pieces.items()}
    streams = setting.heldout.streams(HELDOUT_SEED + config.seed, count)
    measured_s = round_seconds(pieces, streams)
    predicted_s = round_seconds(on_replay(pieces, streams, setting.heldout.session), streams)
    evens = break_evens(predicted_s, measured_s)
    waits = latencies(pieces, streams)
    spread = repeat_spread(pieces, [PLAIN, "rakv_asd", "policy"] if "policy" in pieces else [PLAIN, "rakv_asd"])
    whole_s = {each.controller: each.replay_s for each in agreements(pieces, streams, setting.heldout.session)}
    judged = [choices(name, pieces, whole_s, spread) for name in ("rakv_asd", "policy") if name in pieces]
    out = Path(to_absolute_path(config.out))
    for name, figure in (("break-even", break_even_chart(evens)), ("latency", latency_chart(waits))):
        with written_whole(out / f"{name}.png") as aside:
            save_png(figure, aside)
    path = out / "menu.json"
    write_json(
        path,
        {
            "schema": MENU_SCHEMA,
            "suite": config.suite.name,
            "streams": count,
            "timed_runs": sum(wait.requests for wait in waits),
            "round_s": {str(gamma): seconds for gamma, seconds in measured_s.items()},
            "predicted_round_s": {str(gamma): seconds for gamma, seconds in predicted_s.items()},
            "break_even": [asdict(each) for each in evens],
            "latency": [asdict(each) for each in waits],
            "choices": [asdict(each) for each in judged],
        },
    )
    for each in evens:
        print(f"gamma {each.gamma}: breaks even at {each.predicted:.3f} predicted, {each.measured:.3f} measured")
    for one in judged:
        print(f"{one.controller}: right in {one.right} of {one.clear} clear requests (spread {one.spread:.3f})")
    return path


@hydra.main(version_base=None, config_path="../conf", config_name="menu")
def main(config: DictConfig) -> None:
    """Compose the configuration and run it."""
    try:
        print(f"menu: {run_menu(config)}")
    except UserError as error:
        sys.exit(f"menu: {error}")


if __name__ == "__main__":
    main()
