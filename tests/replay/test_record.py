"""Recording: a trace holds what stepwise greedy drafting gives, and a killed recording goes on."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from envs import record as module
from envs.guesses import follow
from envs.record import Recorder, read_drafts
from envs.trace_code import decode
from envs.traces import RUN_ON, DraftRef, TraceSet
from envs.zoo.texts import Prompt, Text
from envs.zoo.training import cut_draft
from runtime.engine.draft_file import SUFFIX, DraftHeader, save_draft
from runtime.engine.draft_net import DraftNet, draft_config
from runtime.engine.fingerprint import target_fingerprint
from runtime.errors import UserError

WORDS = 40
EOS = frozenset({7})


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def target() -> Any:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=WORDS,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=128,
        initializer_range=0.4,
        pad_token_id=0,
    )
    return LlamaForCausalLM(config).eval()  # type: ignore[no-untyped-call]


@pytest.fixture(scope="module")
def net(target: Any) -> DraftNet:
    return cut_draft(target, 2, torch.arange(3, 23, dtype=torch.int32)).eval()


def make_text(net: DraftNet, embed: Any, seed: int, length: int = 20) -> Text:
    """A text that follows the draft now and then, so that it has right and wrong guesses."""
    generator = torch.Generator().manual_seed(seed)
    prompt = torch.randint(8, WORDS, (4 + seed % 5,), generator=generator).tolist()
    output: list[int] = []
    while len(output) < length and 7 not in output:
        right = torch.rand((), generator=generator) < 0.5
        other = int(torch.randint(8, WORDS, (), generator=generator))
        token = step(net, embed, [*prompt, *output])[0] if right else other
        output.append(token)
    name = f"code-train-{seed}"
    return Text(Prompt(name, "code", "train", "single", name, 0, "[]"), prompt, output, "")


@torch.inference_mode()
def step(net: DraftNet, embed: Any, tokens: list[int]) -> tuple[int, float]:
    """The draft's greedy guess behind ``tokens`` and its probability, from a forward of its own."""
    probabilities = net(embed(torch.tensor([tokens])))[0, -1].softmax(-1)
    row = int(probabilities.argmax())
    return int(net.vocab[row]), float(probabilities[row])


@pytest.mark.parametrize("seed", range(4))
def test_a_trace_is_what_stepwise_drafting_gives(target: Any, net: DraftNet, seed: int) -> None:
    embed = target.get_input_embeddings()
    text = make_text(net, embed, seed)
    trace = follow(net, embed, text.prompt_ids, text.output_ids, EOS, floor=0.0)
    assert 0 < trace.match.sum() < len(text.output_ids)
    for position, truth in enumerate(text.output_ids):
        tokens = [*text.prompt_ids, *text.output_ids[:position]]
        token, sure = step(net, embed, tokens)
        assert trace.match[position] == (token == truth)
        assert trace.probability[position] == pytest.approx(sure, abs=2e-4)
        run_on: list[float] = []
        while token != truth and token not in EOS and len(run_on) < RUN_ON:
            tokens.append(token)
            token, sure = step(net, embed, tokens)
            run_on.append(sure)
            truth = -1  # once wrong, the draft goes on by itself
        recorded = decode(trace.run_on[trace.start[position] : trace.start[position + 1]])
        np.testing.assert_allclose(recorded, run_on, atol=2e-4)


def test_a_hopeless_run_on_is_given_up(target: Any, net: DraftNet) -> None:
    embed = target.get_input_embeddings()
    text = make_text(net, embed, 1)
    whole = follow(net, embed, text.prompt_ids, text.output_ids, frozenset(), floor=0.0)
    cut = follow(net, embed, text.prompt_ids, text.output_ids, frozenset(), floor=0.3)
    assert (whole.start == cut.start).all() and (whole.match == cut.match).all()
    rows = (~whole.match).nonzero()[0]
    reach = np.column_stack([whole.probability[rows], decode(whole.run_on).reshape(-1, RUN_ON)]).cumprod(1)
    given_up = cut.run_on.reshape(-1, RUN_ON) == 0
    assert given_up.any() and not given_up.all()
    assert (given_up == (reach[:, :-1] < 0.3)).all()


def test_a_killed_recording_goes_on(
    target: Any, net: DraftNet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "SHARD", 2)
    embed = target.get_input_embeddings()
    texts = [make_text(net, embed, seed) for seed in range(5)]
    out = tmp_path / "traces.parquet"
    recorder = Recorder("fingerprint", embed, [(DraftRef("code", "hash"), net)], EOS)
    wanted = recorder.record(texts, tmp_path / "undisturbed.parquet")

    real, calls = recorder.trace, []

    def killed_at_the_fourth(text: Text) -> Any:
        calls.append(text)
        if len(calls) == 4:
            raise KeyboardInterrupt
        return real(text)

    monkeypatch.setattr(recorder, "trace", killed_at_the_fourth)
    with pytest.raises(KeyboardInterrupt):
        recorder.record(texts, out)
    assert not out.exists()
    recorder.record(texts, out)
    assert len(calls) == 4 + 3  # the first shard of two is not recorded again
    assert repr(dataclasses.asdict(TraceSet.load(out))) == repr(dataclasses.asdict(wanted))
    assert sorted(file.name for file in tmp_path.iterdir()) == ["traces.parquet", "undisturbed.parquet"]


def test_a_text_that_goes_on_behind_its_end_is_refused(target: Any, net: DraftNet, tmp_path: Path) -> None:
    text = dataclasses.replace(make_text(net, target.get_input_embeddings(), 0), output_ids=[7, 8])
    recorder = Recorder("fingerprint", target.get_input_embeddings(), [(DraftRef("code", "hash"), net)], EOS)
    with pytest.raises(UserError, match="one that goes on behind it: write the corpus again"):
        recorder.record([text], tmp_path / "traces.parquet")


def test_drafts_are_read_with_their_hashes(target: Any, net: DraftNet, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"expected draft files .* found none"):
        read_drafts(tmp_path, "x")
    fingerprint = target_fingerprint(target)
    header = DraftHeader("code", "code", fingerprint, draft_config(target, 2), {})
    save_draft(tmp_path / f"code{SUFFIX}", header, net.vocab.to(torch.int32), net.weights())
    ((ref, _),) = read_drafts(tmp_path, fingerprint)
    assert ref.name == "code" and len(ref.sha256) == 64
    with pytest.raises(UserError, match="expected a draft of target other"):
        read_drafts(tmp_path, "other")


def test_the_command_line_says_what_is_missing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--target", "t", "--drafts", str(tmp_path), "--corpus", str(tmp_path), "--out", str(tmp_path / "o")]
    assert module.main(arguments) == 2
    assert "record: no corpus at" in capsys.readouterr().err
