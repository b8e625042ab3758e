"""Maps on the GPU: tiles of maps by positions, for both layouts. See `frequency`.

A program has LANES maps. Where the channel is the fastest dimension (LAST) they are neighbouring
channels of one sample, else neighbouring maps; memory is addressed with 64 bits throughout.
"""

# mypy: disable-error-code="no-untyped-def, no-untyped-call, misc, untyped-decorator"

import triton
import triton.language as tl

from division.bits import MASK_BLOCK
from division.kernels.gpu_common import from_bf16, grid_of, inverse_of, store_float, whole

_BLOCK: tl.constexpr = tl.constexpr(MASK_BLOCK)


@triton.jit
def lanes_of(program, maps, channels, LANES: tl.constexpr, LAST: tl.constexpr):
    """Return sample (0 if contiguous), channel and index of every map, and which maps exist."""
    lane = tl.arange(0, LANES)
    if LAST:
        tiles = (channels + LANES - 1) // LANES
        sample = (program // tiles).to(tl.int64)
        channel = (program % tiles) * LANES + lane
        return sample, channel.to(tl.int64), sample * channels + channel, channel < channels
    index = program.to(tl.int64) * LANES + lane
    return tl.full([], 0, tl.int64), index, index, index < maps


@triton.jit
def place_of(sample, channel, item, count, channels, LAST: tl.constexpr):
    """Return where item `item` of `count` per map lies in a dense output, lanes by items."""
    if LAST:
        return (sample * count + item.to(tl.int64))[None, :] * channels + channel[:, None]
    return channel[:, None] * count + item[None, :]


@triton.jit
def element_of(sample, channel, position, size, step, sample_step, LAST: tl.constexpr):
    """Return where a position of a map lies in the maps themselves, lanes by positions."""
    if LAST:
        return (position.to(tl.int64) * step)[None, :] + (sample * sample_step + channel)[:, None]
    return channel[:, None] * size + position[None, :]


@triton.jit
def first_of(block, size, blocks):
    """Return the first position of a block, along one dimension."""
    return (block * size + blocks - 1) // blocks


@triton.jit
def block_of(position, height, width, rows, cols):
    """Return which block a position lies in."""
    y = position // width
    x = position - y * width
    return (y * rows // height) * cols + x * cols // width


@triton.jit
def store_grid(offset, scale, index, exists, least, most, bad, bits):
    """Store the grid of every map; return where it begins and what distances are multiplied by."""
    d, s = grid_of(least, most, bits, bad)
    tl.store(offset + index, d, mask=exists)
    tl.store(scale + index, s, mask=exists)
    return from_bf16(d)[:, None], inverse_of(from_bf16(s), bits)[:, None]


@triton.jit
def plane_field(packed, field, BITS: tl.constexpr, WIDTH: tl.constexpr):
    """Return what a plane adds to the codes in the given fields of its bytes."""
    FIRST: tl.constexpr = BITS - BITS % (2 * WIDTH)
    return ((packed >> (WIDTH * field)) & ((1 << WIDTH) - 1)) << FIRST


@triton.jit
def _bit_at(mask, element, count, inside):
    """Return the bits of elements in a mask: `bits.pack_mask`."""
    begin = element // _BLOCK * _BLOCK
    stride = ((tl.minimum(count - begin, _BLOCK) + 7) // 8).to(tl.int32)
    inner = (element - begin).to(tl.int32)
    field = inner // tl.maximum(stride, 1)
    place = begin // 8 + inner - field * stride
    return ((tl.load(mask + place, mask=inside, other=0).to(tl.int32) >> field) & 1) != 0


@triton.jit
def merge(
    low,
    codes,
    offset,
    scale,
    factor,
    term,
    mask,
    out,
    maps,
    channels,
    height,
    width,
    rows,
    cols,
    step,
    sample_step,
    chunks,
    bytes_per_map,
    BITS: tl.constexpr,
    HAS_LOW: tl.constexpr,
    FINISH: tl.constexpr,
    KIND: tl.constexpr,
    LAST: tl.constexpr,
    WIDE: tl.constexpr,
    LANES: tl.constexpr,
    TILE: tl.constexpr,
):
    """Rebuild what TILE bytes of the widest plane hold, at every place they stand for.

    FINISH is 1 where channels are scaled and shifted, 2 where a mask is applied, too.
    """
    program = tl.program_id(0)
    sample, channel, index, exists = lanes_of(program // chunks, maps, channels, LANES, LAST)
    height, width = whole(height, WIDE), whole(width, WIDE)
    rows, cols = whole(rows, WIDE), whole(cols, WIDE)
    size = height * width
    WIDTH: tl.constexpr = 8 if BITS == 8 else (4 if BITS >= 4 else (2 if BITS >= 2 else 1))
    stride = (size * WIDTH + 7) // 8
    item = whole(program % chunks, WIDE) * TILE + tl.arange(0, TILE)
    here = exists[:, None] & (item < stride)[None, :]
    place = place_of(sample, channel, item, bytes_per_map, channels, LAST)
    packed = tl.load(codes + place, mask=here, other=0).to(tl.int32)
    d = from_bf16(tl.load(offset + index, mask=exists, other=0))[:, None]
    s = from_bf16(tl.load(scale + index, mask=exists, other=0))[:, None]
    if FINISH:
        f = tl.load(factor + channel % channels, mask=exists, other=0.0)[:, None]
        t = tl.load(term + channel % channels, mask=exists, other=0.0)[:, None]
    for j in tl.static_range(8 // WIDTH):
        position = item + j * stride
        inside = exists[:, None] & ((item < stride) & (position < size))[None, :]
        code = (packed >> (WIDTH * j)) & ((1 << WIDTH) - 1)
        start = stride
        for smaller in tl.static_range(1, 4):
            if (BITS & (WIDTH >> smaller)) != 0:
                turn = (size * (WIDTH >> smaller) + 7) // 8
                field = position // turn
                rest = start + position - field * turn
                rest = place_of(sample, channel, rest, bytes_per_map, channels, LAST)
                plane = tl.load(codes + rest, mask=inside, other=0).to(tl.int32)
                code += plane_field(plane, field[None, :], BITS, WIDTH >> smaller)
                start += turn
        base = d
        if HAS_LOW:
            block = block_of(position, height, width, rows, cols)
            mean = place_of(sample, channel, block, rows * cols, channels, LAST)
            base = from_bf16(tl.load(low + mean, mask=inside, other=0)) + d
        target = element_of(sample, channel, position, size, step, sample_step, LAST)
        value = base + code.to(tl.float32) * s
        if FINISH:
            value = value * f + t
        if FINISH == 2:
            count = tl.full([], 1, tl.int64) * maps * size
            value = tl.where(_bit_at(mask, target, count, inside), value, 0.0)
        store_float(out + target, value, inside, KIND)
