"""Recorded forwards: the same logits, in every family; and what happens where a forward cannot be recorded."""

from __future__ import annotations

import logging

import pytest
import torch

from runtime.engine.graphs import choice
from runtime.engine.graphs.choice import SWITCH, choose_runner
from runtime.engine.graphs.eager import EagerRunner
from runtime.engine.graphs.runner import WIDEST, GraphRunner
from runtime.engine.graphs.static_cache import StaticLayer
from runtime.engine.graphs.token_step import TokenStep
from runtime.engine.graphs.width_graph import USES_BEFORE
from runtime.engine.kv_cache import FIRST_CAPACITY
from runtime.engine.transformers_model import TransformersModel
from tests.engine.families import (
    FAMILIES,
    LONG,
    WINDOW,
    decode,
    drafts,
    made,
    plain_text,
    reading_network,
)
from tests.engine.graphs.tape import Tape, recorded_model
from tests.tiny import SETTINGS, VOCAB, random_model, tiny_network

CPU = torch.device("cpu")
TOKENS = [int(i) for i in torch.randint(0, VOCAB, (600,), generator=torch.Generator().manual_seed(5))]
WIDTHS = (1, 2, 3, 5, 9)


def ids(start: int, width: int) -> torch.Tensor:
    return torch.tensor([TOKENS[start : start + width]])


@pytest.mark.parametrize("family", [*FAMILIES, "llama4_text"])
def test_replays_say_what_the_network_says(family: str) -> None:
    """Before, on and behind the window's border (16 tokens), with tokens taken back in between."""
    if family == "llama4_text":
        chunks = {"attention_chunk_size": WINDOW, "num_local_experts": 2, "intermediate_size_mlp": 48}
        network = random_model(family, {**SETTINGS, **chunks})
    else:
        network = made(family)
    step, tape = TokenStep(network), Tape()
    recorded, plain = GraphRunner(step, CPU, tape), EagerRunner(step, CPU)
    at = 0
    with torch.inference_mode():
        for width in (3, *(WIDTHS * 6)):
            inputs = ids(at, width)
            got, expected = recorded.forward(inputs, width), plain.forward(inputs, width)
            torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-4)
            at += width - (width == WIDEST) * 4
            for runner in (recorded, plain):
                runner.cache.crop_to(at)
    assert not tape.failed
    assert recorded.recorded == len(WIDTHS)
    assert tape.replays == len(WIDTHS) * (6 - USES_BEFORE)


@pytest.mark.exact
@pytest.mark.parametrize("family", FAMILIES)
def test_text_of_recorded_forwards_is_the_targets_own(family: str) -> None:
    tape = Tape()
    text, accepted = decode(recorded_model(made(family), tape), drafts(family), LONG, 8)
    assert text == plain_text(family, LONG)
    assert accepted >= len(text) // 4
    assert tape.replays > 0


def test_a_width_is_recorded_once_it_has_come_up() -> None:
    runner = GraphRunner(TokenStep(tiny_network()), CPU, Tape())
    runner.forward(ids(0, 3), 1)
    for use in range(1, USES_BEFORE + 3):
        runner.forward(ids(10, 2), 1)
        assert runner.recorded == (use > USES_BEFORE)
    runner.forward(ids(20, WIDEST + 1), 1)
    assert runner.recorded == 1


def test_the_last_rows_are_kept() -> None:
    runner = GraphRunner(TokenStep(tiny_network()), CPU, Tape())
    runner.forward(ids(0, 3), 3)
    for keep in (1, 2, 4):
        runner.cache.crop_to(3)
        rows = runner.forward(ids(3, 4), 4)
        runner.cache.crop_to(3)
        assert torch.equal(runner.forward(ids(3, 4), keep), rows[-keep:])


def test_logits_outlive_the_next_replay() -> None:
    tape = Tape()
    runner = GraphRunner(TokenStep(tiny_network()), CPU, tape)
    runner.forward(ids(0, 3), 1)
    for _ in range(USES_BEFORE):
        runner.forward(ids(3, 2), 2)
    rows = runner.forward(ids(10, 2), 2)
    before = rows.clone()
    runner.forward(ids(20, 2), 2)
    assert tape.replays == 2
    assert torch.equal(rows, before)


def test_recordings_end_with_the_buffers_they_read() -> None:
    network = tiny_network(max_position_embeddings=600)
    tape = Tape()
    runner, plain = GraphRunner(TokenStep(network), CPU, tape), EagerRunner(TokenStep(network), CPU)
    with torch.inference_mode():
        for at in range(0, FIRST_CAPACITY + 80, 8):
            got, expected = runner.forward(ids(at, 8), 8), plain.forward(ids(at, 8), 8)
            torch.testing.assert_close(got, expected, rtol=0, atol=1e-4)
        assert runner.recorded == 1  # of the new buffers
        before = tape.replays
        for each in (runner, plain):
            each.cache.crop_to(16)
        for at in range(16, 56, 8):  # a short text again: a window of its own
            got, expected = runner.forward(ids(at, 8), 8), plain.forward(ids(at, 8), 8)
            torch.testing.assert_close(got, expected, rtol=0, atol=1e-4)
    assert runner.recorded == 2
    assert tape.replays == before + 5 - USES_BEFORE


def test_logits_do_not_depend_on_how_far_the_buffers_have_grown() -> None:
    """Else a near-tie could fall one way in a fresh process and another way in an old one."""
    network = tiny_network(max_position_embeddings=600)
    fresh, old = (GraphRunner(TokenStep(network), CPU) for _ in range(2))
    old.forward(ids(0, 550), 1)
    old.cache.crop_to(0)
    for runner in (fresh, old):
        runner.forward(ids(0, 30), 1)
    for width in WIDTHS:
        at = fresh.cache.length
        assert torch.equal(fresh.forward(ids(at, width), width), old.forward(ids(at, width), width))
    assert old.cache.moves == 1


def test_what_cannot_be_recorded_runs_all_the_same() -> None:
    network = reading_network()
    tape = Tape()
    model, plain = recorded_model(network, tape), TransformersModel(network, pack=False, native=False)
    for each in (model, plain):
        each.forward(TOKENS[:4], "last")
    for at in range(4, 40, 4):
        torch.testing.assert_close(
            model.forward(TOKENS[at : at + 4], "all"), plain.forward(TOKENS[at : at + 4], "all"), rtol=0, atol=1e-4
        )
    assert tape.failed
    assert (tape.attempts, tape.replays) == (1, 0)


def test_a_mask_that_does_not_hide_is_found_out(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(StaticLayer, "is_compileable", False)  # no mask at width 1
    with caplog.at_level(logging.WARNING):
        model = TransformersModel(tiny_network(), graphs=True)
    assert isinstance(model._runner, EagerRunner)
    assert "LlamaForCausalLM says something else in fixed buffers" in caplog.text


def test_a_forward_that_fails_on_fixed_buffers_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise NotImplementedError("no such operator on this device")

    monkeypatch.setattr(StaticLayer, "get_mask_sizes", refuse)
    assert isinstance(TransformersModel(tiny_network(), graphs=True)._runner, EagerRunner)


def test_who_gets_graphs(monkeypatch: pytest.MonkeyPatch) -> None:
    network = tiny_network()
    step, cuda = TokenStep(network), torch.device("cuda")
    assert isinstance(choose_runner(step, CPU), EagerRunner)
    assert isinstance(choose_runner(step, CPU, graphs=True), GraphRunner)
    assert isinstance(choose_runner(step, cuda, graphs=False), EagerRunner)
    monkeypatch.setattr(choice, "CudaRecorder", lambda device: Tape())  # what needs the device is in test_cuda.py
    assert isinstance(choose_runner(step, cuda), GraphRunner)
    monkeypatch.setenv(SWITCH, "0")
    assert isinstance(choose_runner(step, cuda), EagerRunner)
    monkeypatch.setattr(network.config, "_attn_implementation", "flash_attention_2")
    assert isinstance(choose_runner(step, CPU, graphs=True), EagerRunner)
    monkeypatch.undo()
    monkeypatch.setattr(type(network), "_can_compile_fullgraph", False)
    assert isinstance(choose_runner(step, CPU, graphs=True), EagerRunner)
