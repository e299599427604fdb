"""The llama.cpp engine where it is not like the others: its weights, its drafts, its texts, what it refuses."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from runtime.decoding.drafters.model import ModelDrafter
from runtime.decoding.greedy import margin_for
from runtime.decoding.live import LiveDecoder
from runtime.engine.draft_file import HEAD, SUFFIX, DraftHeader, save_draft
from runtime.engine.draft_net import draft_config
from runtime.engine.drafts import draft_loader
from runtime.engine.fingerprint import target_fingerprint
from runtime.engine.kv_state import KVState
from runtime.engine.llamacpp import draft as draft_module
from runtime.engine.llamacpp.draft import NativeDraft, load_native_draft
from runtime.engine.llamacpp.draft_gguf import can_convert
from runtime.engine.llamacpp.library import is_installed
from runtime.engine.llamacpp.model import EXACT_MARGIN, WIDE_MARGIN, LlamaCppModel
from runtime.engine.loaded_draft import LoadedDraft
from runtime.engine.transformers_model import TransformersModel
from runtime.errors import UserError
from tests import tiny
from tests.tiny import PROMPT, VOCAB, tiny_network
from tests.tiny_gguf import write_gguf_and_folder

pytestmark = pytest.mark.skipif(not is_installed(), reason="llama-cpp-python is not installed")
TOKENS = [int(i) for i in torch.randint(0, VOCAB, (60,), generator=torch.Generator().manual_seed(3))]
WIDE: dict[str, Any] = {"hidden_size": 64, "intermediate_size": 96, "head_dim": 16}
"""A model whose rows are blocks of 32: its drafts can be in 8 bit."""


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return write_gguf_and_folder(tmp_path_factory.mktemp("gguf"))


def opened(files: tuple[Path, Path]) -> LlamaCppModel:
    return LlamaCppModel.load(*files, threads=1)


# -- the target --------------------------------------------------------------------------------------------------


def test_logits_are_those_of_the_same_weights_in_torch(files: tuple[Path, Path]) -> None:
    ours, theirs = opened(files).forward(TOKENS, "all"), TransformersModel(tiny_network()).forward(TOKENS, "all")
    assert (ours - theirs).abs().max() < 0.01 * (theirs.max() - theirs.min())
    assert (ours.argmax(-1) == theirs.argmax(-1)).float().mean() > 0.9


def test_a_long_prompt_goes_in_parts(tmp_path: Path) -> None:
    files = write_gguf_and_folder(tmp_path, max_position_embeddings=2048)
    tokens = [int(i) for i in torch.randint(0, VOCAB, (1100,), generator=torch.Generator().manual_seed(4))]
    model, parts = opened(files), opened(files)
    last = model.forward(tokens, "last")
    assert model.length == 1100
    rows = torch.cat([parts.forward(tokens[at : at + 100], "all") for at in range(0, 1100, 100)])
    torch.testing.assert_close(last[0], rows[-1], rtol=0, atol=0.02)
    model.reset()
    torch.testing.assert_close(model.forward(tokens[:300], "all"), rows[:300], rtol=0, atol=0.02)


def test_the_context_is_bounded(files: tuple[Path, Path]) -> None:
    assert LlamaCppModel.load(*files, threads=1, context_tokens=50).context_limit == 50
    assert LlamaCppModel.load(*files, threads=1, context_tokens=5000).context_limit == 160  # the model's
    with pytest.raises(UserError, match="at least 2"):
        LlamaCppModel.load(*files, threads=1, context_tokens=1)


def test_damaged_kv_is_refused_and_leaves_nothing(files: tuple[Path, Path]) -> None:
    model = opened(files)
    model.forward(TOKENS, "last")
    good = model.export_kv(0, 32)
    with pytest.raises(RuntimeError, match="read 0 of"):
        model.import_kv([KVState.opaque(torch.zeros_like(good.buffer), 32)], 32)
    assert model.length == 0
    model.import_kv([good], 32)
    assert model.length == 32


def test_a_damaged_file_is_refused_with_what_llamacpp_says(files: tuple[Path, Path], tmp_path: Path) -> None:
    path = tmp_path / "bad.gguf"
    path.write_bytes(files[0].read_bytes()[:5000])
    with pytest.raises(UserError, match=r"bad\.gguf: llama\.cpp cannot read this model \(.+\); check the file"):
        LlamaCppModel.load(path, files[1], threads=1)


def test_file_and_folder_of_different_models_are_refused(files: tuple[Path, Path], tmp_path: Path) -> None:
    tiny_network(vocab_size=VOCAB + 3).save_pretrained(tmp_path)
    with pytest.raises(UserError, match=r"has 61 tokens, .* has 64: they are of different models"):
        LlamaCppModel.load(files[0], tmp_path, threads=1)


def test_a_folder_without_weights_is_refused(files: tuple[Path, Path], tmp_path: Path) -> None:
    shutil.copy(files[1] / "config.json", tmp_path)
    with pytest.raises(UserError, match="specpilot pull"):
        LlamaCppModel.load(files[0], tmp_path, threads=1)


def test_gemma_reads_a_scaled_table(tmp_path: Path) -> None:
    from runtime.engine.llamacpp.folder import ConvertedFolder

    settings = {key: value for key, value in tiny.SETTINGS.items() if key != "initializer_range"}
    network = tiny.random_model("gemma2", settings)
    network.save_pretrained(tmp_path)
    folder = ConvertedFolder(tmp_path)
    assert torch.equal(folder.embed(TOKENS), network.get_input_embeddings()(torch.tensor([TOKENS])))
    assert folder.fingerprint() == TransformersModel(network).fingerprint


# -- the text ----------------------------------------------------------------------------------------------------


@pytest.mark.exact
@pytest.mark.parametrize("draft", [0, 1, 2, tiny.LOOKUP])
def test_the_text_does_not_depend_on_the_draft(files: tuple[Path, Path], draft: int) -> None:
    def text(draft: int | None, gamma: int) -> list[int]:
        decoder = LiveDecoder(opened(files), tiny.SPECS)
        tokens = [decoder.begin(tiny.request(60), 0, ()).token]
        while not decoder.ended():
            payload = None if draft is None else tiny.drafts()[draft]
            done = decoder.round(draft, payload, gamma, 0.0)
            drafted.append(done.drafted)
            accepted.append(done.accepted)
            tokens += done.tokens
        return tokens

    drafted, accepted = list[int](), list[int]()
    plain = text(None, 0)
    assert len(set(plain)) > 5
    assert sum(drafted) == 0
    for gamma in (1, 2, 4, 8):
        assert text(draft, gamma) == plain
    assert sum(drafted) > 0
    assert sum(accepted) >= (100 if draft == 0 else 0)  # ``always`` is the target itself, in torch


# -- drafts ------------------------------------------------------------------------------------------------------


@pytest.fixture
def draft_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A draft file of a model in blocks, and a cache folder of its own."""
    monkeypatch.setenv("SPECPILOT_CACHE", str(tmp_path / "cache"))
    source = tiny_network(**WIDE)
    vocab = torch.arange(0, VOCAB, 2, dtype=torch.int32)
    config = draft_config(source, 3)
    weights = {name: weight for name, weight in source.base_model.state_dict().items() if name != "embed_tokens.weight"}
    weights[HEAD] = source.get_output_embeddings().weight.detach()[vocab.long()].clone()  # type: ignore[no-untyped-call]
    header = DraftHeader("even", "code", target_fingerprint(source), config, {})
    path = tmp_path / f"even{SUFFIX}"
    save_draft(path, header, vocab, weights)
    return path


def native(path: Path) -> NativeDraft:
    draft = load_native_draft(path, "", threads=1, cells=160)
    assert draft is not None
    return draft


def embedded(tokens: list[int]) -> torch.Tensor:
    rows: torch.Tensor = tiny_network(**WIDE).get_input_embeddings()(torch.tensor([tokens])).detach()
    return rows


def test_a_draft_guesses_as_in_torch(draft_path: Path) -> None:
    ours = native(draft_path).sequence().forward(embedded(TOKENS), len(TOKENS))
    torch_draft = draft_loader("transformers", "float32", 1, 160)(draft_path, "cpu", None, "")
    assert isinstance(torch_draft, LoadedDraft)
    with torch.inference_mode():
        theirs = torch_draft.sequence().forward(embedded(TOKENS), len(TOKENS))
    assert ours.shape == theirs.shape == (len(TOKENS), len(torch_draft.vocab))
    assert (ours - theirs).abs().mean() < 0.02 * (theirs.max() - theirs.min())  # weights and activations in 8 bit
    assert (ours.argmax(-1) == theirs.argmax(-1)).float().mean() > 0.8


def test_a_drafts_sequence_rolls_back(draft_path: Path) -> None:
    draft = native(draft_path)
    sequence, control = draft.sequence(), draft.sequence()
    rows = embedded(TOKENS)
    expected = control.forward(rows, 30)
    got = [sequence.forward(rows[:, :40], 10)]
    sequence.forward(rows[:, 3:9], 1)
    sequence.crop_to(40)
    sequence.crop_to(50)
    got.append(sequence.forward(rows[:, 40:], 20))
    torch.testing.assert_close(torch.cat(got), expected, rtol=0, atol=0.05)


def test_many_tokens_go_in_parts(draft_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = embedded(TOKENS)
    expected = native(draft_path).sequence().forward(rows, 25)
    monkeypatch.setattr(draft_module, "DRAFT_BATCH", 16)
    monkeypatch.setattr(draft_module, "DRAFT_OUTPUTS", 8)
    got = native(draft_path).sequence().forward(rows, 25)
    torch.testing.assert_close(got, expected, rtol=0, atol=0.05)


def test_a_draft_is_converted_once(draft_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = native(draft_path)
    monkeypatch.setattr(draft_module, "write_draft_gguf", lambda *_: pytest.fail("converted again"))
    second = draft_loader("llamacpp", "float16", 1, 160)(draft_path, "cpu", None, "")
    assert isinstance(second, NativeDraft)
    assert (second.name, second.vocab, second.weight_bytes) == (first.name, first.vocab, first.weight_bytes)
    assert 0 < second.weight_bytes < sum(weight.numel() * 4 for weight in tiny_network(**WIDE).parameters())


@pytest.mark.parametrize("damage", ["cut short", "not a GGUF file", "empty"])
def test_a_damaged_conversion_is_made_again(
    draft_path: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture, damage: str
) -> None:
    expected = native(draft_path).sequence().forward(embedded(TOKENS), 5)
    (kept,) = (tmp_path / "cache" / "drafts").glob("*.gguf")
    whole = kept.read_bytes()
    kept.write_bytes({"cut short": whole[:-2048], "not a GGUF file": b"x" * len(whole), "empty": b""}[damage])
    again = native(draft_path).sequence().forward(embedded(TOKENS), 5)
    assert kept.read_bytes() == whole and torch.equal(again, expected)
    assert [record.getMessage() for record in caplog.records if "converted again" in record.getMessage()]


def test_a_conversion_that_never_works_is_made_once(draft_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Path] = []

    def write_nonsense(parts: object, path: Path) -> None:
        made.append(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"nonsense")

    monkeypatch.setattr(draft_module, "write_draft_gguf", write_nonsense)
    for times in (1, 2):
        with pytest.raises(UserError, match=r"\.gguf: llama\.cpp cannot read this model"):
            native(draft_path)
        assert len(made) == times


def test_what_llamacpp_cannot_run_runs_in_torch(draft_path: Path) -> None:
    config: dict[str, Any] = tiny_network(**WIDE).config.to_dict()
    assert can_convert(config)
    for change in (
        {"model_type": "qwen2"}, {"attention_bias": True}, {"mlp_bias": True}, {"hidden_act": "gelu"},
        {"hidden_size": 48}, {"intermediate_size": 40}, {"rope_parameters": {"rope_type": "llama3"}},
    ):  # fmt: skip
        assert not can_convert({**config, **change}), change
    parts = tiny.draft_parts("sometimes")  # rows of 48
    path = draft_path.with_name(f"sometimes{SUFFIX}")
    save_draft(path, parts.header, parts.vocab, parts.tensors)
    assert isinstance(draft_loader("llamacpp", "float16", 1, 160)(path, "cpu", None, ""), LoadedDraft)


def test_a_drafter_runs_it(draft_path: Path) -> None:
    """Guesses in llama.cpp are those of its own greedy text, and rejected ones leave no trace."""
    draft = native(draft_path)
    table = tiny_network(**WIDE).get_input_embeddings()
    drafter = ModelDrafter(draft, lambda tokens: table(torch.tensor([tokens])).detach(), VOCAB)
    proposal = drafter.propose(PROMPT, len(PROMPT), 6, 0.0, ())
    assert len(proposal.tokens) == proposal.steps == 6
    assert set(proposal.tokens) <= set(draft.vocab)
    drafter.settle(len(PROMPT) - 1)
    again = drafter.propose(PROMPT, len(PROMPT), 6, 0.0, ())
    assert again.tokens == proposal.tokens
    assert again.catch_up_tokens == 0


# -- rounding ----------------------------------------------------------------------------------------------------


def test_a_file_whose_width_changes_bits_gets_a_wide_margin(files: tuple[Path, Path]) -> None:
    """The tiny file's fp32 products have a kernel for several rows: its bits depend on the width, if by very little."""
    model = opened(files)
    assert model.guard_margin in (EXACT_MARGIN, WIDE_MARGIN)
    assert margin_for(model) == model.guard_margin
    assert LiveDecoder(model, ())._margin == model.guard_margin
    plain = model._native.decode

    def noisy(tokens: list[int], start: int, outputs: int) -> torch.Tensor:
        return plain(tokens, start, outputs) + 0.01 * (len(tokens) > 1)

    model._native.decode = noisy  # type: ignore[method-assign, assignment]
    assert model._measure_margin() == WIDE_MARGIN
    model._native.decode = plain  # type: ignore[method-assign]
    assert model._measure_margin() == model.guard_margin
    assert model.length == 0
