"""Speculative sampling over tables: models whose logits depend on the last token alone, and what they should say."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from typing import Any, NamedTuple, cast

import torch
from transformers import (
    LogitsProcessorList,
    MinPLogitsWarper,
    RepetitionPenaltyLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from runtime.core import Sampling
from runtime.decoding import rejection
from runtime.decoding.drafters.base import Proposal
from runtime.decoding.drafters.model import ModelDrafter
from runtime.decoding.greedy import Verdict
from runtime.decoding.sampling import Sampler
from runtime.engine.base import CausalModel
from runtime.engine.loaded_draft import LoadedDraft

WORDS = 5
TEXT = (1, 3)
"""What is committed before the first token."""

KINDS = ("sampling", "point mass", "hostile", "target itself", "trimmed")
"""Drafts; ``point mass`` has the table of ``sampling``."""

Propose = Callable[[Sequence[int], int, Sampler], Proposal]
Verify = Callable[..., Verdict]


def target_table() -> torch.Tensor:
    """Logits behind every token, shape (WORDS, WORDS)."""
    return torch.randn(WORDS, WORDS, generator=torch.Generator().manual_seed(5)) * 1.3


def draft_rows(kind: str) -> tuple[torch.Tensor, tuple[int, ...]]:
    """A draft's logits behind every token, shape (WORDS, V), and the token ids of its V rows."""
    table = target_table()
    vocab = (0, 2, 3) if kind == "trimmed" else tuple(range(WORDS))
    noise = torch.randn(WORDS, WORDS, generator=torch.Generator().manual_seed(11))
    changed = {"hostile": -2.0 * table, "target itself": table}.get(kind, 0.6 * table + noise)
    return changed[:, list(vocab)].contiguous(), vocab


class TableModel:
    """A target: row i of ``table`` says what follows token i. Only what decoding asks of a ``CausalModel``."""

    def __init__(self, table: torch.Tensor) -> None:
        self.table = table

    def forward(self, tokens: Sequence[int], logits: str) -> torch.Tensor:
        """The rows of the tokens."""
        return self.table[list(tokens)]


class TableNet:
    """A draft's network over the token ids themselves: see ``embed``."""

    def __init__(self, rows: torch.Tensor, vocab: Sequence[int]) -> None:
        self.rows, self.vocab = rows, torch.tensor(vocab)

    def hidden(self, embedded: torch.Tensor, cache: object) -> torch.Tensor:
        """Logits behind the tokens."""
        return self.rows[embedded[0]][None]

    def head(self, hidden: torch.Tensor) -> torch.Tensor:
        """Nothing is left to do."""
        return hidden


def embed(tokens: Sequence[int]) -> torch.Tensor:
    return torch.tensor([list(tokens)])


@cache
def target() -> CausalModel:
    return cast(CausalModel, TableModel(target_table()))


def drafter(kind: str) -> ModelDrafter:
    """The real drafter over a table."""
    rows, vocab = draft_rows(kind)
    return ModelDrafter(LoadedDraft(kind, cast(Any, TableNet(rows, vocab)), vocab, 0), embed, WORDS)


# -- what it should be ---------------------------------------------------------------------------------------------


def reference(logits: torch.Tensor, seen: Sequence[int], sampling: Sampling, temperature: float) -> torch.Tensor:
    """The distribution by the processors of ``transformers``, in the order of its ``generate``; shape (V,)."""
    steps: list[Any] = []
    if sampling.repetition_penalty != 1.0:
        steps.append(RepetitionPenaltyLogitsProcessor(sampling.repetition_penalty))
    steps.append(TemperatureLogitsWarper(temperature))
    if sampling.top_k:
        steps.append(TopKLogitsWarper(sampling.top_k))
    if sampling.top_p < 1.0:
        steps.append(TopPLogitsWarper(sampling.top_p))
    if sampling.min_p > 0.0:
        steps.append(MinPLogitsWarper(sampling.min_p))
    ids: Any = torch.tensor([list(seen)], dtype=torch.long)
    scores: Any = logits[None].clone()
    return LogitsProcessorList(steps)(ids, scores)[0].softmax(dim=-1)


@cache
def _next(last: int, seen: frozenset[int], sampling: Sampling) -> tuple[float, ...]:
    return tuple(reference(target_table()[last], sorted(seen), sampling, sampling.temperature).double().tolist())


@cache
def joint(sampling: Sampling, tokens: int, behind: tuple[int, ...] = TEXT) -> dict[tuple[int, ...], float]:
    """Probability of every sequence of that many tokens behind a text."""
    found = {}
    for path in itertools.product(range(WORDS), repeat=tokens):
        text, probability = list(behind), 1.0
        for token in path:
            probability *= _next(text[-1], frozenset(text if sampling.repetition_penalty != 1.0 else ()), sampling)[
                token
            ]
            text.append(token)
        if probability > 0.0:
            found[path] = probability
    return found


# -- what it is ----------------------------------------------------------------------------------------------------


class Rule(NamedTuple):
    """How a text is written.

    Attributes:
        propose: The real drafters, or a wrong one.
        gamma: Draft length.
        verify: The real verification, or a wrong one.
    """

    propose: Propose
    gamma: int
    verify: Verify = rejection.verify


def real(kind: str, threshold: float = 0.0) -> Propose:
    """What the real drafter proposes."""
    guesser = drafter(kind)

    def propose(text: Sequence[int], gamma: int, sampler: Sampler) -> Proposal:
        guesser.begin()
        return guesser.propose(text, len(TEXT), gamma, threshold, (), sampler)

    return propose


def quick(kind: str) -> Propose:
    """The same at a threshold of 0, in fewer operations."""
    rows, vocab = draft_rows(kind)
    places = torch.tensor(vocab)
    wide: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}  # by identity: a ``Memo`` repeats its distributions

    def propose(text: Sequence[int], gamma: int, sampler: Sampler) -> Proposal:
        guesses: list[int] = []
        drawn_from: list[torch.Tensor] = []
        for _ in range(gamma):
            so_far = (*text, *guesses)
            seen = [vocab.index(token) for token in so_far if token in vocab]
            row, q = sampler.guess(rows[so_far[-1]], seen)
            guesses.append(vocab[row])
            if q is not None:
                if id(q) not in wide:
                    wide[id(q)] = q, torch.zeros(WORDS).index_copy(0, places, q)
                drawn_from.append(wide[id(q)][1])
        return Proposal(tuple(guesses), probabilities=tuple(drawn_from))

    return propose


@torch.inference_mode()
def write(rule: Rule, sampler: Sampler, tokens: int) -> tuple[int, ...]:
    """The first ``tokens`` tokens of a text, by as many rounds as they take."""
    text, model = list(TEXT), target()
    while len(text) < len(TEXT) + tokens:
        proposal = rule.propose(text, rule.gamma, sampler)
        text.extend(rule.verify(model, text, proposal.tokens, proposal.probabilities, (), sampler).tokens)
    return tuple(text[len(TEXT) : len(TEXT) + tokens])


class Memo(Sampler):
    """A sampler that filters the same logits once, and draws from short lists with Python's own generator."""

    def __init__(self, sampling: Sampling) -> None:
        super().__init__(sampling)
        self._known: dict[object, torch.Tensor] = {}
        self._random = random.Random(sampling.seed)

    def accepts(self, probability: float) -> bool:
        return self._random.random() < probability

    def draw(self, weights: torch.Tensor) -> int:
        return self._random.choices(range(len(weights)), weights.tolist())[0]

    def _filtered(self, logits: torch.Tensor, seen: Sequence[int], temperature: float) -> torch.Tensor:
        key = (tuple(logits.tolist()), frozenset(seen if self.penalises else ()), temperature)
        if key not in self._known:
            self._known[key] = super()._filtered(logits, seen, temperature)
        return self._known[key]


class Scripted(Memo):
    """A sampler that takes every branch in turn: ``walk`` yields all outcomes with their probabilities, exactly."""

    def __init__(self, sampling: Sampling) -> None:
        super().__init__(sampling)
        self._path: list[tuple[int, int]] = []  # (branch taken, branches there were)
        self._depth, self.probability = 0, 1.0

    def accepts(self, probability: float) -> bool:
        likely = min(probability, 1.0)
        return self._branch([(value, share) for value, share in ((1, likely), (0, 1.0 - likely)) if share > 0.0]) == 1

    def draw(self, weights: torch.Tensor) -> int:
        shares = (weights.double() / weights.double().sum()).tolist()
        return self._branch([(token, share) for token, share in enumerate(shares) if share > 0.0])

    def walk(self, run: Callable[[Sampler], tuple[int, ...]]) -> Iterator[tuple[tuple[int, ...], float]]:
        """Every outcome of ``run``, some more than once."""
        while True:
            self._depth, self.probability = 0, 1.0
            outcome = run(self)
            yield outcome, self.probability
            while self._path and self._path[-1][0] + 1 == self._path[-1][1]:
                self._path.pop()
            if not self._path:
                return
            branch, branches = self._path[-1]
            self._path[-1] = (branch + 1, branches)

    def _branch(self, options: list[tuple[int, float]]) -> int:
        if self._depth == len(self._path):
            self._path.append((0, len(options)))
        value, share = options[self._path[self._depth][0]]
        self._depth += 1
        self.probability *= share
        return value


def exact(rule: Rule, sampling: Sampling) -> dict[tuple[int, ...], float]:
    """Probability of every ``gamma + 1`` tokens, if the rule writes the first round and the target says the rest."""
    length, found = rule.gamma + 1, dict[tuple[int, ...], float]()
    walk = Scripted(sampling).walk(lambda sampler: _first_round(rule, sampler))
    for outcome, probability in walk:
        for rest, share in joint(sampling, length - len(outcome), (*TEXT, *outcome)).items():
            found[outcome + rest] = found.get(outcome + rest, 0.0) + probability * share
    return found


@torch.inference_mode()
def _first_round(rule: Rule, sampler: Sampler) -> tuple[int, ...]:
    proposal = rule.propose(TEXT, rule.gamma, sampler)
    return rule.verify(target(), TEXT, proposal.tokens, proposal.probabilities, (), sampler).tokens


def largest_error(rule: Rule, sampling: Sampling) -> float:
    """Largest difference between ``exact`` and ``joint`` in a probability."""
    found, due = exact(rule, sampling), joint(sampling, rule.gamma + 1)
    return max(abs(found.get(path, 0.0) - due.get(path, 0.0)) for path in found.keys() | due.keys())
