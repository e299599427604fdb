"""The decoder that replays traces: exact about tokens, priced by a profile, on a virtual clock.

With n = prompt + committed tokens of the request in hand, the rules are those of the real models (see
``runtime.decoding.drafters.base``):

* The target's cache holds the first n - 1 tokens; the last committed one is always pending and heads the verify.
* A draft's cache holds the first ``held`` tokens, 0 when its request begins. Its first forward of a round takes the
  n - held >= 1 tokens it lacks and yields the first guess; every further guess is one forward of width 1 over the
  guess before. With s guesses made and a of them accepted it then holds ``n + min(a, s - 1)``: the last guess was
  never forwarded. So n - held - 1 tokens beyond the pending one (``catch_up_tokens``) are 1 after a round whose
  guesses were all accepted, 0 after any other round of that draft.
* Behind each guess the stop rule is asked (``runtime.decoding.stop_rule``; by ``REACH`` the product of calibrated
  probabilities of the round's guesses is compared with the threshold): if it fails, guessing stops there. Guessing also
  stops behind a guess that ends the text.
* ``scored`` counts the draft's guesses *inside* a catch-up: of output tokens that it absorbs, predicted from absorbed
  tokens. The guess for the first absorbed token came out of an earlier forward and was scored then.
* Nothing is committed or counted as accepted behind the end of the text.
* A draft without weights is not recorded: the real ``LookupDrafter`` runs. One look-up is one ``forward`` of width 1
  in the profile.

Not replayed: width-1 forwards that re-decide near-ties (``guard_forwards`` is 0); guesses behind a wrong one that a
per-token rule would let go on though their raw probabilities multiply to less than ``envs.guesses.FLOOR``.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache
from typing import Any

from envs.replay.bank import DraftView, Floats, Replayed, TraceBank
from envs.replay.loader import VirtualLoader
from envs.trace_code import calibrated_table
from envs.traces import RUN_ON
from runtime.core import Request, Round, StopRule
from runtime.decoding.base import Prefill
from runtime.decoding.drafters.lookup import LookupDrafter
from runtime.decoding.stop_rule import guess_score
from runtime.errors import UserError


class ReplayDecoder:
    """A ``Decoder`` over recorded texts.

    Args:
        bank: Texts and costs, shared.
        loader: Shares the device with the decoder; its clock is the decoder's.
    """

    def __init__(self, bank: TraceBank, loader: VirtualLoader) -> None:
        self._bank = bank
        self._costs = bank.costs
        self._loader = loader
        self._text: Replayed | None = None
        self._output: tuple[int, ...] = ()
        self._tokens: list[int] = []  # prompt and committed
        self._prompt = self._generated = self._end = self._most = 0
        self._eos_ids: frozenset[int] = frozenset()
        self._held = [0] * len(bank.drafts)
        self._lookups = {
            index: LookupDrafter(draft.calibration) for index, draft in enumerate(bank.drafts) if not draft.loadable
        }

    def begin(self, request: Request, reuse_tokens: int, stored: Sequence[Any]) -> Prefill:
        if not request.sampling.greedy or request.sampling.repetition_penalty != 1.0 or request.stop:
            raise UserError(
                f"request {request.request_id}: a trace holds the greedy text; sampling, repetition penalty and stop "
                "strings need the real models"
            )
        text = self._bank.text(request.prompt_ids, request.request_id)
        prompt, output = len(request.prompt_ids), text.trace.output_ids
        if not 0 <= reuse_tokens < prompt:
            raise ValueError(f"request {request.request_id}: can reuse 0 to {prompt - 1} tokens, got {reuse_tokens}")
        if request.max_new_tokens > len(output) and output[-1] not in request.eos_ids:
            raise ValueError(
                f"request {request.request_id}: at most {len(output)} tokens were recorded, got max_new_tokens "
                f"{request.max_new_tokens}: ask for fewer"
            )
        self._text, self._output, self._prompt = text, output, prompt
        self._tokens = [*request.prompt_ids, output[0]]
        self._most = request.max_new_tokens
        self._end = min(len(output), request.max_new_tokens)
        self._generated, self._eos_ids = 1, request.eos_ids
        self._held = [0] * len(self._held)
        for lookup in self._lookups.values():
            lookup.begin()
            lookup.sync(self._tokens)
        restore_s = self._costs.model.kv_restore_s(reuse_tokens) if reuse_tokens else 0.0
        self._loader.work(restore_s + self._costs.model.prefill_s(prompt - reuse_tokens, reuse_tokens))
        return Prefill(output[0], prompt - reuse_tokens, reuse_tokens)

    def round(
        self, draft: int | None, payload: Any, gamma: int, threshold: float, rule: StopRule = StopRule.REACH
    ) -> Round:
        if self._generated >= self._end:
            raise ValueError(f"expected a text in hand, got one at its end ({self._end} tokens): call begin() first")
        gamma = min(gamma, self._most - self._generated - 1)
        if draft is None or gamma < 1:
            return self._commit(0.0, Round((), 0, 0))
        if gamma > RUN_ON + 1:
            raise ValueError(f"gamma must be at most {RUN_ON + 1}, got {gamma}: drafts were followed no further")
        if draft in self._lookups:
            return self._lookup_round(draft, gamma, threshold, rule)
        return self._model_round(draft, gamma, threshold, rule)

    def catch_up_tokens(self, draft: int) -> int:
        if draft in self._lookups:
            return 0
        return max(0, self._prompt + self._generated - self._held[draft] - 1)

    def predicted(self) -> Floats:
        if self._text is None or (rows := self._text.predicted) is None:
            return self._bank.expected
        row: Floats = rows[self._generated - 1]
        return row

    def last_token(self) -> int:
        return self._tokens[-1]

    def lookup_confidence(self, draft: int) -> float:
        lookup = self._lookups.get(draft)
        return math.nan if lookup is None else lookup.confidence(self._tokens)

    def store(self, start: int, end: int, piece: int) -> list[None]:
        """Take the time of copying the KV out; there is nothing to copy."""
        self._loader.work(self._costs.model.kv_store_s(end - start))
        return [None] * ((end - start) // piece)

    def ended(self) -> bool:
        return self._generated >= self._end

    def stored_tokens(self) -> tuple[int, ...]:
        return tuple(self._tokens[:-1])

    def forget_draft(self, draft: int) -> None:
        self._held[draft] = 0

    def _model_round(self, draft: int, gamma: int, threshold: float, rule: StopRule) -> Round:
        text = self._text
        assert text is not None, "a round has a text"
        view = text.views[draft]
        assert view is not None, "a draft with weights has a trace"
        at, context, held = self._generated, self._prompt + self._generated, self._held[draft]
        calibrated = self._bank.tables[draft]
        joint = rule is StopRule.REACH
        sent = _guess(view, at, gamma, calibrated if joint else _raw_scores(rule), joint, threshold)
        run = view.run[at]
        accepted = min(sent, run)
        self._held[draft] = context + min(accepted, sent - 1)
        absorbed_from = max(0, held + 1 - self._prompt)
        scored = (0, 0)
        if absorbed_from < at:
            scored = (view.matches[at] - view.matches[absorbed_from], at - absorbed_from)
        seconds = self._costs.draft_s(draft, context - held)
        if sent > 1:
            seconds += (sent - 1) * self._costs.draft_s(draft, 1)
        return self._commit(
            seconds, Round((), sent, accepted, sent, context - held - 1, scored, calibrated[view.confidence[at]])
        )

    def _lookup_round(self, draft: int, gamma: int, threshold: float, rule: StopRule) -> Round:
        lookup = self._lookups[draft]
        proposal = lookup.propose(self._tokens, self._prompt, gamma, threshold, self._eos_ids, None, rule)
        accepted = 0
        truth = self._output[self._generated : self._end]
        for token, right in zip(proposal.tokens, truth, strict=False):
            if token != right:
                break
            accepted += 1
        done = Round((), len(proposal.tokens), accepted, proposal.steps, confidence=proposal.confidence)
        return self._commit(self._costs.draft_s(draft, 1), done)

    def _commit(self, draft_s: float, done: Round) -> Round:
        """Pay for a round, commit its tokens, and complete its record."""
        begin = self._generated
        end = min(begin + done.accepted + 1, self._end)
        self._loader.work(draft_s + self._costs.round_s(1 + done.drafted, self._prompt + begin - 1))
        tokens = self._output[begin:end]
        self._generated = end
        self._tokens.extend(tokens)
        for lookup in self._lookups.values():
            lookup.sync(self._tokens)
        return Round(tokens, *done[1:])


def _guess(view: DraftView, at: int, gamma: int, scores: Sequence[float], joint: bool, threshold: float) -> int:
    """How many of up to ``gamma`` guesses a draft makes from output position ``at``.

    Args:
        view: The draft along the text.
        at: Position of the first guess.
        gamma: Most guesses.
        scores: Score of every coded confidence.
        joint: Whether scores are multiplied: the rule is ``REACH``. This is ``runtime.decoding.stop_rule.Confidence``,
            written out for speed.
        threshold: Score below which guessing ends.
    """
    run, confidence, length = view.run[at], view.confidence, len(view.run)
    behind = view.start[at + run] - run - 1 if at + run < length else 0  # run_on[behind + k] belongs to guess k
    sent = 0
    reached = 1.0
    while sent < gamma:
        if sent <= run:
            code = confidence[at + sent]
        elif behind + sent < view.start[at + run + 1]:
            code = view.run_on[behind + sent]
        else:  # it guessed an end of the text
            break
        reached = reached * scores[code] if joint else scores[code]
        sent += 1
        if reached < threshold or (sent <= run and at + sent == length):  # unsure, or a right guess ended the text
            break
    return sent


@cache
def _raw_scores(rule: StopRule) -> list[float]:
    """Score of every coded confidence by a rule that does not ask for calibration."""
    return [guess_score(rule, top, (1.0, 0.0)) for top in calibrated_table(1.0, 0.0)]
