"""Compiled operations against torch: results, rounding, values that are no numbers, rows in company."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from headrace_engine.kernels import cpu
from headrace_engine.kernels.cpu import Norm, NormRotate, Rotate, Scatter
from headrace_engine.models.layers import HeadRotation, RmsNorm

STEP = 2.0**-8  # half a step of bfloat16, relative
ROWS, HEADS, TURNED, DIM = 9, 5, 3, 32


def near(got: Tensor, wanted: Tensor) -> None:
    """bfloat16 is the fp32 result, rounded once; a result on the border between two may be either."""
    torch.testing.assert_close(got.float(), wanted, rtol=1.01 * STEP, atol=1e-6)


def turns(rows: int) -> Tensor:
    """Rotations, fp32 [rows, 2, DIM / 2]."""
    angles = torch.randn(rows, DIM // 2) * 5
    return torch.stack((angles.cos(), angles.sin()), 1)


@given(rows=st.integers(1, 40), size=st.integers(1, 300), scale=st.sampled_from([1e-30, 1e-3, 1.0, 1e4]))
@settings(deadline=None)
def test_a_norm_is_that_of_torch(rows: int, size: int, scale: float) -> None:
    torch.manual_seed(rows * 1000 + size)
    x, weight = (torch.randn(rows, size) * scale).bfloat16(), torch.randn(size).bfloat16()
    near(Norm(weight, 1e-6)(x), F.rms_norm(x.float(), (size,), weight.float(), 1e-6))


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_a_row_with_a_value_that_is_no_number_spoils_itself_alone(bad: float) -> None:
    x, weight = torch.randn(4, 64).bfloat16(), torch.ones(64).bfloat16()
    clean = Norm(weight, 1e-6)(x)
    x[2, 5] = bad
    got = Norm(weight, 1e-6)(x)
    assert got[2, 5].isnan()
    assert torch.equal(got[[0, 1, 3]], clean[[0, 1, 3]])


def test_zeros_over_no_epsilon_are_no_number() -> None:
    assert Norm(torch.ones(8).bfloat16(), 0.0)(torch.zeros(1, 8).bfloat16()).isnan().all()


def test_a_norm_of_columns_that_are_not_neighbours() -> None:
    x, weight = torch.randn(6, 64).bfloat16(), torch.randn(32).bfloat16()
    norm = Norm(weight, 1e-6)
    assert torch.equal(norm(x[::2, ::2]), norm(x[::2, ::2].clone()))


@pytest.mark.parametrize("normed", [True, False], ids=["normed", "as-they-are"])
def test_heads_are_rotated_as_in_float32_and_the_others_left(normed: bool) -> None:
    torch.manual_seed(3)
    qkv, weight, by = torch.randn(ROWS, HEADS * DIM).bfloat16(), torch.randn(TURNED, DIM).bfloat16(), turns(ROWS)
    wide = qkv.float()
    HeadRotation(TURNED, DIM, RmsNorm(weight.float(), 1e-6) if normed else None, torch.float32)(wide, by)
    got = qkv.clone()
    HeadRotation(TURNED, DIM, RmsNorm(weight, 1e-6) if normed else None, torch.bfloat16)(got, by)
    near(got[:, : TURNED * DIM], wide[:, : TURNED * DIM])
    assert torch.equal(got[:, TURNED * DIM :], qkv[:, TURNED * DIM :])


@given(st.lists(st.floats(width=32), min_size=1, max_size=16))
@settings(deadline=None)
def test_floats_are_rounded_as_torch_rounds_them(values: list[float]) -> None:
    """A rotation of 1 and 0 gives the cosine and the sine, here any numbers."""
    by = torch.zeros(1, 2, 16)
    by[0, 0, : len(values)] = torch.tensor(values)
    x = torch.zeros(1, 32).bfloat16()
    x[0, :16] = 1
    Rotate(1, 32)(x, by)
    torch.testing.assert_close(x[0, :16], by[0, 0].bfloat16(), rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("tie", [0x3F808000, 0x3F818000, 0x7F7FFFFF, 0x00008000, 0x80018000])
def test_ties_go_to_the_even_one(tie: int) -> None:
    value = torch.tensor([tie if tie < 1 << 31 else tie - (1 << 32)], dtype=torch.int32).view(torch.float32)
    by, x = torch.zeros(1, 2, 1), torch.tensor([[1.0, 0.0]]).bfloat16()
    by[0, 0, 0] = value
    Rotate(1, 2)(x, by)
    assert torch.equal(x[0, :1].view(torch.int16), value.bfloat16().view(torch.int16))


def test_a_row_is_the_same_to_the_bit_in_any_company() -> None:
    torch.manual_seed(5)
    qkv, weight, by = torch.randn(64, HEADS * DIM).bfloat16(), torch.randn(TURNED, DIM).bfloat16(), turns(64)
    for rotate in (NormRotate(weight, 1e-6), Rotate(TURNED, DIM)):
        whole = qkv.clone()
        rotate(whole, by)
        for first in range(64):
            alone = qkv[first : first + 1].clone()
            rotate(alone, by[first : first + 1])
            assert torch.equal(alone, whole[first : first + 1]), first


@given(st.permutations(range(20)), st.integers(1, 20), st.integers(0, HEADS - 1))
@settings(deadline=None)
def test_scattered_rows_lie_in_their_slots_and_nothing_else_changes(order: list[int], count: int, first: int) -> None:
    x, slots = torch.randn(count, HEADS, DIM).bfloat16(), torch.tensor(order[:count])
    out = torch.randn(HEADS - first, 20, DIM).bfloat16()
    wanted = out.index_copy(1, slots, x[:, first:].transpose(0, 1))
    Scatter()(x, first, slots, out)
    assert torch.equal(out, wanted)


@pytest.mark.parametrize("slot", [-1, 20, 1 << 40])
def test_a_slot_that_there_is_not_is_an_error_and_nothing_is_written_there(slot: int) -> None:
    x, out = torch.ones(2, HEADS, DIM).bfloat16(), torch.zeros(HEADS, 20, DIM).bfloat16()
    with pytest.raises(IndexError, match=f"slots from {min(3, slot)} to {max(3, slot)} of 20"):
        Scatter()(x, 0, torch.tensor([slot, 3]), out)
    assert out[:, 3].eq(1).all()
    assert int(out.count_nonzero()) == HEADS * DIM


@given(st.integers(0, 3), st.integers(0, 4 * DIM - 1), st.sampled_from([math.nan, math.inf, -math.inf]))
@settings(deadline=None)
def test_what_is_not_finite_is_not_written(row: int, at: int, value: float) -> None:
    x, out = torch.ones(4, HEADS, DIM).bfloat16(), torch.zeros(4, 20, DIM).bfloat16()
    x[row, 1:].view(-1)[at] = value
    with pytest.raises(ArithmeticError, match="keys or values of 1 of 4 tokens are not finite"):
        Scatter()(x, 1, torch.tensor([3, 5, 7, 9]), out)
    wanted = torch.ones(4, 4, DIM).bfloat16()
    wanted[:, row] = 0
    assert torch.equal(out[:, [3, 5, 7, 9]], wanted)
    x[row, 1:] = 1
    x[row, 0] = value  # a query head is nobody else's
    Scatter()(x, 1, torch.tensor([3, 5, 7, 9]), out)


@pytest.mark.parametrize("home", [None, "/dev/null", "full"])
def test_without_a_home_nothing_is_kept(
    home: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def nobody() -> Path:
        if home is None:
            raise RuntimeError("Could not determine home directory.")
        return Path(home) if home != "full" else tmp_path

    monkeypatch.setattr(cpu.Path, "home", nobody)
    monkeypatch.setattr(cpu.os, "access", lambda path, mode: False)
    monkeypatch.setattr(cpu, "_cache_folder", cpu._cache_folder.__wrapped__)
    monkeypatch.setattr(cpu, "_compiled", cpu._compiled.__wrapped__)
    out = torch.zeros(HEADS, 2, DIM).bfloat16()
    with caplog.at_level("INFO"):
        Scatter()(torch.ones(1, HEADS, DIM).bfloat16(), 0, torch.tensor([1]), out)
    assert out[:, 1].eq(1).all()
    assert "compiled kernels are not kept" in caplog.text
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


@pytest.mark.parametrize("damage", ["empty", "cut", "no folder"])
def test_a_cache_of_kernels_that_cannot_be_used_stops_nobody(
    damage: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A disk that was full, a write that was cut off, a file where the folder should be."""
    folder = tmp_path / "kernels"
    monkeypatch.setattr(cpu, "_cache_folder", lambda: str(folder))
    monkeypatch.setattr(cpu, "_compiled", cpu._compiled.__wrapped__)
    x, out = torch.ones(1, HEADS, DIM).bfloat16(), torch.zeros(HEADS, 2, DIM).bfloat16()
    if damage == "no folder":
        folder.write_bytes(b"")
    else:
        Scatter()
        kept = [path for path in folder.rglob("*") if path.is_file()]
        assert kept, "nothing was kept to damage"
        for path in kept:
            path.write_bytes(b"" if damage == "empty" else path.read_bytes()[:-20])
    Scatter()(x, 0, torch.tensor([1]), out)
    assert out[:, 1].eq(1).all()


def test_rows_of_another_size_are_refused() -> None:
    with pytest.raises(ValueError, match="rows of 32 for a weight of 64"):
        Norm(torch.ones(64).bfloat16(), 1e-6)(torch.ones(2, 32).bfloat16())
