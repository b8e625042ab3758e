"""Compression of maps that fit on chip: one read of the map, all else in registers."""

# mypy: disable-error-code="no-untyped-def, no-untyped-call, misc, untyped-decorator"

import triton
import triton.language as tl

from division.bits import MASK_BLOCK
from division.kernels.gpu_common import (
    code_of,
    from_bf16,
    is_finite,
    load_float,
    nearest_bf16,
    no_sum,
    noise_at,
    take,
)
from division.kernels.gpu_maps import (
    block_of,
    element_of,
    first_of,
    lanes_of,
    place_of,
    store_grid,
)
from division.kernels.gpu_masks import pack_blocks

_BLOCK: tl.constexpr = tl.constexpr(MASK_BLOCK)
_INFINITY: tl.constexpr = tl.constexpr(float("inf"))


@triton.jit
def _term(values, item, there):
    """Return values to add, and what changes no sum where none is there."""
    taken = take(values, item[None, :], there[None, :])
    return tl.where(there[None, :], taken, no_sum([1, 1]))


@triton.jit
def block_means(
    x,
    height,
    width,
    rows,
    cols,
    tallest,
    widest,
    LINES: tl.constexpr,
    BLOCKS: tl.constexpr,
):
    """Return the bits (int16) of the block means: down the rows, then across, term by term."""
    item = tl.arange(0, LINES)
    row = item // width
    top = first_of(row, height, rows)
    bottom = tl.where(row < rows, first_of(row + 1, height, rows), top)
    sums = no_sum([x.shape[0], LINES])
    for i in range(0, tallest):
        sums += _term(x, (top + i) * width + item - row * width, top + i < bottom)
    block = tl.arange(0, BLOCKS)
    row = block // cols
    column = block - row * cols
    left = first_of(column, width, cols)
    right = first_of(column + 1, width, cols)
    there = row < rows
    total = no_sum([x.shape[0], BLOCKS])
    for j in range(0, widest):
        total += _term(sums, row * width + left + j, there & (left + j < right))
    count = (first_of(row + 1, height, rows) - first_of(row, height, rows)) * (right - left)
    share = tl.div_rn(tl.full([BLOCKS], 1.0, tl.float32), count.to(tl.float32))
    return nearest_bf16(total * share[None, :])


@triton.jit
def pack_plane(code, size, BITS: tl.constexpr, WIDTH: tl.constexpr):
    """Return the bytes of one plane of codes (lanes by positions): `bits.pack`."""
    FIRST: tl.constexpr = BITS - BITS % (2 * WIDTH)
    BYTES: tl.constexpr = (code.shape[1] * WIDTH + 7) // 8
    stride = (size * WIDTH + 7) // 8
    item = tl.arange(0, BYTES)
    packed = tl.full([code.shape[0], BYTES], 0, tl.int32)
    for j in tl.static_range(8 // WIDTH):
        position = item + j * stride
        there = (item < stride) & (position < size)
        field = (take(code, position[None, :], there[None, :]) >> FIRST) & ((1 << WIDTH) - 1)
        packed |= field << (WIDTH * j)
    return packed.to(tl.uint8)


@triton.jit(do_not_specialize=["key0", "key1"])
def split_resident(
    x,
    low,
    codes,
    offset,
    scale,
    mask,
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
    mask_low,
    mask_high,
    BITS: tl.constexpr,
    HAS_LOW: tl.constexpr,
    HAS_MASK: tl.constexpr,
    KIND: tl.constexpr,
    LAST: tl.constexpr,
    LANES: tl.constexpr,
    SIZE: tl.constexpr,
    LINES: tl.constexpr,
    BLOCKS: tl.constexpr,
):
    """Compress LANES whole maps of up to SIZE positions; pack a mask of contiguous ones.

    Blocks of a mask do not end where maps do: a program has those that begin in its maps, and reads
    up to 511 elements of the next ones, which its neighbour has at the same time.
    """
    sample, channel, index, exists = lanes_of(tl.program_id(0), maps, channels, LANES, LAST)
    size = height * width
    position = tl.arange(0, SIZE)
    inside = exists[:, None] & (position < size)[None, :]
    source = element_of(sample, channel, position, size, step, sample_step, LAST)
    elements = load_float(x + source, inside, KIND)
    residual = elements
    if HAS_LOW:
        means = block_means(elements, height, width, rows, cols, tallest, widest, LINES, BLOCKS)
        block = tl.arange(0, BLOCKS)
        there = exists[:, None] & (block < rows * cols)[None, :]
        target = place_of(sample, channel, block, rows * cols, channels, LAST)
        tl.store(low + target, means, mask=there)
        mean = from_bf16(means)
        bad = tl.max((there & (is_finite(mean) == 0)).to(tl.int32), 1) > 0
        block = block_of(position, height, width, rows, cols)
        mean = take(mean, block[None, :], (position < size)[None, :])
        residual = elements - mean
    else:
        bad = tl.max((inside & (is_finite(elements) == 0)).to(tl.int32), 1) > 0
    known = inside & (residual == residual)
    least = tl.min(tl.where(known, residual, _INFINITY), 1)
    most = tl.max(tl.where(known, residual, -_INFINITY), 1)
    bits = tl.full([], BITS, tl.int32)
    base, inverse = store_grid(offset, scale, index, exists, least, most, bad, bits)
    if HAS_LOW:
        base = mean + base
    noise = noise_at(index[:, None], position[None, :], (size + 3) // 4, key0, key1)
    code = code_of(elements - base, inverse, noise, bits)
    start = 0
    for plane in tl.static_range(4):
        if (BITS & (8 >> plane)) != 0:
            packed = pack_plane(code, size, BITS, 8 >> plane)
            item = tl.arange(0, packed.shape[1])
            stride = (size * (8 >> plane) + 7) // 8
            target = place_of(sample, channel, start + item, bytes_per_map, channels, LAST)
            there = exists[:, None] & (item < stride)[None, :]
            tl.store(codes + target, packed, mask=there)
            start += stride
    if HAS_MASK:
        ROWS: tl.constexpr = (LANES * SIZE + _BLOCK - 1) // _BLOCK
        first = tl.program_id(0).to(tl.int64) * LANES * size
        count = tl.full([], 1, tl.int64) * maps * size
        begin = ((first + _BLOCK - 1) // _BLOCK + tl.arange(0, ROWS)) * _BLOCK
        rest = tl.minimum(tl.maximum(count - begin, 0), _BLOCK)
        rest = tl.where(begin < first + LANES * size, rest, 0).to(tl.int32)
        pack_blocks(x, mask, begin, rest, mask_low, mask_high, KIND)
