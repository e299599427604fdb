"""A draft model that guesses token by token, with a KV cache of its own."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

import torch

from runtime.core import StopRule
from runtime.decoding.drafters.base import NAN, Proposal, calibrated
from runtime.decoding.sampling import Sampler
from runtime.decoding.stop_rule import Confidence, guess_score
from runtime.engine.draft_sequence import Draft
from runtime.engine.native.leaders import likeliest
from runtime.errors import UserError

Embed = Callable[[Sequence[int]], torch.Tensor]


class ModelDrafter:
    """Implements ``Drafter``.

    Args:
        draft: The loaded draft.
        embed: The target's input embedding: n token ids to (1, n, width).
        vocab_size: The target's; a draft that could guess beyond it is refused.
        calibration: (slope, offset) on the logit of the raw top-1 probability, which is taken over the draft's own
            trimmed vocabulary.

    Raises:
        UserError: If the draft can guess tokens that the target does not have.
    """

    def __init__(
        self, draft: Draft, embed: Embed, vocab_size: int, calibration: tuple[float, float] = (1.0, 0.0)
    ) -> None:
        if not draft.vocab or draft.vocab[0] < 0 or draft.vocab[-1] >= vocab_size:
            raise UserError(
                f"draft '{draft.name}' guesses token ids {draft.vocab[:1]} to {draft.vocab[-1:]}, expected ids of the "
                f"target's vocabulary of {vocab_size}: it belongs to another target, distill one for this target"
            )
        self.draft = draft
        self._embed = embed
        self._vocab_size = vocab_size
        self._calibration = calibration
        self._sequence = draft.sequence()
        self._seen = 0  # an interrupted forward leaves more than this
        self._ids = torch.tensor(draft.vocab)
        self._row_of = {token: row for row, token in enumerate(draft.vocab)}

    @property
    def seen(self) -> int:
        """Tokens in the draft's cache."""
        return self._seen

    def begin(self) -> None:
        self.settle(0)

    def settle(self, length: int) -> None:
        self._seen = min(self._seen, length)
        self._sequence.crop_to(self._seen)

    def catch_up_tokens(self, committed: int) -> int:
        return max(0, committed - 1 - self._seen)

    @torch.inference_mode()
    def propose(
        self,
        tokens: Sequence[int],
        prompt_tokens: int,
        gamma: int,
        threshold: float,
        eos_ids: Collection[int],
        sampler: Sampler | None = None,
        rule: StopRule = StopRule.REACH,
    ) -> Proposal:
        seen = self._seen
        first_scored = max(seen + 1, prompt_tokens)
        known = list(tokens[first_scored:])  # what the scored rows should have said
        rows = self._forward(tokens[seen:], keep=len(known) + 1)  # (scored + 1, V)
        scored = self._score(rows[:-1], known)
        guesses: list[int] = []
        drawn_from: list[torch.Tensor] = []
        steps, first, sure = 1, NAN, Confidence(rule, threshold)
        while True:
            best, top = self._likeliest(rows[-1])
            if steps == 1:
                first = calibrated(top, self._calibration)
            enough = sure.suffices(guess_score(rule, top, self._calibration))  # before the draw, see the stopping rule
            token, q = (best, None) if sampler is None else self._choose(rows[-1], (*tokens, *guesses), sampler)
            guesses.append(token)
            if q is not None:
                drawn_from.append(q)
            if not enough or len(guesses) == gamma or token in eos_ids:
                break
            rows = self._forward([token], keep=1)
            steps += 1
        return Proposal(tuple(guesses), steps, len(tokens) - 1 - seen, scored, first, tuple(drawn_from))

    def _forward(self, tokens: Sequence[int], keep: int) -> torch.Tensor:
        """Logits behind the last ``keep`` of ``tokens``, float32, shape (keep, V)."""
        logits = self._sequence.forward(self._embed(tokens), keep)
        self._seen += len(tokens)
        return logits

    def _likeliest(self, row: torch.Tensor) -> tuple[int, float]:
        """The greedy token and its raw probability."""
        best, probability = likeliest(row)
        return self.draft.vocab[best], probability

    def _choose(self, row: torch.Tensor, text: Sequence[int], sampler: Sampler) -> tuple[int, torch.Tensor | None]:
        """The sampler's token behind ``text``, and what it was drawn from, shape (vocab,) of the target."""
        seen = [self._row_of[token] for token in text if token in self._row_of] if sampler.penalises else []
        chosen, q = sampler.guess(row, seen)
        if q is not None:
            q = q.new_zeros(self._vocab_size).index_copy(0, self._ids.to(q.device), q)
        return self.draft.vocab[chosen], q

    def _score(self, rows: torch.Tensor, known: Sequence[int]) -> tuple[int, int]:
        """(matches, positions) of the greedy guesses, rows (n, V), against the n tokens that were committed."""
        if not known:
            return 0, 0
        guessed = rows.argmax(dim=-1).tolist()
        return sum(self._row_of.get(token) == row for token, row in zip(known, guessed, strict=True)), len(known)
