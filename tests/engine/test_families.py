"""Every family of models writes its own text, whatever guesses, past the window and across its border."""

from __future__ import annotations

import pytest
import torch
from transformers import PreTrainedModel

from runtime.decoding.greedy import verify
from runtime.engine.transformers_model import TransformersModel
from tests.engine.families import (
    FAMILIES,
    LONG,
    NEW_TOKENS,
    SHORT,
    WINDOW,
    WINDOWED,
    decode,
    drafts,
    greedy_text,
    made,
    plain_text,
)
from tests.tiny import SETTINGS, VOCAB, random_model

pytestmark = pytest.mark.exact

TOKENS = [int(i) for i in torch.randint(0, VOCAB, (70,), generator=torch.Generator().manual_seed(1))]


def logits_of(network: PreTrainedModel, tokens: list[int]) -> torch.Tensor:
    """Of one whole forward without a cache, shape (n, vocab)."""
    with torch.no_grad():
        rows: torch.Tensor = network(input_ids=torch.tensor([tokens]), use_cache=False).logits[0]
    return rows


def assert_same(got: torch.Tensor, expected: torch.Tensor) -> None:
    torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("prompt", [SHORT, LONG], ids=["short", "long"])
def test_text_has_variety(family: str, prompt: tuple[int, ...]) -> None:
    assert len(set(plain_text(family, prompt)[WINDOW:])) > 8, "a text that repeats itself proves nothing"


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize(("gamma", "prompt"), [(1, SHORT), (2, LONG), (4, SHORT), (8, LONG)])
def test_text_is_the_targets_own(family: str, gamma: int, prompt: tuple[int, ...]) -> None:
    """Good, hostile and random drafts in turn, so every border is met by acceptances and by roll-backs.

    Sources: huggingface/transformers #48280, #46629, #37574 (speculation with sliding windows).
    """
    text, accepted = decode(TransformersModel(made(family)), drafts(family), prompt, gamma)
    assert text == plain_text(family, prompt)
    assert accepted >= NEW_TOKENS // 4  # the good draft is the target


@pytest.mark.parametrize("family", FAMILIES)
def test_perfect_guesses_are_accepted_and_wrong_ones_cut(family: str) -> None:
    text, target = plain_text(family, LONG), TransformersModel(made(family))
    target.forward(LONG, "last")
    done = verify(target, text[0], text[1:9], (), 1e-3)
    assert (done.tokens, done.accepted) == (text[1:10], 8)
    wrong = (*text[10:13], (text[13] + 1) % VOCAB, *text[14:17])
    cut = verify(target, text[9], wrong, (), 1e-3)
    assert (cut.tokens, cut.accepted) == (text[10:14], 3)


@pytest.mark.parametrize("family", WINDOWED)
@pytest.mark.parametrize("attention", ["eager", "sdpa"])
def test_rolls_back_inside_and_across_the_window(family: str, attention: str) -> None:
    """Widths 1 to 20 behind guesses that were taken back, before, on and behind the window's border.

    Sources: huggingface/transformers #48280, #46629, #37574.
    """
    if family == "gemma2" and attention == "sdpa":
        pytest.skip("soft-capped scores have no sdpa kernel; transformers refuses it")
    network = made(family)
    network.set_attn_implementation(attention)
    expected = logits_of(network, TOKENS)
    model = TransformersModel(network)
    for start, end in ((0, 9), (9, 10), (10, 14), (14, 17), (17, 18), (18, 38), (38, 39), (39, 47), (47, 70)):
        assert_same(model.forward(TOKENS[start:end], "all"), expected[start:end])
        model.forward(TOKENS[3:20], "last")  # rejected, longer than the window
        model.crop(end)
    for length in (WINDOW + 5, WINDOW, WINDOW - 1, 3):
        model.crop(length)
        assert_same(model.forward(TOKENS[length : length + 5], "all"), expected[length : length + 5])


@pytest.mark.parametrize("family", WINDOWED)
def test_window_hides_what_lies_outside(family: str) -> None:
    """The control: without its window the model says something else, so the window was not just ignored."""
    windowed, wide = made(family), made(family, sliding_window=1000)
    wide.load_state_dict(windowed.state_dict())
    ours, theirs = TransformersModel(windowed).forward(TOKENS, "all"), TransformersModel(wide).forward(TOKENS, "all")
    assert_same(ours[:WINDOW], theirs[:WINDOW])
    assert float((ours[WINDOW + 4 :] - theirs[WINDOW + 4 :]).abs().amax(dim=1).min()) > 0.01


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("reuse", [7, WINDOW, 30, 50])
def test_reused_kv_continues_past_the_window(family: str, reuse: int) -> None:
    network = made(family)
    expected = logits_of(network, TOKENS)
    model = TransformersModel(network)
    model.forward(TOKENS[:60], "last")
    pieces = [model.export_kv(0, 10), model.export_kv(10, 31), model.export_kv(31, 55)]
    model.reset()
    model.import_kv(pieces, reuse)
    got = torch.cat([model.forward(TOKENS[reuse : reuse + 1], "all"), model.forward(TOKENS[reuse + 1 :], "all")])
    assert_same(got, expected[reuse:])


def test_windowed_layers_keep_every_token() -> None:
    model = TransformersModel(made("mistral"))
    model.forward(TOKENS, "last")
    assert model.export_kv(0, 70).bytes == 70 * model.kv_bytes_per_token == 70 * 2 * 2 * 2 * 8 * 4


def test_chunked_attention_is_exact_too() -> None:
    """Llama 4: a token sees its own chunk only, and the router picks experts by token."""
    settings = {**SETTINGS, "attention_chunk_size": WINDOW, "num_local_experts": 2, "intermediate_size_mlp": 48}
    network = random_model("llama4_text", settings)
    expected = logits_of(network, TOKENS)
    model = TransformersModel(network)
    for start, end in ((0, 14), (14, 15), (15, 21), (21, 50), (50, 51), (51, 70)):
        assert_same(model.forward(TOKENS[start:end], "all"), expected[start:end])
        model.forward(TOKENS[:9], "last")
        model.crop(end)


def longrope_network() -> PreTrainedModel:
    rope = {
        "rope_type": "longrope", "rope_theta": 10000.0, "short_factor": [1.0] * 4, "long_factor": [4.0] * 4,
        "original_max_position_embeddings": 48,
    }  # fmt: skip
    return made("phi3", sliding_window=None, original_max_position_embeddings=48, rope_parameters=rope)


def test_longrope_is_used_up_to_the_border_of_its_short_factors() -> None:
    """Phi-3 with long context turns all positions anew behind the border, cached keys included."""
    network = longrope_network()
    before, after = logits_of(network, TOKENS[:48]), logits_of(network, TOKENS[:49])
    assert float((before - after[:48]).abs().max()) > 0.1
    model = TransformersModel(network)
    assert model.context_limit == 48
    assert_same(model.forward(TOKENS[:48], "all"), before)
    with pytest.raises(ValueError, match="at most 48 tokens"):
        model.forward([1], "last")


def test_longrope_text_is_the_targets_own() -> None:
    network = longrope_network()
    expected = greedy_text(network, SHORT, 40)
    assert decode(TransformersModel(network), drafts("phi3"), SHORT, 4, 40)[0] == expected


def test_learned_positions_end_with_the_table() -> None:
    """GPT-2 has a row per position: none may be read behind the last."""
    model = TransformersModel(made("gpt2", n_positions=32))
    assert model.context_limit == 32
    model.forward(TOKENS[:32], "last")
    with pytest.raises(ValueError, match="at most 32 tokens"):
        model.forward([1], "last")
