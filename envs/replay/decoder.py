"""The decoder that replays traces: exact about tokens, priced by a profile, on a virtual clock.

With n = prompt + committed tokens of the request in hand, the rules are those of the real models:

* The target's cache holds the first n - 1 tokens; the last committed one is always pending and heads the verify.
* A draft's cache holds the first ``held`` tokens, 0 when its request begins. Its first forward of a round takes the
  n - held >= 1 tokens it lacks and yields the first guess; every further guess is one forward of width 1 over the
  guess before. With s guesses made and a of them accepted it then holds ``n + min(a, s - 1)``: the last guess was
  never forwarded. So n - held - 1 tokens beyond the pending one (``catch_up_tokens``) are 1 after a round whose
  guesses were all sent and accepted, 0 after any other round of that draft.
* Behind each guess the product of calibrated probabilities of the round's guesses is compared with the threshold: if
  it is lower, that guess is withheld (it counts in ``steps`` only) and guessing stops. Guessing also stops behind a
  guess that ends the text.
* ``scored`` counts the draft's guesses *inside* a catch-up: of output tokens that it absorbs, predicted from absorbed
  tokens. The guess for the first absorbed token came out of an earlier forward and was scored then (or withheld).
* Nothing is committed or counted as accepted behind the end of the text.

Not replayed: width-1 forwards that re-decide near-ties (``guard_forwards`` is 0).
"""

from __future__ import annotations

import math
from typing import Any

from envs.replay.bank import Floats, Lookup, Replayed, TraceBank
from envs.replay.loader import VirtualLoader
from envs.traces import RUN_ON
from runtime.core import Request, Round
from runtime.decoding.base import Prefill


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
        self._loadable = tuple(draft.loadable for draft in bank.drafts)
        self._text: Replayed | None = None
        self._output: tuple[int, ...] = ()
        self._prompt = self._generated = self._end = 0
        self._eos_ids: frozenset[int] = frozenset()
        self._held = [0] * len(bank.drafts)
        self._lookups: dict[int, Lookup] = {}
        self._looked: dict[int, float] = {}

    def begin(self, request: Request, reuse_tokens: int, stored: Any) -> Prefill:
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
        self._end = min(len(output), request.max_new_tokens)
        self._generated, self._eos_ids = 1, request.eos_ids
        self._held = [0] * len(self._held)
        self._lookups.clear()
        self._looked.clear()
        restore_s = self._costs.model.kv_restore_s(reuse_tokens) if reuse_tokens else 0.0
        self._loader.work(restore_s + self._costs.model.prefill_s(prompt - reuse_tokens, reuse_tokens))
        return Prefill(output[0], prompt - reuse_tokens, reuse_tokens)

    def round(self, draft: int | None, payload: Any, gamma: int, threshold: float) -> Round:
        if self._generated >= self._end:
            raise ValueError(f"expected a text in hand, got one at its end ({self._end} tokens): call begin() first")
        if draft is None:
            return self._commit(0.0, Round((), 0, 0))
        if not 1 <= gamma <= RUN_ON + 1:
            raise ValueError(f"gamma must be 1 to {RUN_ON + 1}, got {gamma}")
        if not self._loadable[draft]:
            return self._lookup_round(draft, gamma, threshold)
        return self._model_round(draft, gamma, threshold)

    def catch_up_tokens(self, draft: int) -> int:
        if not self._loadable[draft]:
            return 0
        return max(0, self._prompt + self._generated - self._held[draft] - 1)

    def predicted(self) -> Floats:
        if self._text is None or (rows := self._text.predicted) is None:
            return self._bank.expected
        row: Floats = rows[self._generated - 1]
        return row

    def lookup_confidence(self, draft: int) -> float:
        if self._loadable[draft]:
            return math.nan
        found = self._looked.get(draft)
        if found is None:
            tokens, confidence = self._lookup(draft).propose(1)
            found = self._looked[draft] = self._calibrated(draft, confidence) if tokens else 0.0
        return found

    def store(self) -> None:
        """Take the time of copying the KV out; there is nothing to copy."""
        self._loader.work(self._costs.model.kv_store_s(self._prompt + self._generated - 1))

    def stored_tokens(self) -> tuple[int, ...]:
        if self._text is None:
            return ()
        return (*self._text.trace.prompt_ids, *self._output[: self._generated - 1])

    def forget_draft(self, draft: int) -> None:
        self._held[draft] = 0

    def _model_round(self, draft: int, gamma: int, threshold: float) -> Round:
        text = self._text
        assert text is not None, "a round has a text"
        view = text.views[draft]
        assert view is not None, "a draft with weights has a trace"
        table = self._bank.tables[draft]
        at, context = self._generated, self._prompt + self._generated
        held = self._held[draft]
        run, confidence, length = view.run[at], view.confidence, len(self._output)
        behind = view.start[at + run] - run - 1 if at + run < length else 0  # run_on[behind + k] belongs to guess k
        sent = steps = 0
        first = reach = 1.0
        while sent < gamma:
            if sent <= run:
                code = confidence[at + sent]
            elif behind + sent < view.start[at + run + 1]:
                code = view.run_on[behind + sent]
            else:  # it guessed an end of the text
                break
            steps += 1
            reach *= table[code]
            if steps == 1:
                first = reach
            if reach < threshold:
                break
            sent += 1
            if sent <= run and at + sent == length:
                break
        accepted = min(sent, run)
        self._held[draft] = context + min(accepted, steps - 1)
        absorbed_from = max(0, held + 1 - self._prompt)
        scored = (0, 0)
        if absorbed_from < at:
            scored = (view.matches[at] - view.matches[absorbed_from], at - absorbed_from)
        seconds = self._costs.draft_s(draft, context - held)
        if steps > 1:
            seconds += (steps - 1) * self._costs.draft_s(draft, 1)
        return self._commit(seconds, Round((), sent, accepted, steps, context - held - 1, scored, first))

    def _lookup_round(self, draft: int, gamma: int, threshold: float) -> Round:
        tokens, raw = self._lookup(draft).propose(gamma)
        seconds = self._costs.draft_s(draft, 1)
        if not tokens:
            return self._commit(seconds, Round((), 0, 0))
        probability = self._calibrated(draft, raw)
        at, output = self._generated, self._output
        sent = steps = accepted = 0
        reach = 1.0
        for token in tokens[:gamma]:
            steps += 1
            reach *= probability
            if reach < threshold:
                break
            if accepted == sent and at + sent < self._end and token == output[at + sent]:
                accepted += 1
            sent += 1
            if token in self._eos_ids:
                break
        return self._commit(seconds, Round((), sent, accepted, steps, confidence=probability))

    def _commit(self, draft_s: float, done: Round) -> Round:
        """Pay for a round, commit its tokens, and complete its record."""
        begin = self._generated
        end = min(begin + done.accepted + 1, self._end)
        self._loader.work(draft_s + self._costs.round_s(1 + done.drafted, self._prompt + begin - 1))
        tokens = self._output[begin:end]
        self._generated = end
        for lookup in self._lookups.values():
            lookup.observe(tokens)
        self._looked.clear()
        return Round(tokens, *done[1:])

    def _lookup(self, draft: int) -> Lookup:
        lookup = self._lookups.get(draft)
        if lookup is None:
            assert self._text is not None, "a lookup has a text to look at"
            lookup = self._lookups[draft] = self._bank.new_lookup()
            lookup.observe((*self._text.trace.prompt_ids, *self._output[: self._generated]))
        return lookup

    def _calibrated(self, draft: int, raw: float) -> float:
        slope, offset = self._bank.drafts[draft].calibration
        clipped = min(max(raw, 1e-5), 1.0 - 1e-6)
        return 1.0 / (1.0 + math.exp(-(slope * math.log(clipped / (1.0 - clipped)) + offset)))
