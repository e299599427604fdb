"""What the budget counts, and what is left of a draft that was given up."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import pytest
import torch

from agents.setup import memory_budget
from benchmarks.exactness.serving import Checker
from benchmarks.exactness.tally import Tally
from envs.workload import Item
from runtime.core import ENGINE_WORKSPACE_BYTES, GAMMAS, MemoryConfig, Request, Victim
from runtime.decoding.greedy import verify
from runtime.memory.base import Job
from runtime.memory.manager import MemoryManager
from tests.factories import HandLoader, make_costs, make_memory_config, make_specs, make_traces
from tests.session.tiny_session import StepLoader, guess, open_tiny, serve, text
from tests.tiny import KINDS, VOCAB, draft, plain_text, request, target
from tests.tiny_zoo import TinyZoo

FLOAT = 4


def test_the_workspace_is_that_of_the_widest_verification(tiny_zoo: TinyZoo) -> None:
    """vllm #37521, #48037: profiled at one token, out of memory at one and all guesses."""
    config = memory_budget(tiny_zoo.config(), tiny_zoo.zoo)
    model, widest = target(), 0
    forward = model.forward

    def watching(tokens: Any, logits: Any) -> torch.Tensor:
        nonlocal widest
        rows = forward(tokens, logits)
        widest = max(widest, rows.numel() * rows.element_size())
        return rows

    model.forward = watching  # type: ignore[method-assign]
    forward([1, 2, 3], "last")
    verify(model, 4, range(5, 5 + max(GAMMAS)), (), 1e-3)
    assert widest == config.workspace_bytes - ENGINE_WORKSPACE_BYTES == (max(GAMMAS) + 1) * VOCAB * FLOAT


def test_a_draft_is_counted_with_the_kv_it_may_grow_to(tiny_zoo: TinyZoo) -> None:
    """vllm #9995, #14067: nobody counted the draft's weights and its KV."""
    for reserve in (64, 128):
        for drafted, spec in zip(tiny_zoo.zoo.drafts, tiny_zoo.zoo.specs(reserve), strict=True):
            if drafted.file:
                assert spec.bytes == drafted.bytes + reserve * drafted.kv_bytes_per_token
                assert drafted.bytes > 0 and drafted.kv_bytes_per_token > 0
                assert spec.context_limit == reserve  # it never reads further, so its KV never grows further


def test_what_is_counted_leaves_no_room_for_more() -> None:
    """vllm #9995, #14067: workspace, drafts on their way and stored KV are all in the one sum."""
    loader = HandLoader()
    config = make_memory_config(100 + 2 * 1000 + 320)  # workspace, two drafts, one block of KV
    manager = MemoryManager(config, make_specs(("a", "b", "c")), loader, make_costs(("a", "b", "c")))
    assert manager.used_bytes == config.workspace_bytes == 100
    assert manager.prefixes.retain(tuple(range(32)), lambda start, end: [object()], Victim.KV, 0.0) == 32
    assert manager.prefetch(0, Victim.DRAFTS, None, 0.0) and manager.prefetch(1, Victim.DRAFTS, None, 0.0)
    assert manager.free_bytes == 0  # both are still loading
    assert not manager.can_prefetch(2) and not manager.prefetch(2, Victim.DRAFTS, None, 0.0)
    tight = MemoryManager(MemoryConfig(1099, 100, 10), make_specs(("a",)), HandLoader(), make_costs(("a",)))
    assert not tight.could_ever_fit(0) and not tight.prefetch(0, Victim.DRAFTS, None, 0.0)


def fresh_draft(job: Job) -> Any:
    assert isinstance(job, int)
    return draft(KINDS[job])


def test_nothing_holds_a_draft_that_was_given_up() -> None:
    """pytorch #83914, #87055, tabbyAPI #144: memory that stayed after an unload, because something still named it."""
    loader = StepLoader(fresh_draft)
    session, _ = open_tiny(n_drafts=1, kv_tokens=0, loader=loader)
    serve(session, [request(8)], guess(0, 2))
    net = weakref.ref(session.memory.payload(0).net)
    weight = weakref.ref(session.memory.payload(0).net.vocab)
    assert net() is not None
    served = serve(session, [request(8)], guess(2, 2))  # there is room for one
    assert text(served[0]) == plain_text()[:8]
    assert session.memory.resident(2) and not session.memory.resident(0)
    gc.collect()
    assert net() is None and weight() is None
    served = serve(session, [request(8)], guess(0, 2))  # it comes back from its file
    assert text(served[0]) == plain_text()[:8] and session.memory.resident(0)


# -- the control of exactness ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("steady", [True, False])
def test_plain_decoding_that_does_not_repeat_itself_is_not_blamed_on_drafts(steady: bool) -> None:
    """vllm #54506: separate launches differed by themselves, and one comparison blamed something else for it."""
    model, trace = target(), make_traces().traces[0]
    asked = Request("r", (5, 17, 3, 44, 9), 12)
    item, tally = Item(asked, trace), Tally()
    launches = 0
    forward = model.forward

    def unsteady(tokens: Any, logits: Any) -> torch.Tensor:
        nonlocal launches
        launches += len(tokens) == len(asked.prompt_ids)
        rows = forward(tokens, logits)
        return rows if launches % 2 else rows.roll(1, dims=-1)

    if not steady:
        model.forward = unsteady  # type: ignore[method-assign]
    checker = Checker(model, False, tally)
    checker.check(item, plain_text(12, asked.prompt_ids))
    assert tally.controls == 1
    kinds = [difference.kind for difference in tally.differences]
    assert kinds == ([] if steady else ["repeat"])
    assert tally.exact is steady
