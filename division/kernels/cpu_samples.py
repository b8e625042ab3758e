"""Samples cut into groups: one sample after the other, in NCHW order. See `division.samples`."""

# mypy: disable-error-code="no-untyped-def, no-untyped-call, misc, untyped-decorator, call-arg"

import numpy as np
from numba import prange

from division.kernels.cpu_common import (
    FLOAT,
    bytes_at,
    code_limit,
    f32,
    floats_at,
    from_bf16,
    grid,
    narrow,
    shorts_at,
    u8,
    u32,
)
from division.kernels.cpu_compile import kernel
from division.kernels.cpu_copies import to_slab
from division.kernels.cpu_encode import encode_map
from division.kernels.cpu_maps import encode_codes, pack_codes, unpack_codes
from division.kernels.cpu_samples_common import (
    SHORTEST_SEGMENT,
    bytes_before,
    common_segment,
    load_sample,
    range_of_group,
    ranges_by_lanes,
    room,
)
from division.kernels.cpu_tiles import LANES
from division.kernels.cpu_vectors import decode_rows, fill_tile


@kernel
def ranges_chunk(
    x_address, low_address, high_address, kind, channels, positions, group, transposed, begin, end
):
    """Find the ranges of the groups of the samples [begin, end)."""
    size = channels * positions
    groups = (size + group - 1) // group
    x, shorts = floats_at(x_address, end * size), shorts_at(x_address, end * size)
    lows, highs = floats_at(low_address, end * groups), floats_at(high_address, end * groups)
    segment = common_segment(positions, group)
    by_lanes = transposed and segment >= SHORTEST_SEGMENT and channels >= LANES
    in_order = transposed and not by_lanes
    wide, flat = room(size, kind != FLOAT), room(size, in_order)
    work = (np.empty(channels, f32), np.empty(channels, f32), np.empty(channels, f32))
    for n in range(begin, end):
        source, start = load_sample(x, shorts, n, channels, positions, kind, in_order, wide, flat)
        if by_lanes:
            here = slice(n * groups, (n + 1) * groups)
            ranges_by_lanes(
                source, start, channels, positions, segment, group, work, lows[here], highs[here]
            )
            continue
        for g in range(groups):
            first, last = start + g * group, start + min((g + 1) * group, size)
            m = n * groups + g
            lows[m], highs[m] = range_of_group(source[first:last])


@kernel(parallel=True)
def ranges(
    x_address, low_address, high_address, kind, channels, positions, group, transposed,
    samples, chunks,
):  # fmt: skip
    """Find the ranges of all groups, in chunks that threads share."""
    for chunk in prange(chunks):
        ranges_chunk(
            x_address, low_address, high_address, kind, channels, positions, group, transposed,
            chunk * samples // chunks, (chunk + 1) * samples // chunks,
        )  # fmt: skip


@kernel
def split_chunk(
    x_address, bits_address, low_address, high_address, codes_address, offset_address,
    scale_address, kind, channels, positions, group, transposed, known, key0, key1, begin, end,
):  # fmt: skip
    """Compress the samples [begin, end); the ranges of their groups may be known."""
    size = channels * positions
    groups = (size + group - 1) // group
    x, shorts = floats_at(x_address, end * size), shorts_at(x_address, end * size)
    bits = bytes_at(bits_address, end)
    lows, highs = floats_at(low_address, end * groups), floats_at(high_address, end * groups)
    stream = bytes_at(codes_address, bytes_before(bits, end, size))
    offsets = shorts_at(offset_address, end * groups)
    scales = shorts_at(scale_address, end * groups)
    wide, flat = room(size, kind != FLOAT), room(size, transposed)
    distance, codes = np.zeros(group + LANES, f32), np.zeros(group + LANES, np.uint8)
    keys = (u32(key0), u32(key1))

    at = bytes_before(bits, begin, size)
    for n in range(begin, end):
        source, start = load_sample(x, shorts, n, channels, positions, kind, transposed, wide, flat)
        width = np.int64(bits[n])
        for g in range(groups):
            m, first = n * groups + g, start + g * group
            count = min(group, size - g * group)
            values = source[first : first + count]
            low, high = (lows[m], highs[m]) if known else range_of_group(values)
            offsets[m], scales[m], offset, inverse = grid(low, high, width, low != low)
            for i in range(count):
                distance[i] = values[i] - offset
            padded = (count + 7) // 8 * 8
            out = stream[at : at + width * padded // 8]
            if count == group:
                ahead = (source, first + group, 0)
                encode_codes(distance, m, group, width, inverse, keys, codes, ahead, out)
            else:
                encode_map(
                    distance, group // 4, inverse, m * (group // 4), keys[0], keys[1], width,
                    code_limit(width), codes, source, first, 0,
                )  # fmt: skip
                codes[count:] = u8(0)
                pack_codes(codes, padded, width, out)
            at += width * padded // 8


@kernel(parallel=True)
def split(
    x_address, bits_address, low_address, high_address, codes_address, offset_address,
    scale_address, kind, channels, positions, group, transposed, known, key0, key1,
    samples, chunks,
):  # fmt: skip
    """Compress all samples, in chunks that threads share."""
    for chunk in prange(chunks):
        split_chunk(
            x_address, bits_address, low_address, high_address, codes_address, offset_address,
            scale_address, kind, channels, positions, group, transposed, known, key0, key1,
            chunk * samples // chunks, (chunk + 1) * samples // chunks,
        )  # fmt: skip


@kernel
def merge_chunk(
    codes_address, bits_address, offset_address, scale_address, out_address,
    kind, channels, positions, group, transposed, begin, end,
):  # fmt: skip
    """Rebuild the samples [begin, end)."""
    size = channels * positions
    groups = (size + group - 1) // group
    out, shorts = floats_at(out_address, end * size), shorts_at(out_address, end * size)
    bits = bytes_at(bits_address, end)
    stream = bytes_at(codes_address, bytes_before(bits, end, size))
    offsets = shorts_at(offset_address, end * groups)
    scales = shorts_at(scale_address, end * groups)
    wide, flat = room(size, kind != FLOAT), room(size, transposed)
    codes, base = np.empty(group + LANES, np.uint8), np.empty(LANES, f32)
    rest = np.empty(group + LANES, f32)

    at = bytes_before(bits, begin, size)
    for n in range(begin, end):
        width = np.int64(bits[n])
        # Where the sample is put together, and where it goes from there.
        target, start = (out, n * size) if kind == FLOAT else (wide, 0)
        decoded, first = (flat, 0) if transposed else (target, start)
        for g in range(groups):
            m, count = n * groups + g, min(group, size - g * group)
            padded = (count + 7) // 8 * 8
            unpack_codes(stream[at : at + width * padded // 8], padded, width, codes)
            at += width * padded // 8
            fill_tile(base, 0, from_bf16(offsets[m]))
            rows, scale = (count + LANES - 1) // LANES, from_bf16(scales[m])
            if count == group:
                decode_rows(codes, 0, base, scale, decoded, first, LANES, rows, LANES)
            else:  # whole tiles would run over the end of the sample
                decode_rows(codes, 0, base, scale, rest, 0, LANES, rows, LANES)
                decoded[first : first + count] = rest[:count]
            first += count
        if transposed:
            slab = target[start : start + size]
            to_slab(flat, 0, positions, 1, slab, channels, channels, positions)
        if kind != FLOAT:
            narrow(wide, 0, shorts, n * size, size, kind)


@kernel(parallel=True)
def merge(
    codes_address, bits_address, offset_address, scale_address, out_address,
    kind, channels, positions, group, transposed, samples, chunks,
):  # fmt: skip
    """Rebuild all samples, in chunks that threads share."""
    for chunk in prange(chunks):
        merge_chunk(
            codes_address, bits_address, offset_address, scale_address, out_address,
            kind, channels, positions, group, transposed,
            chunk * samples // chunks, (chunk + 1) * samples // chunks,
        )  # fmt: skip
