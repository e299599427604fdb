"""Whatever happens, in whatever order: bytes add up, the budget holds, what is in use stays, the text is plain."""

from __future__ import annotations

import tempfile
from pathlib import Path

import hypothesis.strategies as st
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from runtime.core import GAMMAS, Decision, Phase, Request, Victim
from runtime.memory.kv_tree import Tier
from runtime.memory.manager import Residency
from tests.session.tiny_session import DRAFT, LOOKUP_BYTES, PER_TOKEN, N, StepLoader, open_tiny
from tests.tiny import SPECS, VOCAB, plain_text

TRUNK = tuple((7 * i * i + 3 * i) % VOCAB for i in range(2 * N + 5))
PROMPTS = tuple((*TRUNK[:cut], *tail) for cut in (3, N - 1, N + 7, 2 * N + 5) for tail in ((1, 2, 3), (4,), (5, 6)))
NEW = 12

decisions = st.builds(
    Decision,
    draft=st.none() | st.integers(0, len(SPECS) - 1),
    gamma=st.sampled_from(GAMMAS),
    stop=st.integers(0, 3),
    prefetch=st.none() | st.integers(0, len(SPECS) - 2),
    kv=st.booleans(),
    victim=st.sampled_from(Victim),
    wait=st.booleans(),
).map(lambda d: d._replace(gamma=0) if d.draft is None else d)


class Serving(RuleBasedStateMachine):
    """Requests, rounds, loads that finish or fail, evictions, reuse from memory and disk, cancellation."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = tempfile.TemporaryDirectory()
        self.asked: Request | None = None
        self.tokens: list[int] = []
        self.cancelled = False

    @initialize(n_drafts=st.integers(0, 3), kv_blocks=st.integers(0, 6), disk_blocks=st.integers(0, 8))
    def open(self, n_drafts: int, kv_blocks: int, disk_blocks: int) -> None:
        self.session, loader = open_tiny(kv_blocks * N, n_drafts, disk_blocks * N, Path(self.folder.name))
        assert isinstance(loader, StepLoader)
        self.loader = loader
        self.disk_bytes = disk_blocks * N * PER_TOKEN

    def teardown(self) -> None:
        self.folder.cleanup()

    @precondition(lambda self: self.asked is None)
    @rule(prompt=st.sampled_from(PROMPTS), new=st.integers(1, NEW), end=st.none() | st.integers(0, NEW - 1))
    def ask(self, prompt: tuple[int, ...], new: int, end: int | None) -> None:
        ends = frozenset() if end is None else frozenset([plain_text(NEW, prompt)[end]])
        self.asked = Request("r", prompt, new, ends)
        self.tokens, self.cancelled = [], False
        assert self.session.start([self.asked])

    @precondition(lambda self: self.asked is not None)
    @rule(decision=decisions, look=st.booleans())
    def advance(self, decision: Decision, look: bool) -> None:
        assert self.asked is not None
        if look:
            self.session.observe()
        kept = decision.draft if self.session.phase is Phase.DECODE else None
        outcome = self.session.advance(decision)
        self.tokens += outcome.tokens
        if outcome.decision.draft is not None and outcome.round is not None:
            assert outcome.decision.draft == kept and self.session.memory.resident(outcome.decision.draft)
        if outcome.stream_finished:
            assert self.cancelled or tuple(self.tokens) == self.expected()
            self.asked = None

    def expected(self) -> tuple[int, ...]:
        assert self.asked is not None
        text = plain_text(NEW, self.asked.prompt_ids)[: self.asked.max_new_tokens]
        ends = [i for i, token in enumerate(text) if token in self.asked.eos_ids]
        return text[: ends[0] + 1] if ends else text

    @precondition(lambda self: self.asked is not None)
    @rule()
    def cancel(self) -> None:
        self.session.cancel()
        self.cancelled = True

    @precondition(lambda self: self.asked is not None and self.loader.waiting)
    @rule(fails=st.integers(0, 9))
    def finish(self, fails: int) -> None:
        self.loader.step("gone" if not fails else None)

    @rule(prompt=st.sampled_from(PROMPTS))
    def expect(self, prompt: tuple[int, ...]) -> None:
        self.session.expect(Request("later", prompt, 1))

    @rule(aside=st.integers(0, 3 * DRAFT))
    def set_aside(self, aside: int) -> None:
        self.session.set_aside(aside)

    @invariant()
    def the_text_is_plain(self) -> None:
        if self.asked is not None:
            assert tuple(self.tokens) == self.expected()[: len(self.tokens)]

    @invariant()
    def bytes_add_up_within_the_budget(self) -> None:
        if not hasattr(self, "session"):
            return
        memory = self.session.memory
        there = [s.residency is not Residency.STORED for s, d in zip(memory.states, SPECS, strict=True) if d.loadable]
        blocks = sum(node.tier is not Tier.DISK for node in memory.kv.tree.nodes())
        assert memory.used_bytes == LOOKUP_BYTES + sum(there) * DRAFT + blocks * N * PER_TOKEN
        assert memory.used_bytes <= memory.peak_bytes <= memory.config.budget_bytes
        assert memory.kv.disk_bytes <= self.disk_bytes

    @invariant()
    def nothing_is_held_between_requests(self) -> None:
        if hasattr(self, "session") and self.asked is None and not self.loader.waiting:
            self.session.memory.poll()
            assert self.session.memory.kv.held_bytes == 0


TestServing = Serving.TestCase
TestServing.settings = settings(max_examples=30, stateful_step_count=35, deadline=None)
