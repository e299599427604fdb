"""One tiny random model of every family, with drafts of it, for the tests of this folder."""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from transformers import PreTrainedModel

from runtime.core import DraftSpec, Request
from runtime.decoding.live import LiveDecoder
from runtime.engine.draft_file import HEAD
from runtime.engine.draft_net import DraftNet, draft_config
from runtime.engine.loaded_draft import LoadedDraft
from runtime.engine.transformers_model import TransformersModel
from tests.tiny import SETTINGS, VOCAB, random_model

WINDOW = 16
NEW_TOKENS = 64
SHORT = (5, 17, 3, 44, 9)
LONG = tuple(int(i) for i in torch.randint(0, VOCAB, (37,), generator=torch.Generator().manual_seed(3)))

_TWO = {**SETTINGS, "num_hidden_layers": 2, "initializer_range": 0.5}
_PLAIN_HEADS = {key: value for key, value in _TWO.items() if key != "head_dim"}
_MIXED = {"sliding_window": WINDOW, "layer_types": ["sliding_attention", "full_attention"]}
_GEMMA = {**_TWO, **_MIXED, "query_pre_attn_scalar": 8, "tie_word_embeddings": False}
_GPT2 = {
    "vocab_size": VOCAB, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 160, "initializer_range": 0.5,
    "bos_token_id": None, "eos_token_id": None,
}  # fmt: skip
FAMILIES: dict[str, dict[str, Any]] = {
    "llama": _TWO,
    "mistral": {**_TWO, "sliding_window": WINDOW},
    "qwen2": {**_TWO, **_MIXED, "use_sliding_window": True},
    "qwen3": {**_TWO, **_MIXED, "use_sliding_window": True},
    "gpt2": _GPT2,
    "gpt_neox": {**_PLAIN_HEADS, "tie_word_embeddings": False},
    "phi3": {**_PLAIN_HEADS, "sliding_window": WINDOW},
    "gemma2": {**_GEMMA, "attn_logit_softcapping": 4.0},
    "gemma3_text": _GEMMA,
}
WINDOWED = ("mistral", "qwen2", "qwen3", "phi3", "gemma2", "gemma3_text")
KINDS = ("good", "hostile", "random")
SEEDS = {"gpt2": 1, "gpt_neox": 2}
"""Where the text of seed 0 repeats itself."""
SPECS = tuple(DraftSpec(kind, 1000) for kind in KINDS)


def made(family: str, dtype: torch.dtype = torch.float32, **changes: Any) -> PreTrainedModel:
    """A fresh model of a family."""
    return random_model(family, {**FAMILIES[family], **changes}, dtype, SEEDS.get(family, 0))


def reading_network() -> PreTrainedModel:
    """Llama whose forward asks a tensor for the length of the text, to turn positions otherwise in long ones."""
    return made("llama", rope_parameters={"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 2.0})


def draft_of(source: PreTrainedModel, kind: str) -> LoadedDraft:
    """``good`` is the model itself, ``hostile`` its opposite, ``random`` its first layer and half the vocabulary."""
    vocab = torch.arange(0, VOCAB, 2 if kind == "random" else 1)
    net = DraftNet(draft_config(source, 1 if kind == "random" else 2), vocab)
    given, head = source.base_model.state_dict(), source.get_output_embeddings()  # type: ignore[no-untyped-call]
    weights = {name: given[name].float().clone() for name in net.body.state_dict()}
    rows = head.weight.detach().float()[vocab].clone()
    net.load_weights({**weights, HEAD: -rows if kind == "hostile" else rows})
    return LoadedDraft(kind, net.eval().requires_grad_(False), tuple(vocab.tolist()), 0)


@cache
def drafts(family: str) -> tuple[LoadedDraft, ...]:
    """Drafts by index, as ``SPECS``."""
    return tuple(draft_of(made(family), kind) for kind in KINDS)


def greedy_text(network: PreTrainedModel, prompt: tuple[int, ...], new_tokens: int = NEW_TOKENS) -> tuple[int, ...]:
    """Greedy text of an unpacked model by whole forwards without any cache."""
    ids = list(prompt)
    with torch.no_grad():
        for _ in range(new_tokens):
            ids.append(int(network(input_ids=torch.tensor([ids]), use_cache=False).logits[0, -1].argmax()))
    return tuple(ids[len(prompt) :])


@cache
def plain_text(family: str, prompt: tuple[int, ...]) -> tuple[int, ...]:
    """What every decoder has to write."""
    return greedy_text(made(family), prompt)


def decode(
    target: TransformersModel, payloads: tuple[LoadedDraft, ...], prompt: tuple[int, ...], gamma: int,
    new_tokens: int = NEW_TOKENS,
) -> tuple[tuple[int, ...], int]:  # fmt: skip
    """Text of a live decoder that takes the drafts in turn (gamma 0: none), and the guesses accepted."""
    live = LiveDecoder(target, SPECS)
    tokens = [live.begin(Request("r", prompt, new_tokens, frozenset()), 0, ()).token]
    accepted, turn = 0, 0
    while len(tokens) < new_tokens:
        index = turn % len(payloads)
        done = live.round(index if gamma else None, payloads[index] if gamma else None, gamma, 0.0)
        tokens.extend(done.tokens)
        accepted, turn = accepted + done.accepted, turn + 1
    return tuple(tokens), accepted
