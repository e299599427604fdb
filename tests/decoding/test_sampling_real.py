"""Sampling with the default target and a draft of its zoo: the text is distributed as without the draft."""

from __future__ import annotations

import os
import time
from collections import Counter
from pathlib import Path

import pytest
import torch
from transformers import AutoTokenizer

from runtime.core import DraftSpec, Request, Sampling
from runtime.decoding.live import LiveDecoder
from runtime.engine.loaded_draft import LoadedDraft, load_draft
from runtime.engine.sources import CACHE_VARIABLE, DEFAULT_MODEL, resolve_model
from runtime.engine.transformers_model import TransformersModel
from tests.decoding.pearson import p_value

DRAFT = Path(__file__).parents[2] / "envs/zoo/smollm2/drafts/story.draft.safetensors"
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(CACHE_VARIABLE not in os.environ, reason=f"{CACHE_VARIABLE} names no folder with the target"),
    pytest.mark.skipif(not DRAFT.is_file(), reason="the default zoo is not in this checkout"),
]
SAMPLES = 300
TOKENS = 5
CHANCE = 1e-5
"""Of a false failure, over all positions together."""


def sampled(live: LiveDecoder, draft: LoadedDraft | None, prompt: tuple[int, ...], seed: int) -> tuple[int, ...]:
    """The first tokens of one text; the prompt's KV is in the decoder's target."""
    request = Request("r", prompt, TOKENS, sampling=Sampling(temperature=0.8, top_p=0.9, seed=seed))
    stored = live.target.export_kv(0, len(prompt) - 1)
    tokens = [live.begin(request, stored.length, [stored]).token]
    while not live.ended():
        tokens.extend(live.round(None if draft is None else 0, draft, 4 if draft else 0, 0.0).tokens)
    return tuple(tokens)


def two_sample(one: Counter[int], other: Counter[int]) -> float:
    """P-value that two samples of equal size are of one distribution; tokens seen fewer than 10 times are one cell."""
    cells, rare = [], [0, 0]
    for token in one.keys() | other.keys():
        if one[token] + other[token] >= 10:
            cells.append([one[token], other[token]])
        else:
            rare = [rare[0] + one[token], rare[1] + other[token]]
    if sum(rare):
        cells.append(rare)
    return p_value(sum((a - b) ** 2 / (a + b) for a, b in cells), len(cells) - 1)


def test_speculative_texts_are_distributed_as_plain_ones() -> None:
    folder = resolve_model(DEFAULT_MODEL)
    target, draft = TransformersModel.load(folder, dtype=torch.float32), load_draft(DRAFT)
    prompt = tuple(
        AutoTokenizer.from_pretrained(folder).apply_chat_template(
            [{"role": "user", "content": "Tell me a short story about a lighthouse."}],
            add_generation_prompt=True,
            return_dict=False,
        )
    )
    live = LiveDecoder(target, [DraftSpec("story", 0)])
    live.begin(Request("r", prompt, 1), 0, ())
    start = time.perf_counter()
    plain = [sampled(live, None, prompt, seed) for seed in range(SAMPLES)]
    drafted = [sampled(live, draft, prompt, SAMPLES + seed) for seed in range(SAMPLES)]
    found = [
        two_sample(Counter(text[position] for text in plain), Counter(text[position] for text in drafted))
        for position in range(TOKENS)
    ]
    print(f"p-values by position {[f'{p:.3g}' for p in found]}, {time.perf_counter() - start:.0f} s")
    assert len(set(plain)) > 20, "texts that are all the same prove nothing"
    assert min(found) > CHANCE / TOKENS
