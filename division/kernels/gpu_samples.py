"""Groups inside samples on the GPU, bits per sample: see `samples`.

A program has GROUPS groups of one sample in registers, SIZE places for each. The bits of its sample
are read from memory: which planes its codes have is decided while it runs.
"""

# mypy: disable-error-code="no-untyped-def, no-untyped-call, misc, untyped-decorator"

import triton
import triton.language as tl

from division.kernels.gpu_common import (
    code_of,
    from_bf16,
    grid_of,
    inverse_of,
    is_finite,
    load_float,
    noise_at,
    store_float,
    take,
)

_INFINITY: tl.constexpr = tl.constexpr(float("inf"))


@triton.jit
def _groups(groups, GROUPS: tl.constexpr):
    """Return the sample of this program, its groups and which of them exist."""
    tiles = (groups + GROUPS - 1) // GROUPS
    sample = tl.program_id(0) // tiles
    group = (tl.program_id(0) % tiles) * GROUPS + tl.arange(0, GROUPS)
    return sample.to(tl.int64), group, group < groups


@triton.jit
def _features(group, size, length, SIZE: tl.constexpr, WIDE: tl.constexpr):
    """Return the places of a group, how many of them are taken, and by which features."""
    place = tl.arange(0, SIZE)[None, :]
    first = group.to(tl.int64) * length if WIDE else group * length
    count = tl.minimum(size - first, length).to(tl.int32)[:, None]
    return place, count, first[:, None] + place


@triton.jit
def _element(sample, feature, channels, positions, TRANSPOSED: tl.constexpr):
    """Return where a feature lies in memory."""
    begin = sample * channels * positions
    if TRANSPOSED:
        channel = feature // positions
        return begin + (feature - channel * positions) * channels + channel
    return begin + feature


@triton.jit
def _range(value, inside):
    """Return least and greatest element of every group, NaN where one is not finite."""
    bad = tl.max((inside & (is_finite(value) == 0)).to(tl.int32), 1) > 0
    known = inside & (value == value)
    least = tl.min(tl.where(known, value, _INFINITY), 1) + 0.0
    most = tl.max(tl.where(known, value, -_INFINITY), 1) + 0.0
    return tl.where(bad, float("nan"), least), tl.where(bad, float("nan"), most)


@triton.jit
def group_edges(
    x,
    low,
    high,
    channels,
    positions,
    size,
    groups,
    length,
    KIND: tl.constexpr,
    TRANSPOSED: tl.constexpr,
    WIDE: tl.constexpr,
    GROUPS: tl.constexpr,
    SIZE: tl.constexpr,
):
    """Find the range of every group."""
    sample, group, exists = _groups(groups, GROUPS)
    place, count, feature = _features(group, size, length, SIZE, WIDE)
    inside = place < count
    source = _element(sample, feature, channels, positions, TRANSPOSED)
    least, most = _range(load_float(x + source, inside, KIND), inside)
    tl.store(low + sample * groups + group, least, mask=exists)
    tl.store(high + sample * groups + group, most, mask=exists)


@triton.jit
def _store_plane(codes, code, begin, count, filled, exists, bits, WIDTH: tl.constexpr):
    """Pack and store one plane of the codes of every group."""
    stride = filled * WIDTH // 8
    item = tl.arange(0, (code.shape[1] * WIDTH + 7) // 8)[None, :]
    packed = tl.full([code.shape[0], (code.shape[1] * WIDTH + 7) // 8], 0, tl.int32)
    for j in tl.static_range(8 // WIDTH):
        position = item + j * stride
        there = (item < stride) & (position < count)
        first = bits - bits % (2 * WIDTH)
        field = (take(code, position, there) >> first) & ((1 << WIDTH) - 1)
        packed |= field << (WIDTH * j)
    there = exists[:, None] & (item < stride)
    tl.store(codes + begin + item, packed.to(tl.uint8), mask=there)


@triton.jit(do_not_specialize=["key0", "key1"])
def split_groups(
    x,
    bits,
    starts,
    low,
    high,
    codes,
    offset,
    scale,
    channels,
    positions,
    size,
    groups,
    length,
    key0,
    key1,
    KNOWN: tl.constexpr,
    KIND: tl.constexpr,
    TRANSPOSED: tl.constexpr,
    WIDE: tl.constexpr,
    GROUPS: tl.constexpr,
    SIZE: tl.constexpr,
):
    """Quantize groups between their extremes, which may be KNOWN, and pack the codes."""
    sample, group, exists = _groups(groups, GROUPS)
    place, count, feature = _features(group, size, length, SIZE, WIDE)
    inside = place < count
    source = _element(sample, feature, channels, positions, TRANSPOSED)
    value = load_float(x + source, inside, KIND)
    index = sample * groups + group
    if KNOWN:
        least = tl.load(low + index, mask=exists, other=0.0)
        most = tl.load(high + index, mask=exists, other=0.0)
    else:
        least, most = _range(value, inside)
    width = tl.load(bits + sample).to(tl.int32)
    d, s = grid_of(least, most, width, least != least)
    tl.store(offset + index, d, mask=exists)
    tl.store(scale + index, s, mask=exists)

    noise = noise_at(index[:, None], place, length // 4, key0, key1)
    inverse = inverse_of(from_bf16(s), width)[:, None]
    code = code_of(value - from_bf16(d)[:, None], inverse, noise, width)
    filled = (count + 7) // 8 * 8
    begin = tl.load(starts + sample) + (group.to(tl.int64) * (length // 8) * width)[:, None]
    for plane in tl.static_range(4):
        if (width & (8 >> plane)) != 0:
            _store_plane(codes, code, begin, count, filled, exists, width, 8 >> plane)
            begin += filled * (8 >> plane) // 8


@triton.jit
def _plane_codes(packed, begin, place, filled, inside, bits, WIDTH: tl.constexpr):
    """Return what one plane of the bytes of every group adds to the codes."""
    stride = filled * WIDTH // 8
    field = place // tl.maximum(stride, 1)
    byte = take(packed, begin + place - field * stride, inside)
    return ((byte >> (WIDTH * field)) & ((1 << WIDTH) - 1)) << (bits - bits % (2 * WIDTH))


@triton.jit
def merge_groups(
    codes,
    bits,
    starts,
    offset,
    scale,
    out,
    channels,
    positions,
    size,
    groups,
    length,
    KIND: tl.constexpr,
    TRANSPOSED: tl.constexpr,
    WIDE: tl.constexpr,
    GROUPS: tl.constexpr,
    SIZE: tl.constexpr,
):
    """Rebuild groups; their bytes are read once and exchanged on chip."""
    sample, group, exists = _groups(groups, GROUPS)
    place, count, feature = _features(group, size, length, SIZE, WIDE)
    inside = exists[:, None] & (place < count)
    filled = (count + 7) // 8 * 8
    width = tl.load(bits + sample).to(tl.int32)
    begin = tl.load(starts + sample) + (group.to(tl.int64) * (length // 8) * width)[:, None]
    there = exists[:, None] & (place < filled * width // 8)
    packed = tl.load(codes + begin + place, mask=there, other=0).to(tl.int32)
    code = tl.full([GROUPS, SIZE], 0, tl.int32)
    start = tl.full([GROUPS, 1], 0, tl.int32)
    for plane in tl.static_range(4):
        if (width & (8 >> plane)) != 0:
            code += _plane_codes(packed, start, place, filled, inside, width, 8 >> plane)
            start += filled * (8 >> plane) // 8
    index = sample * groups + group
    d = from_bf16(tl.load(offset + index, mask=exists, other=0))[:, None]
    s = from_bf16(tl.load(scale + index, mask=exists, other=0))[:, None]
    target = _element(sample, feature, channels, positions, TRANSPOSED)
    store_float(out + target, d + code.to(tl.float32) * s, inside, KIND)
