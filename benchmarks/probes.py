"""The same questions asked again and again: is the answer still the same, and do drafts still guess as they did?

How far a draft's guesses are right behind a given text depends on nothing but draft and text: not on what was served
before, what is in memory, or who decides. So two rounds of one draft from one position must agree,

    first   drafted 4, accepted 2    -> a run of exactly 2
    last    drafted 2, accepted 2    -> a run of 2 or more      they agree
    last    drafted 4, accepted 3    -> a run of exactly 3      they do not

even where the controller chose other lengths. A look-up draft remembers what was served; its rounds are left out.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from openai import OpenAI

LOOKUP = "lookup"
PROBE_TOKENS = 48


class Run(NamedTuple):
    """A run of right guesses: at least ``low`` long, and if it is ``exact`` no longer."""

    low: int
    exact: bool

    def agrees(self, other: Run) -> bool:
        """Whether both may be the same run."""
        if self.exact and other.exact:
            return self.low == other.low
        if self.exact:
            return other.low <= self.low
        return not other.exact or self.low <= other.low


class Probe(NamedTuple):
    """One question, asked once.

    Attributes:
        prompt: The question.
        text: The answer.
        drafted: Guesses that were verified.
        accepted: Of those, right.
        reused_tokens: Of the prompt, taken from a stored prefix.
        runs: By draft and position in the answer.
    """

    prompt: str
    text: str
    drafted: int
    accepted: int
    reused_tokens: int
    runs: Mapping[tuple[str, int], Run]


def ask(api: OpenAI, model: str, prompt: str) -> Probe:
    """Ask a question greedily, with a trace of how the answer came about."""
    given = api.chat.completions.create(
        model=model,
        messages=[{"role": "user", "content": prompt}],
        temperature=0,
        max_tokens=PROBE_TOKENS,
        extra_body={"specpilot": {"trace": True}},
    ).model_dump()
    usage = given["usage"]
    return Probe(
        prompt,
        given["choices"][0]["message"]["content"],
        usage["specpilot"]["drafted"],
        usage["specpilot"]["accepted"],
        usage["prompt_tokens_details"]["cached_tokens"],
        runs_of(given["specpilot"]["steps"]),
    )


def runs_of(steps: Sequence[Mapping[str, Any]]) -> dict[tuple[str, int], Run]:
    """The runs that the rounds of an answer show."""
    runs: dict[tuple[str, int], Run] = {}
    position = 0
    for step in steps:
        draft, drafted, accepted = step["decision"]["draft"], step["drafted"], step["accepted"]
        if draft not in (None, LOOKUP) and drafted:
            runs[draft, position] = Run(accepted, accepted < drafted)
        position += len(step["tokens"])
    return runs


class Agreement(NamedTuple):
    """Rounds of the same draft at the same place, and how many of them do not agree."""

    compared: int
    contradictions: int


def agreement(first: Iterable[Probe], last: Iterable[Probe]) -> Agreement:
    """Compare the rounds of two times."""
    before: dict[tuple[str, str, int], list[Run]] = defaultdict(list)
    for probe in first:
        for (draft, position), run in probe.runs.items():
            before[probe.prompt, draft, position].append(run)
    verdicts = [
        run.agrees(earlier)
        for probe in last
        for (draft, position), run in probe.runs.items()
        for earlier in before[probe.prompt, draft, position]
    ]
    return Agreement(len(verdicts), verdicts.count(False))
