"""The decoder that runs the real models.

    committed text:      [ prompt | generated ...... pending ]
    target's cache:      [ ........................ ]            all but the pending token, between any two calls

Whatever happens in a round (an error, a keyboard interrupt, a cancellation), both caches are cropped to committed
tokens before it ends, so the next call goes on from the same text.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch

from runtime.core import GREEDY, DraftSpec, Request, Round, StopRule
from runtime.decoding import greedy, rejection
from runtime.decoding.base import Prefill
from runtime.decoding.drafters.base import Drafter, Proposal
from runtime.decoding.drafters.lookup import LookupDrafter
from runtime.decoding.drafters.model import ModelDrafter
from runtime.decoding.sampling import Sampler
from runtime.decoding.stopping import Cancelled, StopStrings, Text
from runtime.engine.base import CausalModel
from runtime.engine.draft_sequence import Draft
from runtime.engine.kv_state import KVState
from runtime.errors import UserError

Floats = npt.NDArray[np.float32]


class Topic(Protocol):
    """Predicts every draft's acceptance from the last tokens."""

    def predict(self, tokens: Sequence[int]) -> Floats:
        """Float32, shape (drafts,)."""
        ...


class LiveDecoder:
    """Implements ``Decoder`` with a target and drafts in this process.

    Args:
        target: The model whose text is produced. The decoder owns its sequence.
        drafts: What may guess, by index; those that are not loadable are look-up drafters.
        topic: The topic predictor; without it ``predicted`` is what was measured in training.
        margin: Logit margin of the guard; None = the target's own.
        text: Text of generated tokens, for stop strings; None = requests with stop strings are refused.
    """

    def __init__(
        self,
        target: CausalModel,
        drafts: Sequence[DraftSpec],
        topic: Topic | None = None,
        margin: float | None = None,
        text: Text | None = None,
    ) -> None:
        self.target = target
        self.drafts = tuple(drafts)
        self._topic = topic
        self._text = text
        self._margin = greedy.margin_for(target) if margin is None else margin
        self._expected = np.array([draft.expected for draft in self.drafts], dtype=np.float32)
        self._lookups = {
            index: LookupDrafter(draft.calibration) for index, draft in enumerate(self.drafts) if not draft.loadable
        }
        self._models: dict[int, ModelDrafter] = {}
        self._request: Request | None = None
        self._sampler = Sampler(GREEDY)
        self._stops: StopStrings | None = None
        self._cancelled: Callable[[], bool] = lambda: False
        self._tokens: list[int] = []
        self._ended = True

    # -- the contract --------------------------------------------------------------------------------------------

    def begin(self, request: Request, reuse_tokens: int, stored: Sequence[Any]) -> Prefill:
        self._refuse_unless_fitting(request)
        prompt = list(request.prompt_ids)
        if not 0 <= reuse_tokens < len(prompt):
            raise ValueError(f"expected to reuse 0 to {len(prompt) - 1} tokens of the prompt, got {reuse_tokens}")
        sampler = Sampler(request.sampling)
        stops = StopStrings(request.stop, self._text) if request.stop and self._text else None
        self._request, self._tokens, self._ended = None, [], True
        drafters: list[Drafter] = [*self._models.values(), *self._lookups.values()]
        for drafter in drafters:
            drafter.begin()
        try:
            self._give_up_if_cancelled()
            token, forwarded = self._prefill(prompt, reuse_tokens, stored, sampler)
        except BaseException:
            self.target.reset()
            raise
        self._request, self._tokens, self._sampler, self._stops = request, prompt, sampler, stops
        if self._cancelled():
            self.target.crop(len(prompt) - 1)  # the prompt's KV may be kept, its last token stays pending
            raise Cancelled
        self._commit([token])
        self._sync_lookups()
        return Prefill(token, forwarded, reuse_tokens if forwarded < len(prompt) else 0, int(forwarded > len(prompt)))

    def round(
        self, draft: int | None, payload: Any, gamma: int, threshold: float, rule: StopRule = StopRule.REACH
    ) -> Round:
        request = self._request
        if request is None:
            raise RuntimeError("round() without a request: call begin() first")
        if self._ended:
            raise RuntimeError(f"round() behind the end of request {request.request_id}: begin() another one")
        gamma = min(gamma, self._room() - 1, self._readable(draft))
        drafter = self._drafter(draft, payload) if draft is not None and gamma > 0 else None
        proposal = Proposal()
        try:
            if drafter is not None:
                proposal = drafter.propose(
                    self._tokens,
                    len(request.prompt_ids),
                    gamma,
                    threshold,
                    request.eos_ids,
                    None if self._sampler.plain else self._sampler,
                    rule,
                )
                self._refuse_unless_known(proposal.tokens, draft)
            self._give_up_if_cancelled()
            verdict = self._verify(proposal, request)
            tokens = self._commit(verdict.tokens)
        finally:
            self.target.crop(len(self._tokens) - 1)
            if drafter is not None:
                drafter.settle(len(self._tokens) - 1)
        self._sync_lookups()
        return Round(
            tokens=tokens,
            drafted=len(proposal.tokens),
            accepted=min(verdict.accepted, len(tokens)),
            steps=proposal.steps,
            catch_up_tokens=proposal.catch_up_tokens,
            scored=proposal.scored,
            confidence=proposal.confidence,
            guard_forwards=verdict.guard_forwards,
        )

    def ended(self) -> bool:
        return self._ended

    def catch_up_tokens(self, draft: int) -> int:
        """Committed tokens that a draft would absorb before its next guess, without the pending one."""
        committed = len(self._tokens)
        drafter: Drafter | None = self._lookups.get(draft) or self._models.get(draft)
        return max(0, committed - 1) if drafter is None else drafter.catch_up_tokens(committed)

    def predicted(self) -> Floats:
        if self._topic is None or not self._tokens:
            return self._expected
        return self._topic.predict(self._tokens)

    def last_token(self) -> int:
        return self._tokens[-1]

    def lookup_confidence(self, draft: int) -> float:
        lookup = self._lookups.get(draft)
        return float("nan") if lookup is None else lookup.confidence(self._tokens)

    def store(self, start: int, end: int, piece: int) -> list[KVState]:
        return [self.target.export_kv(at, at + piece) for at in range(start, end, piece)]

    def stored_tokens(self) -> tuple[int, ...]:
        return tuple(self._tokens[: self.target.length])

    def forget_draft(self, draft: int) -> None:
        self._models.pop(draft, None)

    def watch(self, cancelled: Callable[[], bool]) -> None:
        self._cancelled = cancelled

    # -- parts ---------------------------------------------------------------------------------------------------

    def _verify(self, proposal: Proposal, request: Request) -> greedy.Verdict:
        guesses, sampler = proposal.tokens, self._sampler
        if not sampler.greedy:
            return rejection.verify(
                self.target, self._tokens, guesses, proposal.probabilities, request.eos_ids, sampler
            )
        penalty = request.sampling.repetition_penalty
        before = self._tokens[:-1] if penalty != 1.0 else ()
        return greedy.verify(self.target, self._tokens[-1], guesses, request.eos_ids, self._margin, before, penalty)

    def _prefill(
        self, prompt: list[int], reuse_tokens: int, stored: Sequence[KVState], sampler: Sampler
    ) -> tuple[int, int]:
        """The first token of the answer, and how many prompt tokens were forwarded for it."""
        if reuse_tokens:
            self.target.import_kv(stored, reuse_tokens)
            logits = self.target.forward(prompt[reuse_tokens:], "last")[0]  # (vocab,)
            top = sampler.penalised(logits, prompt).topk(2).values
            if not sampler.greedy or bool(top[0] - top[1] >= self._margin):
                return sampler.choose(logits, prompt), len(prompt) - reuse_tokens
            # A near-tie: decide as plain decoding does, by a forward of the whole prompt.
        self.target.reset()
        token = sampler.choose(self.target.forward(prompt, "last")[0], prompt)
        return token, len(prompt) + (len(prompt) - reuse_tokens if reuse_tokens else 0)

    def _room(self) -> int:
        """Tokens that may still be committed."""
        assert self._request is not None
        generated = len(self._tokens) - len(self._request.prompt_ids)
        return min(self._request.max_new_tokens - generated, self.target.context_limit + 1 - len(self._tokens))

    def _commit(self, tokens: Sequence[int]) -> tuple[int, ...]:
        """Add tokens to the text, as far as no stop string ends it; returns those added."""
        request = self._request
        assert request is not None
        end = None if self._stops is None else self._stops.push(tokens)
        kept = tuple(tokens[:end])
        self._tokens.extend(kept)
        self._ended = end is not None or self._room() < 1 or kept[-1] in request.eos_ids
        return kept

    def _readable(self, draft: int | None) -> int:
        """Guesses after which the draft has read as far as it can: all tokens and all of its guesses but the last."""
        if draft is None or draft in self._lookups:
            return self.target.context_limit
        return self.drafts[draft].context_limit + 1 - len(self._tokens)

    def _embed(self, tokens: Sequence[int]) -> torch.Tensor:
        """What a draft reads; asked for before each of its forwards."""
        self._give_up_if_cancelled()
        return self.target.embed(tokens)

    def _give_up_if_cancelled(self) -> None:
        if self._cancelled():
            raise Cancelled

    def _drafter(self, draft: int, payload: Any) -> Drafter:
        lookup = self._lookups.get(draft)
        if lookup is not None:
            return lookup
        model = self._models.get(draft)
        if model is None or model.draft is not payload:
            if not isinstance(payload, Draft):
                raise ValueError(
                    f"expected draft {draft} in memory (LoadedDraft, NativeDraft), got {payload!r}: load it first"
                )
            spec = self.drafts[draft]
            model = ModelDrafter(payload, self._embed, self.target.vocab_size, spec.calibration)
            self._models[draft] = model
        return model

    def _sync_lookups(self) -> None:
        for lookup in self._lookups.values():
            lookup.sync(self._tokens)

    def _refuse_unless_known(self, tokens: Sequence[int], who: int | None) -> None:
        for token in tokens:
            if not 0 <= token < self.target.vocab_size:
                source = "the prompt" if who is None else f"draft '{self.drafts[who].name}'"
                raise UserError(
                    f"{source} has token id {token}, expected 0 to {self.target.vocab_size - 1} (the target's "
                    "vocabulary): use the target's own tokenizer and drafts distilled for it"
                )

    def _refuse_unless_fitting(self, request: Request) -> None:
        needed, limit = len(request.prompt_ids) + request.max_new_tokens - 1, self.target.context_limit
        if needed > limit:
            raise UserError(
                f"request {request.request_id}: prompt of {len(request.prompt_ids)} tokens and {request.max_new_tokens}"
                f" new ones, expected a sequence of at most {limit + 1} (the target's context): shorten one of them"
            )
        if request.stop and self._text is None:
            raise UserError(f"request {request.request_id}: stop strings need a decoder that knows the tokenizer")
        self._refuse_unless_known(request.prompt_ids, None)
