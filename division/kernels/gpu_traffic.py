"""How many bytes the GPU kernels move, by arithmetic: what a roofline needs to know.

Every function takes the sizes that an operator is called with and counts the loads and stores of
its kernels. What PyTorch does beside them (running sums over programs or samples, the few missing
elements of `unpack_bounded`) is not counted.
"""

from dataclasses import dataclass

import torch

from division.bits import MASK_BLOCK, packed_size, planes
from division.bounded import BLOCK
from division.fixedlength import index_type
from division.kernels.gpu_fixed_host import BLOCKS
from division.kernels.gpu_maps_host import ALONE, merge_plan, split_plan
from division.kernels.gpu_samples_host import groups_a_program
from division.samples import group_count, sample_bytes


@dataclass(frozen=True)
class Traffic:
    """Bytes that the kernels of one operator move."""

    read: int  # from memory; a tensor that is read in two passes counts twice
    written: int
    near: int = 0  # read again by the program that has just had them: served by a cache

    @property
    def moved(self) -> int:
        """Bytes that go through the memory."""
        return self.read + self.written


def split_maps(
    shape: torch.Size, bits: int, rows: int, cols: int, dtype: torch.dtype, channels_last: bool
) -> Traffic:
    """Count what compressing maps moves.

    They are read once if they stay on chip, in registers or in the cache of a multiprocessor that
    has no other program; else once more for the codes.
    """
    n, c, height, width = shape
    size, maps = height * width, n * c
    written = maps * (2 * rows * cols + packed_size(size, bits) + 4)
    name, _, warps, _ = split_plan(shape, rows, cols, bits, channels_last)
    once = maps * size * dtype.itemsize
    if name == "split_resident":
        return Traffic(once, written)
    passes = len(planes(bits))
    near = 2 * maps * size * passes if rows else 0
    # A second plane of codes asks for elements that the first has just had.
    near += (passes - 1) * once
    if warps == ALONE:
        return Traffic(once, written, near + once)
    return Traffic(2 * once, written, near)


def split_maps_masked(
    shape: torch.Size, bits: int, rows: int, cols: int, dtype: torch.dtype
) -> Traffic:
    """Count what compressing maps and packing their mask moves.

    Where maps fit on chip the mask is made of elements that the same program, or its neighbour, has
    just had; else in a pass of its own.
    """
    split = split_maps(shape, bits, rows, cols, dtype, False)
    mask = pack_mask(shape.numel(), dtype)
    written = split.written + mask.written
    if split_plan(shape, rows, cols, bits, False)[0] == "split_resident":
        return Traffic(split.read, written, split.near + mask.read)
    return Traffic(split.read + mask.read, written, split.near)


def merge_maps(
    shape: torch.Size, bits: int, rows: int, cols: int, dtype: torch.dtype, channels_last: bool
) -> Traffic:
    """Count what rebuilding maps moves."""
    n, c, height, width = shape
    size, maps = height * width, n * c
    (_, widest), *others = planes(bits)
    stride = -(-size * widest // 8)
    tile, _ = merge_plan(maps, c, stride, channels_last)
    read = maps * (packed_size(size, bits) + 2 * rows * cols + 4)
    asked = maps * (stride + len(others) * size + (2 * size if rows else 0))
    asked += 4 * maps * -(-stride // tile)
    return Traffic(read, maps * size * dtype.itemsize, asked - read)


def merge_maps_affine(
    shape: torch.Size,
    bits: int,
    rows: int,
    cols: int,
    dtype: torch.dtype,
    channels_last: bool,
    masked: bool,
) -> Traffic:
    """Count what rebuilding maps moves that are scaled, shifted and perhaps masked on the way."""
    n, c, height, width = shape
    stride = -(-height * width * planes(bits)[0][1] // 8)
    tile, _ = merge_plan(n * c, c, stride, channels_last)
    plain = merge_maps(shape, bits, rows, cols, dtype, channels_last)
    read = 8 * c + (packed_size(shape.numel(), 1) if masked else 0)
    asked = 8 * n * c * -(-stride // tile) + (shape.numel() if masked else 0)
    return Traffic(plain.read + read, plain.written, plain.near + asked - read)


def pack_mask(count: int, dtype: torch.dtype) -> Traffic:
    """Count what packing a mask moves."""
    return Traffic(count * dtype.itemsize, packed_size(count, 1))


def unpack_mask(count: int, dtype: torch.dtype) -> Traffic:
    """Count what unpacking a mask moves."""
    whole, rest = divmod(count, MASK_BLOCK)
    read = whole * MASK_BLOCK // 8 + packed_size(rest, 1)
    return Traffic(read, count * dtype.itemsize)


def pack_window_index(count: int) -> Traffic:
    """Count what packing max-pooling indices moves."""
    return Traffic(8 * count, count)


def unpack_window_index(count: int) -> Traffic:
    """Count what unpacking max-pooling indices moves."""
    return Traffic(count, 8 * count)


def group_ranges(n: int, size: int, group: int, dtype: torch.dtype) -> Traffic:
    """Count what finding the ranges of the groups of n samples moves."""
    return Traffic(n * size * dtype.itemsize, 8 * n * group_count(size, group))


def split_samples(
    n: int, size: int, total: int, group: int, dtype: torch.dtype, known: bool
) -> Traffic:
    """Count what compressing n samples moves, where the ranges of their groups are known or not."""
    groups = group_count(size, group)
    ranges = 8 * n * groups if known else 0
    written = total * sample_bytes(size) + 4 * n * groups
    return Traffic(n * size * dtype.itemsize + ranges + 9 * n, written, _metadata(n, groups, group))


def merge_samples(n: int, size: int, total: int, group: int, dtype: torch.dtype) -> Traffic:
    """Count what rebuilding n samples moves."""
    groups = group_count(size, group)
    read = total * sample_bytes(size) + 4 * n * groups + 9 * n
    return Traffic(read, n * size * dtype.itemsize, _metadata(n, groups, group))


def _metadata(n: int, groups: int, group: int) -> int:
    """Return the bytes of bits and starts that all programs but a sample's first read again."""
    return 9 * n * (-(-groups // groups_a_program(groups, group)) - 1)


def pack_bounded(count: int, dtype: torch.dtype, words: int, missing: int) -> Traffic:
    """Count what error-bounded coding moves: the tensor is read to measure it, then to write it."""
    programs = -(-count // (BLOCKS * BLOCK))
    written = -(-count // BLOCK) + 16 * programs
    written += 4 * words + missing * (index_type(count).itemsize + dtype.itemsize)
    return Traffic(2 * count * dtype.itemsize + 32 * programs, written)


def unpack_bounded(count: int, dtype: torch.dtype, words: int) -> Traffic:
    """Count what decoding moves: the headers are read to find the words, then with them."""
    programs = -(-count // (BLOCKS * BLOCK))
    read = 2 * -(-count // BLOCK) + 8 * programs + 4 * words
    return Traffic(read, 8 * programs + count * dtype.itemsize)
