"""Pruning: a recipe is loaded as the target without some layers, and can be recorded and assembled as any draft."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from envs import record as recording
from envs.record import limited, read_corpus, read_drafts
from envs.traces import DraftRef, TraceSet
from envs.zoo import assemble as assembling
from envs.zoo import prune as module
from envs.zoo.prune import best_layers, make_recipe, pruned_net, runs_left_out
from envs.zoo.texts import Prompt, Text
from runtime.engine.draft_file import HEAD, SUFFIX, DraftHeader, read_draft, read_draft_header, save_recipe
from runtime.engine.draft_net import draft_config
from runtime.engine.fingerprint import target_fingerprint
from runtime.engine.loaded_draft import load_draft
from runtime.errors import UserError
from runtime.loading import FileWork
from runtime.zoo import Zoo
from tests.engine.families import FAMILIES
from tests.tiny import VOCAB, random_model, tiny_network
from tests.tiny_zoo import END, write_target

LAYERS = (0, 2)
"""What is kept of three layers."""


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("target")
    write_target(folder)
    return folder


@pytest.fixture(scope="module")
def model(target: Path) -> Any:
    return AutoModelForCausalLM.from_pretrained(target)


@pytest.fixture
def drafts(target: Path, tmp_path: Path) -> Path:
    arguments = ["--target", str(target), "--out", str(tmp_path / "drafts"), "--layers", "0,2"]
    assert module.main(arguments) == 0
    return tmp_path / "drafts"


def without_middle_layer(model: Any) -> Any:
    """The model itself, its layer 1 taken out."""
    layers = model.base_model.h if hasattr(model.base_model, "h") else model.base_model.layers
    del layers[1]
    model.config.num_hidden_layers = 2
    if getattr(model.config, "layer_types", None):
        model.config.layer_types = [model.config.layer_types[layer] for layer in LAYERS]
    return model


def recipe_header(model: Any, folder: Path) -> DraftHeader:
    recipe = make_recipe(model, folder, LAYERS)
    return DraftHeader("pruned", "code", target_fingerprint(model), draft_config(model, LAYERS), {}, recipe=recipe)


@pytest.mark.parametrize("family", ["llama", "qwen3", "gemma2", "gpt2"])
@pytest.mark.parametrize("shards", [False, True])
def test_a_loaded_recipe_is_the_target_without_the_layer(tmp_path: Path, family: str, shards: bool) -> None:
    deeper = {"n_layer": 3} if family == "gpt2" else {"num_hidden_layers": 3}
    kinds = {"layer_types": ["sliding_attention", "full_attention", "sliding_attention"]}
    mixed = kinds if "layer_types" in FAMILIES[family] else {}
    model: Any = random_model(family, {**FAMILIES[family], **deeper, **mixed})
    model.save_pretrained(tmp_path / "target", **({"max_shard_size": "20KB"} if shards else {}))
    assert (tmp_path / "target" / "model.safetensors").exists() != shards
    path = tmp_path / f"pruned{SUFFIX}"
    header = recipe_header(model, tmp_path / "target")
    save_recipe(path, header)
    assert read_draft_header(path) == header and path.stat().st_size < 8000
    loaded = load_draft(path, target_folder=tmp_path / "target")
    ids = torch.randint(0, VOCAB, (1, 37), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        found = loaded.net(model.get_input_embeddings()(ids))
        wanted = without_middle_layer(model)(ids, use_cache=False).logits
    if getattr(model.config, "final_logit_softcapping", None):
        found = model.config.final_logit_softcapping * torch.tanh(found / model.config.final_logit_softcapping)
    assert loaded.vocab == tuple(range(VOCAB))
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-4)


def test_a_recipe_needs_the_folder_of_its_target(drafts: Path, target: Path, tmp_path: Path) -> None:
    path = drafts / f"pruned{SUFFIX}"
    with pytest.raises(UserError, match="expected the target's folder, got none"):
        read_draft(path)
    with pytest.raises(UserError, match=r"found neither; check the path or fetch"):
        load_draft(path, target_folder=tmp_path / "elsewhere")
    tiny_network(num_hidden_layers=2).save_pretrained(tmp_path / "shallow")
    with pytest.raises(UserError, match=r"shallow has no 'model\.layers\.2\."):
        load_draft(path, target_folder=tmp_path / "shallow")
    tiny_network(intermediate_size=40).save_pretrained(tmp_path / "narrow")
    with pytest.raises(UserError, match="weights and configuration do not fit"):
        FileWork([path], target_folder=tmp_path / "narrow")(0)
    assert FileWork([path], target_folder=target)(0).name == "pruned"


def test_a_damaged_target_is_named(drafts: Path, tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_bytes(b"no weights")
    with pytest.raises(UserError, match=r"model\.safetensors: not a readable safetensors file"):
        load_draft(drafts / f"pruned{SUFFIX}", target_folder=tmp_path)


def test_a_family_with_other_names_in_its_files_is_refused(tmp_path: Path) -> None:
    model = random_model("gpt_neox", FAMILIES["gpt_neox"])
    model.save_pretrained(tmp_path)
    with pytest.raises(UserError, match=r"expected a tensor 'lm_head\.weight', found none: a family whose files"):
        make_recipe(model, tmp_path, (0,))


def test_a_recipe_without_a_head_is_not_written(model: Any, tmp_path: Path) -> None:
    header = DraftHeader("pruned", "code", "", draft_config(model, LAYERS), {})
    with pytest.raises(ValueError, match="expected a header with a recipe"):
        save_recipe(tmp_path / "x", header)


@pytest.mark.parametrize("layers", [(2, 0), (0, 0, 1), (), (0, 3), (-1, 0)])
def test_layers_must_be_the_targets_and_ascend(model: Any, layers: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="expected layers from 0 to 2"):
        draft_config(model, layers)


def written(model: Any, layers: tuple[int, ...], count: int, domain: str = "code", split: str = "train") -> list[Text]:
    """What the model writes with only these layers: the texts that the draft agrees with."""
    net, embed = pruned_net(model, layers), model.get_input_embeddings()
    texts = []
    for seed in range(count):
        ids = torch.randint(3, VOCAB, (6,), generator=torch.Generator().manual_seed(seed)).tolist()
        output: list[int] = []
        with torch.no_grad():
            while len(output) < 12 and END not in output:
                output.append(int(net(embed(torch.tensor([ids + output])))[0, -1].argmax()))
        name = f"{domain}-{split}-{seed}"
        prompt = Prompt(name, domain, split, "single", name, 0, "[]")  # type: ignore[arg-type]
        texts.append(Text(prompt, ids, output, ""))
    return texts


def test_the_layers_that_agree_best_are_kept(model: Any) -> None:
    assert list(runs_left_out(4, 2)) == [(2, 3), (0, 3), (0, 1)]
    for wanted in runs_left_out(3, 1):
        assert best_layers(model, 1, written(model, wanted, 3)) == (wanted, 1.0)


def cell(domain: str, split: str, kind: str, group: int, turns: int) -> list[Text]:
    name = f"{domain}-{split}-{kind}-{group}"
    return [Text(Prompt(f"{name}-{t}", domain, split, kind, name, t, "[]"), [5], [6], "") for t in range(turns)]  # type: ignore[arg-type]


def test_a_limit_keeps_whole_groups_evenly() -> None:
    texts = [
        text
        for split in ("train", "heldout")
        for kind, turns in (("single", 1), ("rag", 3), ("chat", 3))
        for group in range(9)
        for domain in ("code", "math")
        for text in cell(domain, split, kind, group, turns)
    ]
    chosen = limited(texts, 20)
    counts: dict[tuple[str, str, str], int] = {}
    for text in chosen:
        key = (text.prompt.split, text.prompt.domain, text.prompt.kind)
        counts[key] = counts.get(key, 0) + 1
    assert counts == {
        (split, domain, kind): 4 if kind == "single" else 3
        for split in ("train", "heldout")
        for domain in ("code", "math")
        for kind in ("single", "rag", "chat")
    }
    groups = {text.prompt.group for text in chosen}
    assert chosen == [text for text in texts if text.prompt.group in groups], "whole groups, in order"
    assert limited(texts, 1000) == texts and limited(texts, 2) == cell("code", "train", "single", 0, 1) + cell(
        "math", "train", "single", 0, 1
    ) + cell("code", "heldout", "single", 0, 1) + cell("math", "heldout", "single", 0, 1)


def shared_out(path: Path) -> list[str]:
    """Options for the traces of a file, split by split, as a zoo keeps them."""
    traces, options = TraceSet.load(path), []
    for split in ("train", "heldout"):
        part = path.with_name(f"{split}.parquet")
        dataclasses.replace(traces, traces=traces.split(split)).save(part)
        options += ["--traces", str(part)]
    return options


def recorded(target: Path, drafts: Path, out: Path, *corpus: str) -> TraceSet:
    arguments = ["--target", str(target), "--drafts", str(drafts), "--out", str(out), "--workers", "1", *corpus]
    assert recording.main(arguments) == 0
    return TraceSet.load(out)


def test_a_trace_file_is_a_corpus_and_a_recipe_makes_a_zoo(
    model: Any, target: Path, drafts: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fingerprint = target_fingerprint(model)
    ((ref, net),) = read_drafts(drafts, fingerprint, target)
    texts = written(model, (0, 1, 2), 4) + written(model, (0, 1, 2), 3, split="heldout")
    first = tmp_path / "first.parquet"
    traces = recording.Recorder(fingerprint, model.get_input_embeddings(), [(ref, net)], frozenset({END}))
    wanted = traces.record(texts, first)
    out = tmp_path / "second.parquet"
    again = recorded(target, drafts, out, "--corpus", str(first), "--limit", "3")
    assert [t.output_ids for t in again.traces] == [t.output_ids for t in wanted.traces if t.prompt_id[-1] != "3"]
    assert [tuple(text.output_ids) for text in read_corpus(first, fingerprint)] == [t.output_ids for t in wanted.traces]
    assert (again.traces[0].drafts[0].match == wanted.traces[0].drafts[0].match).all()
    with pytest.raises(UserError, match="expected traces of target other"):
        read_corpus(first, "other")

    arguments = ["--name", "tiny", "--target", str(target), "--drafts", str(drafts), *shared_out(out)]
    assert assembling.main([*arguments, "--out", str(tmp_path / "zoo"), "--no-lookup"]) == 0
    zoo = Zoo.load(tmp_path / "zoo")
    zoo.verify_files()
    (draft,) = zoo.drafts
    body = sum(parameter.numel() for parameter in net.body.parameters())
    assert draft.bytes == 4 * (body + VOCAB * 32) == load_draft(zoo.draft_path(0), target_folder=target).weight_bytes
    assert draft.kv_bytes_per_token * 3 == zoo.target.kv_bytes_per_token * 2
    assert 0.0 < draft.expected < 1.0
    assert "expected acceptance" in capsys.readouterr().out
    assert assembling.main([*arguments, "--traces", str(first), "--out", str(tmp_path / "zoo"), "--no-lookup"]) == 0
    dataclasses.replace(wanted, target="other").save(first)
    assert assembling.main([*arguments, "--traces", str(first), "--out", str(tmp_path / "zoo")]) == 2
    assert "record them together" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (["--layers", "0,5"], "expected layers from 0 to 2"),
        (["--drop", "3"], "expected to leave out 1 to 2 of 3 layers, got --drop 3"),
        (["--drop", "1"], "expected --corpus to choose layers by"),
    ],
)
def test_a_mistake_is_told(
    target: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], given: list[str], message: str
) -> None:
    assert module.main(["--target", str(target), "--out", str(tmp_path), *given]) == 2
    assert message in capsys.readouterr().err


def test_the_command_line_chooses_by_a_trace_file(
    model: Any, target: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    net = pruned_net(model, (0, 1, 2))
    recorder = recording.Recorder(
        target_fingerprint(model), model.get_input_embeddings(), [(DraftRef("a", "b"), net)], frozenset({END})
    )
    recorder.record(written(model, (0, 2), 3), tmp_path / "traces.parquet")
    arguments = ["--target", str(target), "--out", str(tmp_path), "--drop", "1", "--name", "x"]
    assert module.main([*arguments, "--corpus", str(tmp_path / "traces.parquet")]) == 0
    assert "x: left out [1], agreement 1.0" in capsys.readouterr().out
    header = read_draft_header(tmp_path / f"x{SUFFIX}")
    assert header.recipe is not None and header.recipe.layers == (0, 2)
    assert header.recipe.tensors[HEAD] == "model.embed_tokens.weight"
