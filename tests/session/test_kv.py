"""Reuse of stored KV through the whole session: it saves work, never changes a token, and is accounted for."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
import torch

from runtime.core import Decision, Outcome, Phase, Request, Victim
from runtime.memory.kv_tree import Tier
from runtime.memory.loader import ThreadLoader
from runtime.session import DecodeSession
from tests.session.tiny_session import PER_TOKEN, N, StepLoader, Work, guess, keep_all, open_tiny, serve, text
from tests.tiny import KINDS, LOOKUP, VOCAB, plain_text

DOCUMENT = tuple((7 * i * i + 3 * i) % VOCAB for i in range(2 * N + 5))
NEVER, SOMETIMES = KINDS.index("never"), KINDS.index("sometimes")


def ask(question: tuple[int, ...], new: int = 30, name: str = "q") -> Request:
    return Request(name, (*DOCUMENT, *question), new)


def expected(request: Request) -> tuple[int, ...]:
    return plain_text(request.max_new_tokens, request.prompt_ids)


QUESTIONS = [ask((1, 2, 3), name="a"), ask((4, 5), name="b"), ask((1, 2, 9), name="c")]


def test_questions_about_a_document_reuse_it() -> None:
    session, _ = open_tiny()
    served = serve(session, QUESTIONS)
    assert [text(outcomes) for outcomes in served] == [expected(request) for request in QUESTIONS]
    reused = [outcomes[0].reused_tokens for outcomes in served]
    assert reused == [0, len(DOCUMENT), len(DOCUMENT) + 2]  # token by token: the third shares two of the question
    for outcomes, request in zip(served, QUESTIONS, strict=True):
        assert outcomes[0].prefill_tokens + outcomes[0].reused_tokens == len(request.prompt_ids)


def test_a_chat_reuses_its_earlier_turns() -> None:
    first = Request("turn-0", DOCUMENT[:40], 30)
    second = Request("turn-1", (*first.prompt_ids, *expected(first), 3, 1, 4), 20)
    session, _ = open_tiny()
    served = serve(session, [first, second])
    assert text(served[1]) == expected(second)
    stored = (40 + 30 - 1) // N * N  # whole blocks of what was forwarded, the answer included
    assert served[1][0].reused_tokens == stored


@pytest.mark.parametrize("draft", [NEVER, SOMETIMES, LOOKUP])
@pytest.mark.parametrize("gamma", [1, 4, 8])
def test_hits_do_not_depend_on_speculation(draft: int, gamma: int) -> None:
    """vllm #54360, #40624, sglang #32459, reame v0.1.6: speculation switched prefix reuse off without a word."""
    plain, _ = open_tiny()
    session, _ = open_tiny()
    without, served = serve(plain, QUESTIONS), serve(session, QUESTIONS, guess(draft, gamma))
    assert [text(outcomes) for outcomes in served] == [text(outcomes) for outcomes in without]
    for one, other in zip(served, without, strict=True):
        assert (one[0].reused_tokens, one[0].prefill_tokens) == (other[0].reused_tokens, other[0].prefill_tokens)
    assert session.counters.kv_hit_tokens == plain.counters.kv_hit_tokens > 0


def acceptance(outcomes: list[Outcome]) -> list[tuple[int, int]]:
    return [(o.round.drafted, o.round.accepted) for o in outcomes if o.round is not None]


@pytest.mark.parametrize("draft", range(len(KINDS)))
def test_a_draft_accepts_after_reuse_what_it_accepted_before(draft: int) -> None:
    """TensorRT-LLM #18280, vllm #47930, #47926: the target's prefix was reused, the draft's was not."""
    session, _ = open_tiny()
    again = [QUESTIONS[0], QUESTIONS[0]]
    first, second = serve(session, again, guess(draft, 4))
    assert second[0].reused_tokens == len(QUESTIONS[0].prompt_ids) - 1
    assert acceptance(first) == acceptance(second)
    assert text(first) == text(second) == expected(QUESTIONS[0])


def test_only_committed_tokens_are_stored() -> None:
    """vllm #43559, #18668, sglang #8726, #24175: rejected guesses reached the prefix cache."""
    session, _ = open_tiny()
    serve(session, QUESTIONS[:1], guess(NEVER, 8))
    committed = (*QUESTIONS[0].prompt_ids, *expected(QUESTIONS[0]))
    path = session.memory.kv.match((*committed, 0)).path
    assert tuple(token for node in path for token in node.block) == committed[: len(path) * N]
    assert len(path) == (len(committed) - 1) // N


def test_stored_kv_is_never_changed() -> None:
    """MemOS #2301, transformers #32681: generation changed the stored cache in place."""
    session, _ = open_tiny()
    serve(session, QUESTIONS[:1])
    nodes = list(session.memory.kv.tree.nodes())
    before = [node.payload.buffer.clone() for node in nodes]
    serve(session, QUESTIONS, guess(SOMETIMES, 4))
    assert all(torch.equal(node.payload.buffer, then) for node, then in zip(nodes, before, strict=True))


def test_reuse_means_tokens_not_forwarded(monkeypatch: pytest.MonkeyPatch) -> None:
    """llama.cpp #28194: restoring "succeeded", yet everything was processed again. Counts what the model is given."""
    session, _ = open_tiny()
    serve(session, QUESTIONS[:1])
    given: list[int] = []
    network = session.decoder.target.model  # type: ignore[attr-defined]
    forward = network.forward

    def counting(**arguments: object) -> object:
        ids = arguments["input_ids"]
        assert isinstance(ids, torch.Tensor)
        given.append(ids.shape[1])
        return forward(**arguments)

    monkeypatch.setattr(network, "forward", counting)
    (outcomes,) = serve(session, [QUESTIONS[1]])
    assert given[0] == outcomes[0].prefill_tokens == len(QUESTIONS[1].prompt_ids) - len(DOCUMENT)
    assert set(given[1:]) == {1}


def test_bypass_and_drop_are_decisions() -> None:
    session, _ = open_tiny()
    serve(session, QUESTIONS[:1])
    (outcomes,) = serve(session, QUESTIONS[1:2], lambda _: Decision())
    record = outcomes[-1].kv
    assert record is not None
    assert (record.usable_tokens, record.reused_tokens, record.saved_s) == (len(DOCUMENT), 0, 0.0)
    assert (record.retained_tokens, record.retained_bytes) == (0, 0)
    assert text(outcomes) == expected(QUESTIONS[1])


def test_what_reuse_saved_and_retaining_cost_is_told_per_request() -> None:
    session, _ = open_tiny()
    served = serve(session, QUESTIONS)
    first, second = served[0][-1].kv, served[1][-1].kv
    assert first is not None and second is not None
    assert (first.request_id, second.request_id) == ("a", "b")
    stored = (len(QUESTIONS[0].prompt_ids) + 29) // N * N
    assert (first.retained_tokens, first.retained_bytes) == (stored, stored * PER_TOKEN)
    assert second.reused_tokens == len(DOCUMENT) and second.disk_tokens == 0
    whole_s = session.costs.prefill_s(len(QUESTIONS[1].prompt_ids), 0)
    assert second.saved_s == pytest.approx(whole_s - second.admit_s)
    assert session.counters.kv_retained_bytes == session.memory.kv.bytes


# -- disk --------------------------------------------------------------------------------------------------------------


def finish_jobs(loader: object) -> None:
    assert isinstance(loader, StepLoader)
    while loader.waiting:
        loader.step()


def forget_memory(session: object) -> None:
    """Give up all stored KV in memory; what has a copy on disk lives on there."""
    memory = session.memory  # type: ignore[attr-defined]
    memory.poll()
    while memory.kv.drop_least(lambda node: 0.0):
        pass
    assert memory.kv.bytes == 0


def test_kv_given_up_in_memory_is_read_back_from_disk(tmp_path: Path) -> None:
    session, loader = open_tiny(disk_tokens=1000, folder=tmp_path)
    serve(session, QUESTIONS[:1])
    finish_jobs(loader)
    forget_memory(session)
    (outcomes,) = serve(session, QUESTIONS[1:2], guess(SOMETIMES, 4))
    assert text(outcomes) == expected(QUESTIONS[1])
    record = outcomes[-1].kv
    assert record is not None
    assert (record.reused_tokens, record.disk_tokens) == (len(DOCUMENT), len(DOCUMENT))
    assert record.wait_s > 0
    assert session.counters.kv_disk_tokens == len(DOCUMENT)


def test_the_next_run_finds_what_this_one_left(tmp_path: Path) -> None:
    session, loader = open_tiny(disk_tokens=1000, folder=tmp_path)
    serve(session, QUESTIONS[:1])
    finish_jobs(loader)
    fresh, _ = open_tiny(disk_tokens=1000, folder=tmp_path)
    (outcomes,) = serve(fresh, QUESTIONS[1:2])
    assert outcomes[0].reused_tokens == len(DOCUMENT)
    assert text(outcomes) == expected(QUESTIONS[1])


def test_a_damaged_file_costs_a_prefill_and_nothing_else(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    session, loader = open_tiny(disk_tokens=1000, folder=tmp_path)
    serve(session, QUESTIONS[:1])
    finish_jobs(loader)
    forget_memory(session)
    first = min(session.memory.kv.tree.nodes(), key=lambda node: node.depth)
    next(tmp_path.rglob(f"{first.name()}*")).write_bytes(b"gone")
    with caplog.at_level(logging.WARNING):
        (outcomes,) = serve(session, QUESTIONS[1:2])
    assert text(outcomes) == expected(QUESTIONS[1])
    assert outcomes[0].reused_tokens == 0
    assert "computed again" in caplog.text
    assert session.memory.kv.match(QUESTIONS[0].prompt_ids).path[0].tier is Tier.MEMORY  # kept anew


def test_a_full_disk_ends_copies_not_decoding(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    session, loader = open_tiny(disk_tokens=1000, folder=tmp_path)
    assert isinstance(loader, StepLoader)
    serve(session, QUESTIONS[:1])
    loader.step("No space left on device")
    with caplog.at_level(logging.WARNING):
        served = serve(session, QUESTIONS[1:])
    assert "no longer copied to disk: No space left" in caplog.text
    assert [text(outcomes) for outcomes in served] == [expected(request) for request in QUESTIONS[1:]]
    assert not loader.waiting and session.memory.kv.disk_bytes == 0


def test_what_is_expected_is_read_while_decoding_goes_on(tmp_path: Path) -> None:
    session, loader = open_tiny(disk_tokens=1000, folder=tmp_path)
    assert isinstance(loader, StepLoader)
    serve(session, QUESTIONS[:1])
    finish_jobs(loader)
    forget_memory(session)
    other, steps = Request("other", (9, 8, 7, 6), 20), 0
    session.start([other])
    while session.request is other:
        session.observe()
        outcome = session.advance(Decision())
        steps += 1
        if steps == 3:
            assert session.expect(QUESTIONS[1]) and loader.waiting
        if steps == 6:
            loader.step()
    assert steps > 6 and outcome.phase is Phase.COMPLETE
    (outcomes,) = serve(session, QUESTIONS[1:2])
    record = outcomes[-1].kv
    assert record is not None and (record.reused_tokens, record.disk_tokens) == (len(DOCUMENT), 0)


def test_the_disk_has_a_limit_and_the_document_outlives_its_answers(tmp_path: Path) -> None:
    session, loader = open_tiny(disk_tokens=4 * N, folder=tmp_path)
    for request in QUESTIONS * 2:
        serve(session, [request])
        finish_jobs(loader)
        session.memory.poll()
        assert session.memory.kv.disk_bytes <= 4 * N * PER_TOKEN
    assert len(list(tmp_path.rglob("*.safetensors"))) * N * PER_TOKEN == session.memory.kv.disk_bytes > 0
    on_disk = {node.depth for node in session.memory.kv.tree.nodes() if node.on_disk}
    assert {0, 1} <= on_disk


def test_the_real_thread_reads_and_writes(tmp_path: Path) -> None:
    from runtime.kv_folder import KVFolder
    from tests.tiny import target

    model = target()
    loader = ThreadLoader(Work(KVFolder(tmp_path, model.kv_name)))
    session, _ = open_tiny(disk_tokens=1000, folder=tmp_path, loader=loader, model=model)
    serve(session, QUESTIONS[:1])
    session.memory.prefixes.flush()
    forget_memory(session)
    (outcomes,) = serve(session, QUESTIONS[1:2], keep_all)
    assert text(outcomes) == expected(QUESTIONS[1])
    assert outcomes[0].reused_tokens == len(DOCUMENT)
    loader.close()


def with_a_prefix_on_disk(tmp_path: Path, kv_tokens: int, n_drafts: int) -> DecodeSession:
    session, loader = open_tiny(kv_tokens, n_drafts, 1000, tmp_path)
    serve(session, [Request("first", DOCUMENT[:60], 8)])
    finish_jobs(loader)
    forget_memory(session)
    return session


AGAIN = Request("again", (*DOCUMENT[:60], 1, 2), 8)


def test_what_is_expected_may_take_a_draft_that_was_just_observed(tmp_path: Path) -> None:
    session = with_a_prefix_on_disk(tmp_path, 2 * N, 0)
    other = Request("other", (9, 8, 7, 6), 20)
    session.start([other])
    session.advance(Decision())
    assert session.memory.load_now(SOMETIMES, Victim.DRAFTS, 0.0)
    session.observe()
    assert session.expect(AGAIN) and not session.memory.resident(SOMETIMES)
    outcome = session.advance(Decision(draft=SOMETIMES, gamma=4))
    assert (outcome.decision.draft, outcome.illegal) == (None, 1)


def test_who_gives_up_memory_for_a_read_is_a_decision(tmp_path: Path) -> None:
    session = with_a_prefix_on_disk(tmp_path, 2 * N, 1)
    serve(session, [Request("other", tuple(reversed(DOCUMENT))[:60], 8)])
    assert session.memory.load_now(SOMETIMES, Victim.KV, 0.0)
    for state in session.memory.states:
        state.failed = "no draft may be fetched, so nothing else needs room"
    session.start([AGAIN])
    mask = session.observe().mask
    assert mask[session.codec.offsets[3] + 1]
    assert mask[session.codec.offsets[4] :].all()
    session.advance(Decision(kv=True, victim=Victim.KV))
    assert session.memory.resident(SOMETIMES)
