"""Models and tokenizers that cannot work are refused at the start, with the reason and what to choose instead."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import AutoConfig, GenerationConfig, PreTrainedModel, PreTrainedTokenizerFast

from runtime.decoding.drafters.model import ModelDrafter
from runtime.decoding.live import LiveDecoder
from runtime.engine.dtypes import compute_dtype
from runtime.engine.suitability import refuse_unless_decoder
from runtime.engine.tokenizers import load_tokenizer, refuse_unless_model_has_rows, refuse_unless_same_tokenizer
from runtime.engine.transformers_model import TransformersModel
from runtime.errors import UserError
from runtime.live import open_models
from tests.engine.families import (
    KINDS,
    NEW_TOKENS,
    SHORT,
    SPECS,
    decode,
    draft_of,
    drafts,
    greedy_text,
    made,
    plain_text,
)
from tests.tiny import SETTINGS, VOCAB, random_model
from tests.tiny_zoo import TinyZoo

SMALL = {"vocab_size": VOCAB, "hidden_size": 32, "num_hidden_layers": 2, "pad_token_id": None, "eos_token_id": None}
HEADS = {**SETTINGS, "num_hidden_layers": 2}
REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "mamba": (SMALL, "recurrent state"),
    "recurrent_gemma": (
        {**SMALL, "num_attention_heads": 4, "intermediate_size": 48, "lru_width": 32, "attention_window_size": 16},
        "recurrent state",
    ),
    "lfm2": ({**HEADS, "layer_types": ["conv", "full_attention"]}, "layers of kind conv, which keep a recurrent state"),
    "bamba": (
        {**HEADS, "attn_layer_indices": [1], "mamba_n_heads": 4, "mamba_d_head": 16, "mamba_d_state": 8},
        "recurrent state",
    ),
    "qwen3_next": ({**HEADS, "layer_types": ["linear_attention", "full_attention"]}, "recurrent state"),
    "gemma3_text": ({**HEADS, "use_bidirectional_attention": True}, "bidirectional attention"),
}  # fmt: skip


@pytest.mark.parametrize("family", REFUSED)
def test_models_that_cannot_roll_back_are_refused(family: str) -> None:
    """Sources: ggml-org/llama.cpp #20080, #28118 (recurrent and hybrid targets write garbage or crash half-way)."""
    settings, reason = REFUSED[family]
    network = random_model(family, settings)
    with pytest.raises(UserError, match=f"{reason}.*choose a target whose layers are all attention"):
        TransformersModel(network)


@pytest.mark.parametrize(
    ("family", "settings", "reason"),
    [
        ("t5", {"vocab_size": VOCAB, "d_model": 32, "num_layers": 1}, "encoder-decoder"),
        ("bart", {"vocab_size": VOCAB, "d_model": 32, "encoder_layers": 1, "decoder_layers": 1}, "encoder-decoder"),
        ("lfm2", {**HEADS, "layer_types": ["conv", "full_attention"]}, "recurrent state"),
    ],
)
def test_folders_are_refused_by_their_configuration(
    family: str, settings: dict[str, Any], reason: str, tmp_path: Path
) -> None:
    """Before any weight is read: there is none here. Sources: huggingface/transformers #30312, #32946."""
    AutoConfig.for_model(family, **settings).save_pretrained(tmp_path)
    with pytest.raises(UserError, match=f"{reason}.*choose a target"):
        TransformersModel.load(tmp_path)


def test_encoder_decoder_in_memory_is_refused() -> None:
    with pytest.raises(UserError, match="the model is an encoder-decoder; expected a decoder-only model"):
        refuse_unless_decoder(AutoConfig.for_model("t5"), "the model")


@pytest.mark.exact
def test_a_cache_the_model_asks_for_is_not_used() -> None:
    """A static cache in the generation settings cannot be cropped; the engine brings its own.

    Sources: huggingface/transformers #30312, #32946 (assisted generation fails late on caches without a roll-back).
    """
    network = made("gemma2")
    network.generation_config = GenerationConfig(cache_implementation="static")  # type: ignore[no-untyped-call]
    assert decode(TransformersModel(network), drafts("gemma2"), SHORT, 4)[0] == plain_text("gemma2", SHORT)


def _keeping_state(network: PreTrainedModel) -> None:
    """Make a layer remember its last input outside the cache, as a recurrent layer nobody declared would."""
    module: Any = network.get_submodule("model.layers.0.mlp")
    seen: list[torch.Tensor] = [torch.zeros(32)]

    def mix(_: object, __: object, out: torch.Tensor) -> torch.Tensor:
        seen[0] = 0.9 * seen[0] + out[0].sum(dim=0)
        return out + seen[0]

    module.register_forward_hook(mix)


def _failing_with_a_cache(network: PreTrainedModel) -> None:
    def fail(*_: object) -> None:
        raise TypeError("no cache of this kind")

    network.get_submodule("model.layers.0").register_forward_pre_hook(fail)


def _without_numbers(network: PreTrainedModel) -> None:
    torch.nn.init.constant_(network.get_parameter("model.norm.weight"), float("nan"))


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (_keeping_state, "taken back still changes what follows"),
        (_failing_with_a_cache, "TypeError: no cache of this kind"),
        (_without_numbers, "logits are not finite"),
    ],
)
def test_undeclared_state_is_found_by_trying(change: Callable[[PreTrainedModel], None], reason: str) -> None:
    """Sources: ggml-org/llama.cpp #20080, #28118 (state that no flag tells of)."""
    network = made("llama")
    change(network)
    with pytest.raises(UserError, match=f"{reason}.*choose a target"):
        TransformersModel(network, pack=False)


# -- vocabularies ------------------------------------------------------------------------------------------------------


@dataclass
class Vocab:
    """The part of a tokenizer that is compared."""

    tokens: Mapping[str, int]

    def get_vocab(self) -> Mapping[str, int]:
        return self.tokens


def word_tokenizer(words: int, shift: int = 0) -> PreTrainedTokenizerFast:
    """A tokenizer of ``words`` words w0, w1, …, with ids turned by ``shift``."""
    inner = Tokenizer(models.WordLevel({f"w{i}": (i + shift) % words for i in range(words)}, unk_token="w0"))
    inner.pre_tokenizer = pre_tokenizers.Whitespace()
    return PreTrainedTokenizerFast(tokenizer_object=inner)  # type: ignore[no-untyped-call]


def test_token_maps_are_compared_not_sizes() -> None:
    """Source: huggingface/transformers #30728 (equal sizes passed for equal tokenizers)."""
    ours = Vocab({"a": 0, "b": 1, "c": 2})
    refuse_unless_same_tokenizer(ours, Vocab({"c": 2, "b": 1, "a": 0}))
    with pytest.raises(UserError, match=r"differ in 2 of 3 tokens: 'b' has id 1 in one and 2 in the other"):
        refuse_unless_same_tokenizer(ours, Vocab({"a": 0, "b": 2, "c": 1}))
    with pytest.raises(UserError, match=r"differ in 1 of 4 tokens: 'd' has id none in one and 3 in the other"):
        refuse_unless_same_tokenizer(ours, Vocab({"a": 0, "b": 1, "c": 2, "d": 3}))


def test_tokenizer_with_more_tokens_than_the_model_is_refused() -> None:
    with pytest.raises(UserError, match=r"ids up to 61 \('w61'\), expected less than 61 \(the model's rows\)"):
        refuse_unless_model_has_rows(word_tokenizer(VOCAB + 1), VOCAB)
    refuse_unless_model_has_rows(word_tokenizer(VOCAB), VOCAB)
    refuse_unless_model_has_rows(word_tokenizer(VOCAB), 128)  # padded rows


def test_folder_without_a_tokenizer_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"expected a folder with a tokenizer .*specpilot pull"):
        load_tokenizer(tmp_path)


def test_another_tokenizer_must_mean_the_same_ids(tiny_zoo: TinyZoo, tmp_path: Path) -> None:
    """Source: huggingface/transformers #30728."""
    source = str(tiny_zoo.target)
    size = len(load_tokenizer(source))
    word_tokenizer(size, shift=1).save_pretrained(tmp_path)
    with pytest.raises(UserError, match="the tokenizers differ"):
        open_models(tiny_zoo.zoo, source, threads=1, tokenizer=str(tmp_path))
    same = open_models(tiny_zoo.zoo, source, threads=1, tokenizer=source, dtype="int8")
    assert same.target.dtype == compute_dtype(torch.int8)
    with pytest.raises(UserError, match="unknown dtype 'int4'"):
        open_models(tiny_zoo.zoo, source, threads=1, dtype="int4")


@pytest.mark.exact
def test_rows_behind_the_tokenizer_are_ordinary_tokens() -> None:
    """A table padded to 128 rows: the text is the model's own, padded rows included, and decodes to words."""
    network, tokenizer = made("llama", vocab_size=128), word_tokenizer(VOCAB)
    expected, payloads = greedy_text(network, SHORT), tuple(draft_of(network, kind) for kind in KINDS)
    model = TransformersModel(network)
    refuse_unless_model_has_rows(tokenizer, model.vocab_size)
    text, _ = decode(model, payloads, SHORT, 4)
    assert text == expected
    known = [token for token in text if token < VOCAB]
    assert 0 < len(known) < NEW_TOKENS, "some tokens of this text are to be padded rows"
    assert str(tokenizer.decode(list(text))).split() == [f"w{token}" for token in known]


def test_drafts_with_ids_beyond_the_target_are_refused() -> None:
    """Source: ggml-org/llama.cpp #17480 (draft ids beyond the target's vocabulary)."""
    model, payload = TransformersModel(made("llama", vocab_size=40)), drafts("llama")[0]
    with pytest.raises(UserError, match="belongs to another target"):
        ModelDrafter(payload, model.embed, model.vocab_size)
    with pytest.raises(UserError, match="belongs to another target"):
        decode(model, (payload,), SHORT[:3], 2)
    with pytest.raises(UserError, match="the prompt has token id 44, expected 0 to 39"):
        decode(model, (payload,), SHORT, 2)
    live = LiveDecoder(model, SPECS)
    with pytest.raises(UserError, match="draft 'good' has token id 40"):
        live._refuse_unless_known([3, 40], 0)
