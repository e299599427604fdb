"""The default target itself: speculation changes the time, never the text. Needs the model in the cache folder."""

from __future__ import annotations

import os
from functools import cache

import pytest
import torch
from transformers import AutoTokenizer

from runtime.core import DraftSpec, Request
from runtime.decoding.live import LiveDecoder
from runtime.engine.draft_file import HEAD, DraftFile, DraftHeader
from runtime.engine.draft_net import build_draft_net, draft_config
from runtime.engine.loaded_draft import LoadedDraft
from runtime.engine.sources import CACHE_VARIABLE, DEFAULT_MODEL, resolve_model
from runtime.engine.transformers_model import TransformersModel

pytestmark = [
    pytest.mark.slow,
    pytest.mark.exact,
    pytest.mark.skipif(CACHE_VARIABLE not in os.environ, reason=f"{CACHE_VARIABLE} names no folder with the target"),
]
NEW_TOKENS = 48


@cache
def models() -> tuple[TransformersModel, LoadedDraft, tuple[int, ...]]:
    """The target, its first two layers with every fourth row of the head, and a prompt."""
    folder = resolve_model(DEFAULT_MODEL)
    target = TransformersModel.load(folder, dtype=torch.float32)
    config = draft_config(target.model, 2)
    kept = ("layers.0.", "layers.1.", "norm")
    plain = {name: value for name, value in _weights(folder).items() if name.startswith(kept)}
    vocab = torch.arange(0, 49152, 4, dtype=torch.int32)
    plain[HEAD] = target.embed(vocab.tolist())[0].clone()
    net = build_draft_net(DraftFile(DraftHeader("raw", "", "", config, {}), vocab, plain)).requires_grad_(False)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    prompt = tokenizer.apply_chat_template(
        [{"role": "user", "content": "Write a Python function that reverses a list, then explain it."}],
        add_generation_prompt=True,
        return_dict=False,
    )
    return target, LoadedDraft("raw", net, tuple(vocab.tolist()), 0), tuple(prompt)


def _weights(folder: os.PathLike[str]) -> dict[str, torch.Tensor]:
    from safetensors.torch import load_file

    tensors = load_file(os.path.join(folder, "model.safetensors"))
    return {name.removeprefix("model."): tensor for name, tensor in tensors.items()}


def text(index: int | None, gamma: int, threshold: float = 0.0) -> tuple[int, ...]:
    target, draft, prompt = models()
    live = LiveDecoder(target, [DraftSpec("raw", 0), DraftSpec("lookup", 0, loadable=False)])
    tokens = [live.begin(Request("r", prompt, NEW_TOKENS, frozenset([2])), 0, ()).token]
    while len(tokens) < NEW_TOKENS and tokens[-1] != 2:
        tokens.extend(live.round(index, draft, gamma, threshold).tokens)
    return tuple(tokens)


@cache
def plain() -> tuple[int, ...]:
    first, second = text(None, 0), text(None, 0)
    assert first == second  # the control: plain decoding repeats itself
    return first


@pytest.mark.parametrize(("index", "gamma", "threshold"), [(0, 1, 0.0), (0, 4, 0.0), (1, 8, 0.0), (1, 4, 0.4)])
def test_text_is_the_targets_own(index: int, gamma: int, threshold: float) -> None:
    assert text(index, gamma, threshold) == plain()


def test_plain_text_is_what_transformers_generates() -> None:
    target, _, prompt = models()
    ids = torch.tensor([prompt])
    generated = target.model.generate(  # type: ignore[operator]
        ids, attention_mask=torch.ones_like(ids), max_new_tokens=NEW_TOKENS, do_sample=False
    )
    assert tuple(generated[0, len(prompt) :].tolist()) == plain()
