"""Products of compressed weights in floats: as exact as torch's, on every processor that compiles them."""

from __future__ import annotations

import pytest
import torch

from runtime.engine.native.blocks import Form, blocks_of
from runtime.engine.native.integers import IntegerLinear, has_integers
from runtime.engine.native.library import kernels
from runtime.engine.native.linear import BlockLinear
from tests.engine.native.older import OTHERS

pytestmark = pytest.mark.skipif(kernels() is None, reason="no C compiler")


def normal(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("older", OTHERS, indirect=True)
def test_an_older_processor_computes_the_same(older: None) -> None:
    for form in Form:
        blocks, x = blocks_of(normal(39, 96), form), normal(21, 96, seed=1)
        layer, expected = BlockLinear(blocks), x.double() @ blocks.weight().double().T
        for count in (1, 2, 5, 9, 21):
            torch.testing.assert_close(layer(x[:count]).double(), expected[:count], rtol=1e-5, atol=3e-5)


@pytest.mark.parametrize("form", Form)
@pytest.mark.parametrize("spread", [0.0, 0.5, 1.5])
def test_products_are_as_exact_as_torchs_for_the_largest_numbers(form: Form, spread: float) -> None:
    """Numbers of a row that differ by ``spread`` orders of magnitude, one standard deviation.

    Errors are measured in roundings of the largest products there could be: what is small beside them may be lost.
    """
    weight = blocks_of(normal(64, 576), form).weight()
    x = normal(20, 576, seed=1) * 10 ** (spread * normal(20, 576, seed=2))
    expected = x.double() @ weight.double().T
    rounding = x.double().abs().sum(dim=-1, keepdim=True) * weight.abs().max() * 2.0**-24

    def error(answer: torch.Tensor) -> float:
        return float(((answer.double() - expected) / rounding).square().mean().sqrt())

    assert error(BlockLinear(blocks_of(weight, form))(x)) <= max(1.1 * error(x @ weight.T), 0.05)


@pytest.mark.parametrize("form", Form)
def test_the_largest_number_of_a_block_is_no_special_one(form: Form) -> None:
    """Rows of one number only: the largest that digits hold, rounded up or down."""
    blocks = blocks_of(normal(16, 64), form)
    x = normal(300, 1, seed=1).expand(300, 64).contiguous()
    expected = x.double() @ blocks.weight().double().T
    torch.testing.assert_close(BlockLinear(blocks)(x).double(), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("layer", [BlockLinear, IntegerLinear])
def test_many_rows_are_the_same_rows(layer: type[BlockLinear]) -> None:
    """More than are rounded at once."""
    if layer is IntegerLinear and not has_integers():
        pytest.skip("no AVX-512 VNNI")
    made, x = layer(blocks_of(normal(40, 96), Form.FOUR)), normal(1100, 96, seed=1)
    whole = made(x)
    assert torch.equal(torch.cat([made(x[at : at + 7]) for at in range(0, 1100, 7)]), whole)


@pytest.mark.parametrize("form", Form)
@pytest.mark.parametrize("size", [0.0, 1e-40, 1e-31, 1e-29, 1e30])
def test_rows_of_any_size(form: Form, size: float) -> None:
    blocks, x = blocks_of(normal(16, 64), form), normal(3, 64, seed=1) * size
    expected = x.double() @ blocks.weight().double().T
    torch.testing.assert_close(BlockLinear(blocks)(x).double(), expected, rtol=1e-5, atol=1e-29 + 1e-6 * size)


@pytest.mark.parametrize("form", Form)
@pytest.mark.parametrize("odd", [float("nan"), float("inf"), -float("inf")])
def test_what_is_not_a_number_stays_in_its_row(form: Form, odd: float) -> None:
    layer, x = BlockLinear(blocks_of(normal(16, 64), form)), normal(3, 64, seed=1)
    x[1, 40] = odd
    answer = layer(x)
    assert torch.isfinite(answer[[0, 2]]).all()
    assert not torch.isfinite(answer[1]).any()
