"""Block means of a contiguous map, with the range of what they leave: vectors along the width."""

# mypy: disable-error-code="no-untyped-def, no-untyped-call, misc, untyped-decorator, call-arg"

import numpy as np

from division.kernels.cpu_common import f32, from_bf16, i32, to_bf16
from division.kernels.cpu_compile import inlined
from division.kernels.cpu_tiles import LANES
from division.kernels.cpu_vectors import (
    block_sums,
    fill_tile,
    sum_block,
    sum_eight_blocks,
    sum_four_blocks,
)

_SMALLEST, _LARGEST = i32(-(2**31)), i32(2**31 - 1)
_INFINITY_KEY = i32(0x7F800000)
_SEGMENT = 512  # columns reduced at a time


@inlined
def _order_key(word):
    """Map the bits of a float to an integer of the same order, NaN outside the infinities.

    Integer minima and maxima are vectorised where those of floats must not be.
    """
    return i32(word ^ i32(i32(word >> i32(31)) & _LARGEST))


@inlined
def range_of(low, high):
    """Return the smallest of `low`, the largest of `high`, and whether any is not finite."""
    low_words, high_words = low.view(np.int32), high.view(np.int32)
    smallest, largest = _LARGEST, _SMALLEST
    for i in range(low_words.shape[0]):
        below, above = _order_key(low_words[i]), _order_key(high_words[i])
        smallest = below if below < smallest else smallest
        largest = above if above > largest else largest
    bad = largest >= _INFINITY_KEY or smallest <= ~_INFINITY_KEY
    low_word, high_word = _order_key(smallest), _order_key(largest)  # it is its own inverse
    return i32(low_word).view(np.float32), i32(high_word).view(np.float32), bad


@inlined
def _sum_across(columns, origin, starts, first, last, sums):
    """Sum the columns of the blocks [first, last), each in order."""
    block = first
    while block + 8 <= last:
        sum_eight_blocks(columns, origin, starts, block, sums)
        block += 8
    if block + 4 <= last:
        sum_four_blocks(columns, origin, starts, block, sums)
        block += 4
    while block < last:
        sum_block(columns, origin, starts, block, sums)
        block += 1


@inlined
def spread(values, starts, first, last, row):
    """Repeat each block's value over its columns, a tile at a time: the next block overwrites."""
    origin = starts[first]
    for block in range(first, last):
        value = values[block]
        for tile in range(starts[block] - origin, starts[block + 1] - origin, LANES):
            fill_tile(row, tile, value)


@inlined
def segments_of(width, cols):
    """Return in how many pieces rows are computed, so that the working arrays stay in L1.

    Segment i has the blocks [i * cols // segments, (i + 1) * cols // segments) of every row.
    """
    return max(1, min(cols, width // _SEGMENT))


@inlined
def block_shares(row_starts, col_starts):
    """Return one over the number of elements of each block."""
    rows, cols = row_starts.shape[0] - 1, col_starts.shape[0] - 1
    shares = np.empty(rows * cols, f32)
    for a in range(rows):
        for b in range(cols):
            height, width = row_starts[a + 1] - row_starts[a], col_starts[b + 1] - col_starts[b]
            shares[a * cols + b] = f32(1.0 / (height * width))
    return shares


@inlined
def _round_means(sums, shares, block, first, last, low, low_start):
    """Turn block sums into means, stored in bf16; return whether one is not finite."""
    bad = False
    for b in range(first, last):
        short = to_bf16(f32(sums[b] * shares[block + b]))
        mean = from_bf16(short)
        low[low_start + block + b] = short
        sums[b] = mean
        bad = bad or not (abs(mean) < np.inf)
    return bad


@inlined
def _widen_range(low_x, high_x, means, is_first, low_row, high_row):
    """Extend the range of the residuals seen in each column."""
    for i in range(means.shape[0]):
        least, most = low_row[i], high_row[i]
        below, above = f32(low_x[i] - means[i]), f32(high_x[i] - means[i])
        low_row[i] = below if is_first or below < least else least
        high_row[i] = above if is_first or above > most else most


@inlined
def block_means(x, start, width, places, low, low_start, work):
    """Store the block means of a map; return the range of its residual, and whether it is bad.

    Rounding is monotone, so the smallest residual of a block is its smallest element minus its
    mean: one pass over the map gives everything.
    """
    row_starts, col_starts, shares = places
    columns, low_x, high_x, low_row, high_row, base, sums = work
    rows, cols = row_starts.shape[0] - 1, col_starts.shape[0] - 1
    bad, smallest, largest = False, f32(np.inf), f32(-np.inf)
    segments = segments_of(width, cols)
    for segment in range(segments):
        first, last = segment * cols // segments, (segment + 1) * cols // segments
        left, across = col_starts[first], col_starts[last] - col_starts[first]
        for a in range(rows):
            top, height = row_starts[a], row_starts[a + 1] - row_starts[a]
            corner = start + top * width + left
            block_sums(x, corner, width, 0, height, 1, across, columns, low_x, high_x)
            _sum_across(columns, left, col_starts, first, last, sums)
            is_bad = _round_means(sums, shares, a * cols, first, last, low, low_start)
            bad = bad or is_bad
            spread(sums, col_starts, first, last, base)
            _widen_range(low_x, high_x, base[:across], a == 0, low_row, high_row)
        below, above, _ = range_of(low_row[:across], high_row[:across])
        smallest = below if below < smallest else smallest
        largest = above if above > largest else largest
    return smallest, largest, bad
