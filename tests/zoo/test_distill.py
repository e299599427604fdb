"""Distilling: what a draft learns from, that it learns, and that a killed run ends where an undisturbed one does."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from envs.zoo import distill, training
from envs.zoo.agreement import agreement
from envs.zoo.batching import collate, deal, vocabulary_rows
from envs.zoo.corpus import read_grammars
from envs.zoo.distill import Distiller, write_agreement
from envs.zoo.plan import DraftPlan, plan_zoo
from envs.zoo.texts import Prompt, Text
from envs.zoo.training import TrainSettings, cut_draft, one_cycle, train_draft
from envs.zoo.vocabulary import covered, trim_vocabulary
from runtime.engine.draft_file import read_draft, read_draft_header
from runtime.errors import UserError

WORDS = 40


@pytest.fixture
def target() -> Any:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=WORDS,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=64,
        tie_word_embeddings=True,
        pad_token_id=0,
    )
    return LlamaForCausalLM(config).eval()  # type: ignore[no-untyped-call]


def text(domain: str, split: str, index: int) -> Text:
    """Counting upwards, from a start and in a step of the domain's own."""
    step = 1 if domain == "one" else 3
    start = 3 + (index * 7) % 30
    ids = [(start + step * at) % 30 + 5 for at in range(5 + index % 4 + 10)]
    name = f"{domain}-{split}-{index}"
    prompt = Prompt(name, domain, split, "single", name, 0, "[]")  # type: ignore[arg-type]
    return Text(prompt, ids[: 5 + index % 4], ids[5 + index % 4 :], "")


@pytest.fixture
def corpus() -> list[Text]:
    return [
        text(domain, split, index)
        for domain in ("one", "three")
        for split, count in (("distill", 24), ("heldout", 6))
        for index in range(count)
    ]


def learned_from(corpus: list[Text], domain: str = "one") -> list[Text]:
    return [item for item in corpus if item.prompt.domain == domain and item.prompt.split == "distill"]


def test_vocabulary_holds_the_most_frequent_tokens_in_ascending_order() -> None:
    item = text("one", "distill", 0)
    item = Text(item.prompt, [30, 31], [9, 9, 9, 4, 4, 7], "")
    assert trim_vocabulary([item], 2).tolist() == [4, 9]
    assert trim_vocabulary([item], 4).tolist() == [4, 7, 9, 30]
    assert covered([item], torch.tensor([4, 9])) == pytest.approx(5 / 6)


def test_vocabulary_of_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one row and one text"):
        trim_vocabulary([], 8)


def test_batch_asks_only_at_positions_before_written_tokens() -> None:
    base = text("one", "distill", 0).prompt
    batch = collate([Text(base, [1, 2, 3], [4, 5], ""), Text(base, [6], [7, 8], "")], torch.tensor([4, 8]))
    assert batch.ids.tolist() == [[1, 2, 3, 4], [6, 7, 0, 0]]
    assert batch.at.tolist() == [2, 3, 4, 5]
    assert batch.targets.tolist() == [0, -1, -1, 1]


def test_vocabulary_rows_of_unknown_tokens_are_minus_one() -> None:
    assert vocabulary_rows(torch.tensor([3, 5, 99, 0]), torch.tensor([3, 5])).tolist() == [0, 1, -1, -1]


def test_deal_hands_out_every_text_once_and_repeats_by_seed() -> None:
    lengths = [index % 13 for index in range(100)]
    dealt = deal(lengths, 8, "0-0")
    assert sorted(index for batch in dealt for index in batch) == list(range(100))
    assert dealt == deal(lengths, 8, "0-0") != deal(lengths, 8, "0-1")


def test_one_cycle_rises_to_its_peak_and_falls() -> None:
    rates = [one_cycle(step, 100, 1.0) for step in range(101)]
    assert max(rates) == pytest.approx(1.0) and rates.index(max(rates)) == 25
    assert rates[0] == pytest.approx(0.04) and rates[-1] < 0.001


def test_untrained_draft_is_the_targets_first_layers(target: Any) -> None:
    vocab = torch.tensor([2, 5, 11])
    net = cut_draft(target, 2, vocab)
    ids = torch.arange(6)[None]
    with torch.no_grad():
        state = target.model(ids, output_hidden_states=True).hidden_states[2]
        expected = target.lm_head(target.model.norm(state))[..., vocab]
        got = net(target.get_input_embeddings()(ids))
    torch.testing.assert_close(got, expected)


def test_more_layers_than_the_target_has_are_refused(target: Any) -> None:
    with pytest.raises(ValueError, match="expected 1 to 3 layers"):
        cut_draft(target, 4, torch.tensor([1]))


def test_training_lowers_loss_and_raises_heldout_agreement(target: Any, corpus: list[Text]) -> None:
    texts = learned_from(corpus)
    heldout = [item for item in corpus if item.prompt.domain == "one" and item.prompt.split == "heldout"]
    embed = target.get_input_embeddings()
    table = embed.weight.detach().clone()
    net = cut_draft(target, 2, trim_vocabulary(texts, 32))
    before = agreement(net, embed, heldout)
    progress = train_draft(net, embed, texts, TrainSettings(epochs=12, batch=4, peak_lr=1e-2))
    assert progress.losses[-1] < progress.losses[0] / 2
    assert agreement(net, embed, heldout) > max(0.8, before)
    assert torch.equal(embed.weight, table), "the target's embeddings must stay frozen"


def test_resumed_training_ends_with_the_same_weights(
    target: Any, corpus: list[Text], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts, embed = learned_from(corpus), target.get_input_embeddings()
    vocab, settings = trim_vocabulary(texts, 32), TrainSettings(epochs=3, batch=4)
    whole = cut_draft(target, 2, vocab)
    train_draft(whole, embed, texts, settings)

    class Killed(Exception):
        pass

    step, steps_left = training._step, iter(range(9))

    def mortal(*arguments: object) -> float:
        if next(steps_left, None) is None:
            raise Killed
        return step(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(training, "_step", mortal)
    checkpoint = tmp_path / "draft.safetensors"
    with pytest.raises(Killed):
        train_draft(cut_draft(target, 2, vocab), embed, texts, settings, checkpoint, "key")
    monkeypatch.setattr(training, "_step", step)
    resumed = cut_draft(target, 2, vocab)
    progress = train_draft(resumed, embed, texts, settings, checkpoint, "key")
    assert progress.step == 18
    for name, weight in whole.weights().items():
        assert torch.equal(weight, resumed.weights()[name]), name


def test_checkpoint_of_other_settings_is_ignored(target: Any, corpus: list[Text], tmp_path: Path) -> None:
    texts, embed = learned_from(corpus), target.get_input_embeddings()
    vocab, settings = trim_vocabulary(texts, 32), TrainSettings(epochs=1, batch=4)
    first, second = cut_draft(target, 2, vocab), cut_draft(target, 2, vocab)
    train_draft(first, embed, texts, settings, tmp_path / "c", "one")
    train_draft(second, embed, texts, settings, tmp_path / "c", "two")
    assert torch.equal(first.head.weight, second.head.weight)


def test_every_draft_learns_from_as_many_texts(corpus: list[Text]) -> None:
    plans = plan_zoo(corpus, ["three", "one"], layers=2, rows=8, generalist_rows=16, limit=9, seed=0)
    assert [plan.name for plan in plans] == ["three", "one", "generalist"]
    assert [len(plan.texts) for plan in plans] == [9, 9, 9]
    assert [item.prompt.domain for item in plans[2].texts].count("one") == 4
    assert {item.prompt.split for plan in plans for item in plan.texts} == {"distill"}


def test_domain_without_texts_is_refused(corpus: list[Text]) -> None:
    with pytest.raises(UserError, match=r"domain 'law': no text to distill from; the corpus has \['one', 'three'\]"):
        plan_zoo(corpus, ["law"], layers=2, rows=8, generalist_rows=16, limit=0, seed=0)


def test_built_draft_is_kept_until_settings_change(
    target: Any, corpus: list[Text], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    heldout = {"one": [item for item in corpus if item.prompt.split == "heldout"]}
    plan = DraftPlan("one", 32, 2, learned_from(corpus))
    header = Distiller(target, tmp_path, TrainSettings(epochs=1), heldout).build(plan)
    path = tmp_path / "one.draft.safetensors"
    assert read_draft_header(path) == header
    assert read_draft(path).header.training["agreement"].keys() == {"one"}
    assert list((tmp_path / "checkpoints").iterdir()) == []
    written = path.stat().st_mtime_ns
    assert Distiller(target, tmp_path, TrainSettings(epochs=1), heldout).build(plan) == header
    assert path.stat().st_mtime_ns == written
    assert "exists, made with the same settings" in capsys.readouterr().out
    assert Distiller(target, tmp_path, TrainSettings(epochs=2), heldout).build(plan) != header
    write_agreement(tmp_path / "agreement.json", [header], heldout)
    assert json.loads((tmp_path / "agreement.json").read_text())["heldout_texts"] == {"one": 12}


def test_missing_grammar_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"law\.yaml: expected the prompt grammar of domain 'law'"):
        read_grammars(tmp_path, ["law"])
    with pytest.raises(UserError, match="found none"):
        read_grammars(tmp_path, [])


def test_a_users_mistake_ends_with_status_two(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status = distill.main(["--target", str(tmp_path / "no"), "--corpus", str(tmp_path), "--out", str(tmp_path)])
    assert status == 2
    assert "expected a Hugging Face model folder or hub id" in capsys.readouterr().err
