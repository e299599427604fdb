"""Weights in fewer bits: found where they have that form, rounded where it is wanted."""

from __future__ import annotations

import pytest
import torch

from runtime.engine.native.blocks import Blocks, Form, blocks_of, exact, nearest, stacked


def normal(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("form", Form)
def test_a_weight_on_a_grid_is_found(form: Form) -> None:
    weight = blocks_of(normal(8, 64), form).weight()
    weight[3, :32] = 0.0
    found = exact(weight)
    assert found is not None
    assert found.form is form
    assert found.bytes < weight.numel() * 4 * 0.6
    torch.testing.assert_close(found.weight(), weight, rtol=0, atol=float(weight.abs().max()) * 2**-20)


def test_a_weight_on_no_grid_is_left() -> None:
    weight = normal(8, 64)
    assert exact(weight) is None
    almost = blocks_of(weight, Form.FOUR).weight()
    almost[7, 63] += 1e-3
    assert exact(almost) is None
    assert exact(normal(8, 40)) is None  # no whole blocks
    assert exact(torch.full((8, 64), float("nan"))) is None


@pytest.mark.parametrize("form", Form)
def test_large_weights_are_taken_in_pieces(form: Form, monkeypatch: pytest.MonkeyPatch) -> None:
    weight = blocks_of(normal(37, 96), form).weight()
    whole, threads = exact(weight), torch.get_num_threads()
    monkeypatch.setattr("runtime.engine.native.blocks.AT_ONCE", 400)
    pieces = exact(weight)
    assert whole is not None and pieces is not None
    assert pieces.form is whole.form is form
    assert torch.equal(pieces.codes, whole.codes) and torch.equal(pieces.scales, whole.scales)
    assert torch.get_num_threads() == threads
    spoiled = weight.clone()
    spoiled[36, 95] += 0.01
    assert exact(spoiled) is None  # seen in the last piece, too
    spoiled[36, 95] = float("inf")
    assert exact(spoiled) is None


def test_nearest_keeps_what_fits_and_rounds_the_rest() -> None:
    four = blocks_of(normal(8, 64), Form.FOUR).weight()
    kept, rounded = nearest(four), nearest(normal(8, 64))
    assert kept is not None
    assert rounded is not None
    assert (kept.form, rounded.form) == (Form.FOUR, Form.EIGHT)
    assert float((rounded.weight() - normal(8, 64)).abs().max()) < 4.5 / 127 / 2 * 1.01
    assert nearest(normal(8, 40)) is None


def test_only_like_weights_are_stacked() -> None:
    parts = [blocks_of(normal(n, 64, seed=n), Form.FOUR) for n in (4, 6)]
    joined = stacked(parts)
    assert joined is not None
    assert torch.equal(joined.weight(), torch.cat([part.weight() for part in parts]))
    assert stacked([parts[0], blocks_of(normal(4, 64), Form.EIGHT)]) is None
    assert stacked([parts[0], blocks_of(normal(4, 96), Form.FOUR)]) is None


def test_blocks_know_their_shape() -> None:
    blocks: Blocks = blocks_of(normal(5, 96), Form.FOUR)
    assert (blocks.outputs, blocks.width, blocks.bytes) == (5, 96, 5 * 3 * 20)


def test_a_weight_is_fp32_whatever_torch_makes_by_default() -> None:
    blocks = blocks_of(normal(5, 96), Form.EIGHT)
    torch.set_default_dtype(torch.bfloat16)
    try:
        assert blocks.weight().dtype == torch.float32
    finally:
        torch.set_default_dtype(torch.float32)
