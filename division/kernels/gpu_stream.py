"""Compression of maps that do not fit on chip: read once for the statistics, once for the codes.

No reduction stands inside a loop: Triton 3.8.0 may miscompile one (pull request 11186). Loops keep
a tile of running results, which is reduced when they are done.
"""

# mypy: disable-error-code="no-untyped-def, no-untyped-call, misc, untyped-decorator"

import triton
import triton.language as tl

from division.kernels.gpu_common import (
    code_of,
    from_bf16,
    is_finite,
    load_float,
    nearest_bf16,
    no_sum,
    noise_at,
    whole,
)
from division.kernels.gpu_maps import (
    block_of,
    element_of,
    first_of,
    lanes_of,
    place_of,
    store_grid,
)

_INFINITY: tl.constexpr = tl.constexpr(float("inf"))


@triton.jit
def _block_statistics(
    x,
    low,
    where,
    exists,
    geometry,
    widest,
    tallest,
    channels,
    KIND: tl.constexpr,
    LAST: tl.constexpr,
    BLOCKS: tl.constexpr,
):
    """Store the block means; return least and greatest residual, and whether a mean is not finite.

    Rounding is monotone, so that min(x - mean) is min(x) - mean to the last bit.
    """
    sample, channel, step, sample_step = where
    height, width, rows, cols = geometry
    LANES: tl.constexpr = channel.shape[0]
    least = tl.full([LANES, BLOCKS], _INFINITY, tl.float32)
    most = tl.full([LANES, BLOCKS], -_INFINITY, tl.float32)
    bad = tl.full([LANES, BLOCKS], 0, tl.int32)
    for begin in range(0, rows * cols, BLOCKS):
        block = begin + tl.arange(0, BLOCKS)
        row = block // cols
        column = block - row * cols
        top, bottom = first_of(row, height, rows), first_of(row + 1, height, rows)
        left, right = first_of(column, width, cols), first_of(column + 1, width, cols)
        there = row < rows
        total = no_sum([LANES, BLOCKS])
        smallest = tl.full([LANES, BLOCKS], _INFINITY, tl.float32)
        largest = tl.full([LANES, BLOCKS], -_INFINITY, tl.float32)
        for j in range(0, widest):
            down = no_sum([LANES, BLOCKS])
            for i in range(0, tallest):
                term = there & (left + j < right) & (top + i < bottom)
                position = (top + i) * width + left + j
                source = element_of(
                    sample, channel, position, height * width, step, sample_step, LAST
                )
                inside = exists[:, None] & term[None, :]
                value = load_float(x + source, inside, KIND)
                down += tl.where(inside, value, no_sum([1, 1]))
                smallest = tl.minimum(smallest, tl.where(inside, value, _INFINITY))
                largest = tl.maximum(largest, tl.where(inside, value, -_INFINITY))
            total += down
        count = ((bottom - top) * (right - left)).to(tl.float32)
        share = tl.div_rn(tl.full([BLOCKS], 1.0, tl.float32), count)
        means = nearest_bf16(total * share[None, :])
        inside = exists[:, None] & there[None, :]
        target = place_of(sample, channel, block, rows * cols, channels, LAST)
        tl.store(low + target, means, mask=inside)
        mean = from_bf16(means)
        bad |= (inside & (is_finite(mean) == 0)).to(tl.int32)
        least = tl.minimum(least, tl.where(inside, smallest - mean, _INFINITY))
        most = tl.maximum(most, tl.where(inside, largest - mean, -_INFINITY))
    return tl.min(least, 1), tl.max(most, 1), tl.max(bad, 1) > 0


@triton.jit
def _range(x, where, exists, size, KIND: tl.constexpr, LAST: tl.constexpr, ITEMS: tl.constexpr):
    """Return least and greatest element of every map, and whether one is not finite."""
    sample, channel, step, sample_step = where
    LANES: tl.constexpr = channel.shape[0]
    least = tl.full([LANES, ITEMS], _INFINITY, tl.float32)
    most = tl.full([LANES, ITEMS], -_INFINITY, tl.float32)
    bad = tl.full([LANES, ITEMS], 0, tl.int32)
    for begin in range(0, size, ITEMS):
        position = begin + tl.arange(0, ITEMS)
        inside = exists[:, None] & (position < size)[None, :]
        source = element_of(sample, channel, position, size, step, sample_step, LAST)
        value = load_float(x + source, inside, KIND)
        bad |= (is_finite(value) == 0).to(tl.int32)  # what is masked is zero
        least = tl.minimum(least, tl.where(inside, value, _INFINITY))
        most = tl.maximum(most, tl.where(inside, value, -_INFINITY))
    return tl.min(least, 1), tl.max(most, 1), tl.max(bad, 1) > 0


@triton.jit(do_not_specialize=["key0", "key1"])
def split_streamed(
    x,
    low,
    codes,
    offset,
    scale,
    maps,
    channels,
    height,
    width,
    rows,
    cols,
    tallest,
    widest,
    step,
    sample_step,
    bytes_per_map,
    key0,
    key1,
    BITS: tl.constexpr,
    HAS_LOW: tl.constexpr,
    KIND: tl.constexpr,
    LAST: tl.constexpr,
    WIDE: tl.constexpr,
    LANES: tl.constexpr,
    BLOCKS: tl.constexpr,
    ITEMS: tl.constexpr,
):
    """Compress LANES maps, BLOCKS blocks and then ITEMS bytes at a time."""
    sample, channel, index, exists = lanes_of(tl.program_id(0), maps, channels, LANES, LAST)
    height, width = whole(height, WIDE), whole(width, WIDE)
    rows, cols = whole(rows, WIDE), whole(cols, WIDE)
    size = height * width
    where = (sample, channel, step, sample_step)
    geometry = (height, width, rows, cols)
    if HAS_LOW:
        least, most, bad = _block_statistics(
            x, low, where, exists, geometry, widest, tallest, channels, KIND, LAST, BLOCKS
        )
    else:
        least, most, bad = _range(x, where, exists, size, KIND, LAST, ITEMS)
    bits = tl.full([], BITS, tl.int32)
    d, inverse = store_grid(offset, scale, index, exists, least, most, bad, bits)
    tl.debug_barrier()  # the means below were stored by other threads of this program

    start = 0
    for plane in tl.static_range(4):
        if (BITS & (8 >> plane)) != 0:
            stride = (size * (8 >> plane) + 7) // 8
            for begin in range(0, stride, ITEMS):
                item = begin + tl.arange(0, ITEMS)
                packed = tl.full([LANES, ITEMS], 0, tl.int32)
                for j in tl.static_range(1 << plane):
                    position = item + j * stride
                    inside = exists[:, None] & ((item < stride) & (position < size))[None, :]
                    source = element_of(sample, channel, position, size, step, sample_step, LAST)
                    value = load_float(x + source, inside, KIND)
                    base = d
                    if HAS_LOW:
                        block = block_of(position, height, width, rows, cols)
                        block = place_of(sample, channel, block, rows * cols, channels, LAST)
                        base = from_bf16(tl.load(low + block, mask=inside, other=0)) + d
                    noise = noise_at(index[:, None], position[None, :], (size + 3) // 4, key0, key1)
                    code = code_of(value - base, inverse, noise, bits)
                    field = (code >> (BITS - BITS % (16 >> plane))) & ((1 << (8 >> plane)) - 1)
                    packed |= tl.where(inside, field << ((8 >> plane) * j), 0)
                target = place_of(sample, channel, start + item, bytes_per_map, channels, LAST)
                there = exists[:, None] & (item < stride)[None, :]
                tl.store(codes + target, packed.to(tl.uint8), mask=there)
            start += stride
