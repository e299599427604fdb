"""The vocabulary that everything else speaks: requests, decisions, outcomes.

A *round* is: the draft proposes some tokens, the target verifies them in one forward, the accepted prefix plus one
token of the target's own is committed. Counters obey ``committed == accepted + 1`` in every round, but for one that
ends the text with an accepted guess: ``committed == accepted``.
"""

from __future__ import annotations

import enum
import math
from dataclasses import dataclass, field
from typing import NamedTuple

from runtime.errors import UserError

GAMMAS: tuple[int, ...] = (1, 2, 4, 8)
"""Draft lengths a decision may name; 0 (plain decoding) is the absence of a draft."""

STOP_LEVELS: tuple[float, ...] = (0.0, 0.2, 0.35, 0.5)
"""Calibrated probability that a guess is reached and accepted, below which a draft stops guessing: off … high."""

BLOCK_TOKENS = 32
"""Tokens of a block of stored KV. What is left of a text behind its last whole block is not stored."""

ENGINE_WORKSPACE_BYTES = 64 << 20
"""What PyTorch and oneDNN take for drafts beyond weights and KV, once, however many there are: code for shapes, buffers
of the allocator. Measured with ``python -m benchmarks.memory``."""

DEFAULT_DECISION_INTERVAL = 4
"""Rounds between two decisions about prefetching."""


class Phase(enum.IntEnum):
    """What the session wants decided next."""

    ADMIT = 0
    """A request has arrived: reuse a stored KV prefix or not; then the prompt is prefilled."""
    DECODE = 1
    """One round."""
    COMPLETE = 2
    """The request is finished: keep its KV or not."""


class StopRule(enum.IntEnum):
    """What is compared with the stop level, see ``runtime.decoding.stop_rule``."""

    REACH = 0
    """The calibrated probability that a guess is reached and accepted. A policy knows no other rule."""
    TOKEN = 1
    """The draft's raw probability of the guess."""
    ENTROPY = 2
    """AdaEDL's lower bound on the probability of acceptance."""


class Victim(enum.IntEnum):
    """Which class gives up memory first when room is needed."""

    DRAFTS = 0
    KV = 1


@dataclass(frozen=True)
class Sampling:
    """How the next token is chosen from the target's logits. The filters apply in the order of the fields.

    Attributes:
        repetition_penalty: Logits of tokens that already occur (prompt included) are divided by this if positive,
            multiplied if negative; 1 = off.
        temperature: Logits are divided by this; 0 = greedy, the likeliest token always.
        top_k: Only the k likeliest tokens; 0 = off.
        top_p: Only the likeliest tokens that together reach this probability; 1 = off.
        min_p: Only tokens at least this many times as likely as the likeliest; 0 = off.
        seed: Makes a run repeatable with the same decisions; None = a fresh one.
        draft_temperature: Temperature of the drafts' own guesses; 0 = their likeliest token; None = ``temperature``.
    """

    repetition_penalty: float = 1.0
    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    seed: int | None = None
    draft_temperature: float | None = None

    def __post_init__(self) -> None:
        for name, fits, expected in (
            ("repetition_penalty", 0.0 < self.repetition_penalty < math.inf, "above 0"),
            ("temperature", 0.0 <= self.temperature < math.inf, "at least 0"),
            ("top_k", self.top_k >= 0, "at least 0"),
            ("top_p", 0.0 < self.top_p <= 1.0, "above 0 and at most 1"),
            ("min_p", 0.0 <= self.min_p <= 1.0, "from 0 to 1"),
            (
                "seed",
                self.seed is None or (type(self.seed) is int and -(2**63) <= self.seed < 2**64),
                "a whole number of 64 bits",
            ),
            (
                "draft_temperature",
                self.draft_temperature is None or 0.0 <= self.draft_temperature < math.inf,
                "at least 0",
            ),
        ):
            if not fits:
                raise UserError(f"{name} must be {expected}, got {getattr(self, name)}")

    @property
    def greedy(self) -> bool:
        """Whether the likeliest token is always taken."""
        return self.temperature == 0.0


GREEDY = Sampling()


@dataclass(frozen=True)
class Request:
    """One prompt to be answered.

    Attributes:
        request_id: Name for logs and reports.
        prompt_ids: Prompt token ids, at least one.
        max_new_tokens: Most tokens to commit.
        eos_ids: Tokens that end the text (the ending token is committed).
        domain: Where the prompt comes from, for reports only; controllers never see it.
        sampling: How tokens are chosen.
        stop: Strings that end the text; the token that completes one is the last that is committed.
    """

    request_id: str
    prompt_ids: tuple[int, ...]
    max_new_tokens: int
    eos_ids: frozenset[int] = frozenset()
    domain: str = ""
    sampling: Sampling = GREEDY
    stop: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not self.prompt_ids:
            raise ValueError(f"request {self.request_id}: expected at least one prompt token, got none")
        if self.max_new_tokens < 1:
            raise ValueError(f"request {self.request_id}: max_new_tokens must be at least 1, got {self.max_new_tokens}")


class Decision(NamedTuple):
    """One joint decision. Fields without a meaning in the current phase are ignored.

    Attributes:
        draft: Index of the draft that guesses in this round; None = plain.
        gamma: Most tokens guessed, one of ``GAMMAS``; 0 with ``draft=None``. Baselines may name any length up to the
            longest.
        stop: Index into ``STOP_LEVELS``.
        prefetch: Index of a draft to load in the background; None = nothing.
        kv: ADMIT: reuse the stored prefix. COMPLETE: retain the KV of this request.
        victim: Which class gives up memory first if room is needed.
        wait: Load ``draft`` now and stall until it is there. Only baselines that load on demand use it.
        rule: What is compared with the stop level. Only baselines use another than ``REACH``.
    """

    draft: int | None = None
    gamma: int = 0
    stop: int = 0
    prefetch: int | None = None
    kv: bool = False
    victim: Victim = Victim.DRAFTS
    wait: bool = False
    rule: StopRule = StopRule.REACH


PLAIN = Decision()


class Round(NamedTuple):
    """What one propose-verify-commit round did.

    Attributes:
        tokens: Committed token ids, ``accepted + 1`` of them (fewer only where the text ended).
        drafted: Tokens the target verified.
        accepted: Of those, the matching prefix.
        steps: Forwards of the draft, catch-up excluded: one a guess, none for a look-up.
        catch_up_tokens: Committed tokens the draft had not seen and absorbed first.
        scored: (matches, positions) of the draft's greedy guess over the absorbed tokens: free evidence.
        confidence: Calibrated probability of the draft's first guess; NaN if it guessed nothing.
        guard_forwards: Width-1 forwards that re-decided a near-tie.
    """

    tokens: tuple[int, ...]
    drafted: int = 0
    accepted: int = 0
    steps: int = 0
    catch_up_tokens: int = 0
    scored: tuple[int, int] = (0, 0)
    confidence: float = float("nan")
    guard_forwards: int = 0

    @property
    def evidence(self) -> tuple[int, int]:
        """(right guesses, positions) that a round and its catch-up say of the draft; behind a cut nothing counts."""
        rejected = self.drafted > self.accepted and len(self.tokens) > self.accepted  # no stop string cut it
        return self.accepted + self.scored[0], self.accepted + rejected + self.scored[1]


@dataclass(slots=True)
class KVRecord:
    """What stored KV did for one request, and what it cost. Times in seconds.

    Attributes:
        request_id: The request.
        usable_tokens: Stored prefix that could have been used.
        reused_tokens: Of these, taken (``reuse``); 0 = ``bypass``.
        disk_tokens: Of the tokens taken, read from disk.
        wait_s: Time that reading from disk held the request up.
        admit_s: Time to the first token, all in all.
        saved_s: Estimated time that a prefill of the whole prompt would have taken, less ``admit_s``; negative if the
            stored prefix cost more than it saved. 0 without reuse.
        retained_tokens: Tokens newly kept in memory at the end (``retain``); 0 = ``drop``, or all were there.
        retained_bytes: Memory they take.
        retain_s: Time of copying them out.
    """

    request_id: str
    usable_tokens: int = 0
    reused_tokens: int = 0
    disk_tokens: int = 0
    wait_s: float = 0.0
    admit_s: float = 0.0
    saved_s: float = 0.0
    retained_tokens: int = 0
    retained_bytes: int = 0
    retain_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one ``advance`` did, with its cost.

    Attributes:
        phase: The phase the decision was taken in.
        decision: The decision as carried out (after the fallback rule).
        seconds: Time this step took, stalls included.
        plain_seconds: Time plain decoding without any reuse would need for the same tokens: one width-1 forward each,
            the whole prompt's prefill for the first.
        stall_s: Part of ``seconds`` spent waiting for a load.
        round: Counters of the round; None outside DECODE. ADMIT commits the first token itself.
        tokens: Token ids committed in this step.
        prefill_tokens: Prompt tokens really forwarded (ADMIT).
        reused_tokens: Prompt tokens taken from a stored prefix (ADMIT).
        guard_forwards: Forwards of a whole prompt that re-decided a near-tie behind a stored prefix (ADMIT).
        illegal: Parts of the decision that were not legal and fell back.
        request_finished: The COMPLETE step of a request.
        stream_finished: Nothing is left to do.
        kv: What stored KV did for the request (COMPLETE).
        cancelled: The request was given up in this step: nothing more is committed, COMPLETE is next.
    """

    phase: Phase
    decision: Decision
    seconds: float
    plain_seconds: float
    stall_s: float = 0.0
    round: Round | None = None
    tokens: tuple[int, ...] = ()
    prefill_tokens: int = 0
    reused_tokens: int = 0
    guard_forwards: int = 0
    illegal: int = 0
    request_finished: bool = False
    stream_finished: bool = False
    kv: KVRecord | None = None
    cancelled: bool = False

    @property
    def committed(self) -> int:
        """Tokens added to the text."""
        return len(self.tokens)


@dataclass(frozen=True)
class DraftSpec:
    """What the scheduler must know of a draft, whatever engine runs it.

    Attributes:
        name: Unique in the zoo.
        bytes: Compute memory it takes while resident: weights and the KV reserved for it.
        loadable: False for a draft without weights (lookup): always resident, never evicted.
        context_limit: Longest context it can read, in tokens.
        calibration: Raw confidence to probability of acceptance, as (slope, offset) on the logit.
        expected: Mean acceptance on the training split, the estimate before any evidence.
    """

    name: str
    bytes: int
    loadable: bool = True
    context_limit: int = 8192
    calibration: tuple[float, float] = (1.0, 0.0)
    expected: float = 0.5


@dataclass(frozen=True)
class MemoryConfig:
    """The one byte budget and what is reserved in it.

    Attributes:
        budget_bytes: Resident drafts, their KV, KV entries held and the verify workspace together.
        workspace_bytes: Reserved for logits of the widest verify forward, and for what the engine takes for drafts
            beyond their weights and KV.
        kv_bytes_per_token: Size of the target's KV for one token.
        disk_bytes: Room for copies of stored KV on disk, beyond the budget; 0 = none are written.
    """

    budget_bytes: int
    workspace_bytes: int = 0
    kv_bytes_per_token: int = 1
    disk_bytes: int = 0


@dataclass
class Counters:
    """Running totals of a session. Times in seconds, sizes in bytes.

    They obey ``committed == admitted + accepted + corrections``, in total and for every request, and
    ``accepted <= drafted``; the session checks this after every step.

    Attributes:
        rounds: Rounds done.
        drafted: Guesses that the target verified.
        accepted: Of those, committed: what speculation gained. It says nothing of what it cost, see ``seconds``.
        corrections: Tokens of the target's own that rounds committed, in place of a rejected guess or behind the last
            accepted one (a bonus): one a round, none where the text ended with an accepted guess.
        admitted: Requests whose first token was committed; prefill yields it, no round does.
        committed: Tokens of all texts.
        cancelled: Requests that were cancelled.
    """

    rounds: int = 0
    drafted: int = 0
    accepted: int = 0
    corrections: int = 0
    admitted: int = 0
    committed: int = 0
    cancelled: int = 0
    seconds: float = 0.0
    stall_s: float = 0.0
    loads: int = 0
    wasted_loads: int = 0
    evictions: int = 0
    kv_hit_tokens: int = 0
    kv_disk_tokens: int = 0
    kv_saved_s: float = 0.0
    kv_retained_bytes: int = 0
    prefill_tokens: int = 0
    guard_forwards: int = 0
    illegal: int = 0
    peak_budget_bytes: int = 0
    ttft_s: list[float] = field(default_factory=list)

    @property
    def acceptance_rate(self) -> float:
        """Share of the verified guesses that were accepted; 0 if none was."""
        return self.accepted / self.drafted if self.drafted else 0.0
