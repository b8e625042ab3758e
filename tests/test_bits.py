"""Packing: exact sizes, exact round trips, the documented byte layout."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from division import bits


@given(width=st.integers(1, 8), count=st.integers(1, 70), rows=st.integers(1, 3))
def test_codes_survive_packing(width: int, count: int, rows: int) -> None:
    codes = torch.randint(0, 2**width, (rows, count))
    packed = bits.pack(codes, width)
    assert packed.shape == (rows, bits.packed_size(count, width))
    assert torch.equal(bits.unpack(packed, width, count).long(), codes)


@pytest.mark.parametrize("width", range(1, 9))
def test_size_is_exactly_the_bits(width: int) -> None:
    assert bits.packed_size(8 * 11, width) == 11 * width


def test_byte_layout_is_planar() -> None:
    """Two bits: byte k holds codes k, k + 2, k + 4, k + 6 from its lowest bits up."""
    packed = bits.pack(torch.tensor([0, 1, 2, 3, 3, 2, 1, 0]), 2)
    assert packed.tolist() == [0b01_11_10_00, 0b00_10_11_01]


def test_three_bits_are_a_plane_of_two_and_a_plane_of_one() -> None:
    packed = bits.pack(torch.tensor([7, 0, 5, 2]), 3)
    assert packed.tolist() == [0b10_01_00_11, 0b0101]


@given(count=st.integers(0, 1600))
def test_masks_survive(count: int) -> None:
    x = torch.randn(count)
    packed = bits.pack_mask(x, 0.0, float("nan"))
    assert packed.numel() == -(-count // 8)
    back = bits.unpack_mask(packed, count, -1.0, 2.0, torch.float32)
    assert torch.equal(back, torch.where(x > 0, 2.0, -1.0))


def test_mask_bounds_are_strict_and_nan_is_inside() -> None:
    x = torch.tensor([-1.0, 0.0, 0.5, 1.0, 2.0, float("nan"), float("inf"), -float("inf")])
    two_sided = bits.unpack_mask(bits.pack_mask(x, 0.0, 1.0), 8, 0, 1, torch.float32)
    assert two_sided.tolist() == [0, 0, 1, 0, 0, 1, 0, 0]
    one_sided = bits.unpack_mask(bits.pack_mask(x, 0.0, float("nan")), 8, 0, 1, torch.float32)
    assert one_sided.tolist() == [0, 0, 1, 1, 1, 1, 1, 0]
