"""All contenders answer each prompt before any goes on to the next, in an order that rotates.

So a machine that slows down slows all of them alike. Rows are kept after every prompt, so a long comparison can be made
in pieces.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from tqdm import tqdm
from transformers import PreTrainedModel

from benchmarks.engines.base import PLAIN, Contender
from benchmarks.engines.ours import INT8, PLAIN_INT8
from benchmarks.engines.prompts import Prompt
from runtime.errors import UserError
from runtime.files import read_json

WARM_UP_TOKENS = 12


class Row(NamedTuple):
    """One answer: who, to what, seconds from prompt to last token, and the text."""

    prompt_id: str
    contender: str
    family: str
    seconds: float
    tokens: list[int]


def earlier(out: Path, facts: dict[str, Any], schema: int) -> list[Row]:
    """Rows of a comparison under the same facts that was begun before.

    Raises:
        UserError: If it was begun under others.
    """
    if not out.exists():
        return []
    before = read_json(out, "comparison", schema)
    if unlike := [name for name, value in facts.items() if before.get(name) != value]:
        raise UserError(f"{out}: a comparison under other facts ({', '.join(unlike)}): name another file, or remove it")
    return [Row(**row) for row in before["rows"]]


class Difference(NamedTuple):
    """Where a text leaves the reference's.

    Attributes:
        prompt_id: Of the prompt.
        contender: Whose text.
        position: First token that differs, counted from the answer's beginning.
        gap: Logits between the reference's token and the other one, by a forward of the whole text in transformers.
    """

    prompt_id: str
    contender: str
    position: int
    gap: float


def warm_up(contenders: Sequence[Contender], prompt: Prompt) -> None:
    """A short answer of everybody that does not count."""
    for contender in contenders:
        contender.answer(prompt.tokens, WARM_UP_TOKENS)
        contender.settle()


def measure(
    contenders: Sequence[Contender],
    prompts: Sequence[Prompt],
    max_tokens: int,
    rows: list[Row],
    keep: Callable[[list[Row]], None],
    until_s: float = float("inf"),
    progress: bool = True,
    clock: Callable[[], float] = time.perf_counter,
) -> bool:
    """Answer the prompts that have no rows yet; whether all have them now.

    Args:
        contenders: Who answers.
        prompts: What.
        max_tokens: Most tokens of an answer.
        rows: What was measured before; grows.
        keep: Called with all rows after every prompt.
        until_s: No prompt is begun behind this ``time.perf_counter``.
        progress: Whether to show a progress bar.
        clock: Seconds; the wall's, or the process's own on a machine that others use.
    """
    done = {row.prompt_id for row in rows}
    for number, prompt in enumerate(tqdm(prompts, unit="prompts", disable=not progress)):
        if prompt.prompt_id in done:
            continue
        if time.perf_counter() >= until_s:
            return False
        first = number % len(contenders)
        for contender in (*contenders[first:], *contenders[:first]):
            began_s = clock()
            tokens = contender.answer(prompt.tokens, max_tokens)
            seconds = clock() - began_s
            contender.settle()
            rows.append(Row(prompt.prompt_id, contender.name, contender.family, seconds, list(tokens)))
        keep(rows)
    return True


def differences(rows: Sequence[Row], prompts: Sequence[Prompt], model: PreTrainedModel) -> list[Difference]:
    """Every text that is not the reference's, with what lay between the two tokens; int8 has a reference of its own."""
    references = {name: {r.prompt_id: r.tokens for r in rows if r.contender == name} for name in (PLAIN, PLAIN_INT8)}
    by_id = {prompt.prompt_id: prompt for prompt in prompts}
    found = []
    for row in rows:
        expected = references[PLAIN_INT8 if row.contender.startswith(INT8) else PLAIN][row.prompt_id]
        if row.tokens == expected:
            continue
        pairs = list(zip(expected, row.tokens, strict=False))
        position = next((i for i, (a, b) in enumerate(pairs) if a != b), len(pairs))
        gap = float("nan")
        if position < len(pairs):
            text = (*by_id[row.prompt_id].tokens, *expected[:position])
            gap = _gap(model, text, *pairs[position])
        found.append(Difference(row.prompt_id, row.contender, position, gap))
    return found


@torch.inference_mode()
def _gap(model: PreTrainedModel, text: Sequence[int], expected: int, got: int) -> float:
    logits = model(input_ids=torch.tensor([text]), use_cache=False).logits[0, -1]
    return float(logits[expected] - logits[got])
