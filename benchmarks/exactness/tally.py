"""What an exactness run counts, and how it is reported."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, fields
from typing import Any, NamedTuple

from runtime.core import Counters


class Difference(NamedTuple):
    """The first place where two texts part.

    Attributes:
        prompt_id: The request.
        kind: ``draft``: the served text against plain decoding. ``trace``: plain decoding against the recorded text.
            ``repeat``: plain decoding against itself.
        position: Index of the token in the answer.
        expected: Token id of the reference there; -1 if it has ended.
        got: Token id of the other text there; -1 if it has ended.
        gap: Logits between the target's two best tokens there, in plain decoding.
        prompt_tokens: Length of the prompt.
    """

    prompt_id: str
    kind: str
    position: int
    expected: int
    got: int
    gap: float
    prompt_tokens: int


KV_COUNTERS = ("kv_hit_tokens", "kv_disk_tokens")


@dataclass
class Tally:
    """Running totals. Times in seconds.

    Attributes:
        tokens: Tokens compared: of a text that differs, those in front of the first difference.
        committed: Tokens committed.
        reused_requests: Requests admitted on a stored prefix.
        waits: Rounds that stalled for a draft.
        swaps: Rounds with another draft than the round before in the same text.
        guard_forwards: Forwards of the guard: width-1 forwards in rounds, whole prompts at admission.
        guard_s: Time of these, and of the forwards that do again what the guard cropped away.
        serving_s: Time of all steps of all sessions.
        reference_s: Time of plain decoding for references and controls.
        controls: Requests decoded plain twice without a session.
    """

    sessions: int = 0
    streams: int = 0
    requests: int = 0
    tokens: int = 0
    committed: int = 0
    rounds: int = 0
    drafted: int = 0
    accepted: int = 0
    loads: int = 0
    evictions: int = 0
    reused_requests: int = 0
    kv_hit_tokens: int = 0
    kv_disk_tokens: int = 0
    waits: int = 0
    swaps: int = 0
    illegal: int = 0
    guard_forwards: int = 0
    guard_s: float = 0.0
    serving_s: float = 0.0
    reference_s: float = 0.0
    controls: int = 0
    differences: list[Difference] = field(default_factory=list)

    def add(self, other: Tally) -> None:
        """Take in what another worker counted."""
        for name in (entry.name for entry in fields(self)):
            setattr(self, name, getattr(self, name) + getattr(other, name))

    def close_session(self, counters: Counters) -> None:
        """Take in the totals of a session that ends."""
        self.sessions += 1
        for name in ("committed", "rounds", "drafted", "accepted", "loads", "evictions", *KV_COUNTERS, "illegal"):
            setattr(self, name, getattr(self, name) + getattr(counters, name))

    def of_kind(self, kind: str) -> list[Difference]:
        """The differences of one kind."""
        return [difference for difference in self.differences if difference.kind == kind]

    @property
    def exact(self) -> bool:
        """Whether every served text is plain decoding's, and plain decoding repeats itself."""
        return not self.of_kind("draft") and not self.of_kind("repeat")

    @property
    def guard_share(self) -> float:
        """Time of the guard / time of serving."""
        return self.guard_s / self.serving_s if self.serving_s else 0.0

    @property
    def guards_per_1000(self) -> float:
        """Guard forwards for 1,000 committed tokens."""
        return 1000.0 * self.guard_forwards / max(self.committed, 1)

    def to_json(self) -> dict[str, Any]:
        """All totals, with the ratios."""
        data = {name: value for name, value in asdict(self).items() if name != "differences"}
        data |= {"guards_per_1000_tokens": self.guards_per_1000, "guard_share": self.guard_share}
        data |= {"mismatches": len(self.of_kind("draft")), "exact": self.exact}
        data["differences"] = [difference._asdict() for difference in self.differences]
        return data

    def lines(self) -> list[str]:
        """The report for people."""
        return [
            f"tokens compared   {self.tokens:,} in {self.requests:,} requests, {self.streams} streams, "
            f"{self.sessions} sessions",
            f"rounds            {self.rounds:,}, drafted {self.drafted:,}, accepted {self.accepted:,}, "
            f"swaps {self.swaps:,}, waits {self.waits:,}",
            f"memory            {self.loads:,} loads, {self.evictions:,} evictions, {self.kv_hit_tokens:,} tokens from "
            f"stored KV in {self.reused_requests:,} requests, {self.kv_disk_tokens:,} of them from disk",
            f"guard             {self.guard_forwards:,} forwards, {self.guards_per_1000:.2f} per 1,000 tokens, "
            f"{self.guard_s:.1f} s of {self.serving_s:.1f} s ({self.guard_share:.2%})",
            f"controls          {self.controls} requests decoded plain twice, {len(self.of_kind('repeat'))} unlike "
            f"themselves, {len(self.of_kind('trace'))} texts unlike the recorded ones",
            f"mismatches        {len(self.of_kind('draft'))}",
            *(f"  {difference}" for difference in self.differences),
        ]
