"""Layers: what a row gives does not depend on the rows beside it."""

from __future__ import annotations

import pytest
import torch

from headrace_engine.models.layers import Linear, RmsNorm

ROWS = 64


@pytest.mark.parametrize("inner", [256, 768, 1024, 1040, 2304, 4096], ids=lambda inner: f"of-{inner}")
@pytest.mark.parametrize("outer", [192, 768, 2304], ids=lambda outer: f"to-{outer}")
@pytest.mark.parametrize("kind", ["plain", "silu", "times", "plus"])
def test_a_row_of_a_product_is_the_same_to_the_bit_in_any_company(kind: str, inner: int, outer: int) -> None:
    torch.manual_seed(inner)
    linear = Linear((torch.randn(outer, inner) / inner**0.5).bfloat16())
    x, other = torch.randn(ROWS, inner).bfloat16(), torch.randn(ROWS, outer).bfloat16()

    def product(first: int, last: int) -> torch.Tensor:
        rows = x[first:last].contiguous()
        if kind == "plain":
            return linear(rows)
        if kind == "silu":
            return linear.silu(rows)
        return getattr(linear, kind)(rows, other[first:last].contiguous())  # type: ignore[no-any-return]

    whole = product(0, ROWS)
    for count in (1, 2, 3, 7, 33):
        for first in range(0, ROWS - count + 1, count):
            assert torch.equal(product(first, first + count), whole[first : first + count]), (count, first)


def test_a_row_of_a_norm_is_the_same_to_the_bit_in_any_company() -> None:
    norm, x = RmsNorm(torch.randn(768).bfloat16(), 1e-6), torch.randn(ROWS, 768).bfloat16()
    whole = norm(x)
    for count in (1, 2, 7):
        for first in range(0, ROWS - count + 1, count):
            assert torch.equal(norm(x[first : first + count]), whole[first : first + count])
