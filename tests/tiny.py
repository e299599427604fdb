"""Tiny random models, made in the test: a target, and drafts that agree always, never or sometimes."""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from runtime.core import DraftSpec, Request
from runtime.decoding.live import LiveDecoder
from runtime.engine.draft_file import HEAD, DraftFile, DraftHeader
from runtime.engine.draft_net import build_draft_net, draft_config
from runtime.engine.fingerprint import target_fingerprint
from runtime.engine.loaded_draft import LoadedDraft
from runtime.engine.packing import pack_linears, weight_bytes
from runtime.engine.transformers_model import TransformersModel

torch.set_num_threads(1)  # tiny products are slower on more, and crawl beside other work

VOCAB = 61
PROMPT = (5, 17, 3, 44, 9, 17, 3, 44, 30, 2, 51)
SETTINGS: dict[str, Any] = {
    "vocab_size": VOCAB, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 3, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 8, "max_position_embeddings": 160, "initializer_range": 0.25,
    "tie_word_embeddings": True, "bos_token_id": None, "eos_token_id": None, "pad_token_id": None,
}  # fmt: skip


def random_model(
    family: str, settings: dict[str, Any], dtype: torch.dtype = torch.float32, seed: int = 0
) -> PreTrainedModel:
    """A model with random weights."""
    torch.manual_seed(seed)
    config = AutoConfig.for_model(family, **settings)
    model: PreTrainedModel = AutoModelForCausalLM.from_config(config, dtype=dtype)  # type: ignore[no-untyped-call]
    return model.eval()  # type: ignore[no-untyped-call, no-any-return]


def tiny_network(dtype: torch.dtype = torch.float32, seed: int = 0, **changes: Any) -> PreTrainedModel:
    """A random model whose greedy text has some variety."""
    return random_model("llama", {**SETTINGS, **changes}, dtype, seed)


@cache
def network() -> PreTrainedModel:
    """The target before it is packed; not to be changed."""
    return tiny_network()


def target(pack: bool = True) -> TransformersModel:
    """A fresh target."""
    return TransformersModel(tiny_network(), pack=pack)


def draft_parts(kind: str) -> DraftFile:
    """``always`` is the target itself, ``never`` its opposite, ``sometimes`` one layer and half the vocabulary."""
    source = network()
    vocab = torch.arange(0, VOCAB, 2 if kind == "sometimes" else 1, dtype=torch.int32)
    config = draft_config(source, 1 if kind == "sometimes" else 3)
    given = source.base_model.state_dict()
    weights = {
        name: tensor.clone()
        for name, tensor in given.items()
        if name != "embed_tokens.weight" and not (kind == "sometimes" and name.startswith(("layers.1", "layers.2")))
    }
    head = source.get_output_embeddings().weight.detach()[vocab.long()].clone()  # type: ignore[no-untyped-call]
    weights[HEAD] = -head if kind == "never" else head
    return DraftFile(DraftHeader(kind, "code", target_fingerprint(source), config, {}), vocab, weights)


def draft(kind: str) -> LoadedDraft:
    """A draft in memory."""
    parts = draft_parts(kind)
    net = build_draft_net(parts).requires_grad_(False)
    pack_linears(net)
    return LoadedDraft(kind, net, tuple(parts.vocab.tolist()), weight_bytes(net))


KINDS = ("always", "never", "sometimes")
LOOKUP = len(KINDS)
SPECS = (*(DraftSpec(kind, 1000) for kind in KINDS), DraftSpec("lookup", 0, loadable=False))


@cache
def drafts() -> tuple[LoadedDraft | None, ...]:
    """Payloads by draft index, as ``SPECS``."""
    return (*(draft(kind) for kind in KINDS), None)


def decoder(margin: float | None = None, **options: Any) -> LiveDecoder:
    """A fresh live decoder over all drafts."""
    return LiveDecoder(target(), SPECS, margin=margin, **options)


def request(max_new_tokens: int = 40, eos: tuple[int, ...] = (), prompt: tuple[int, ...] = PROMPT) -> Request:
    """A request of the tiny target."""
    return Request("r", prompt, max_new_tokens, frozenset(eos))


@cache
def plain_text(max_new_tokens: int = 40, prompt: tuple[int, ...] = PROMPT) -> tuple[int, ...]:
    """The target's own greedy text by whole forwards without any cache: the reference of everything."""
    ids = list(prompt)
    with torch.no_grad():
        for _ in range(max_new_tokens):
            ids.append(int(network()(input_ids=torch.tensor([ids])).logits[0, -1].argmax()))
    return tuple(ids[len(prompt) :])
