"""Contiguous maps (N, C, H, W): one map after the other, vectors along the width.

For maps at least `cpu_tiles.LANES` wide; narrower ones go through `cpu_slabs`. See
`division.frequency` for what is computed.
"""

# mypy: disable-error-code="no-untyped-def, no-untyped-call, misc, untyped-decorator, call-arg"

import numpy as np
from numba import prange

from division.kernels.cpu_common import (
    BFLOAT,
    FLOAT,
    HALF,
    block_starts,
    bytes_at,
    code_limit,
    f32,
    floats_at,
    from_bf16,
    grid,
    narrow,
    packed_size,
    shorts_at,
    u8,
    u32,
    widen,
)
from division.kernels.cpu_compile import inlined, kernel
from division.kernels.cpu_encode import encode_map, encode_map_packed
from division.kernels.cpu_finish import finish_map
from division.kernels.cpu_means import block_means, block_shares, range_of, segments_of, spread
from division.kernels.cpu_planes import pack_plane, unpack_slot
from division.kernels.cpu_tiles import LANES
from division.kernels.cpu_vectors import decode_rows, subtract_rows


@inlined
def _subtract_means(x, start, m, width, bits, places, low, work, offsets, scales, distance):
    """Store means, offset and scale of map m and its distances from the grid; return 1 / scale."""
    row_starts, col_starts, _ = places
    _, _, _, _, _, base, values = work
    rows, cols = row_starts.shape[0] - 1, col_starts.shape[0] - 1
    low_start = m * rows * cols
    smallest, largest, bad = block_means(x, start, width, places, low, low_start, work)
    offsets[m], scales[m], offset, inverse = grid(smallest, largest, bits, bad)
    segments = segments_of(width, cols)
    for segment in range(segments):
        first, last = segment * cols // segments, (segment + 1) * cols // segments
        left, across = col_starts[first], col_starts[last] - col_starts[first]
        for a in range(rows):
            for b in range(first, last):
                values[b] = from_bf16(low[low_start + a * cols + b]) + offset
            spread(values, col_starts, first, last, base)
            corner, height = row_starts[a] * width + left, row_starts[a + 1] - row_starts[a]
            subtract_rows(x, start + corner, base, distance, corner, width, height, across)
    return inverse


@inlined
def _subtract_offset(x, m, bits, offsets, scales, distance):
    """Do the same for a map without means."""
    smallest, largest, bad = range_of(x, x)
    offsets[m], scales[m], offset, inverse = grid(smallest, largest, bits, bad)
    for i in range(x.shape[0]):
        distance[i] = x[i] - offset
    return inverse


@inlined
def encode_codes(distance, m, size, bits, inverse, keys, codes, ahead, out):
    """Store the packed codes of map m; meanwhile the map to come is fetched.

    That map is where `ahead` says: an array, an index, and 1 if it takes half the bytes.
    """
    key0, key1 = keys
    x, at, thin = ahead
    quarter = (size + 3) // 4
    first, top = m * quarter, code_limit(bits)
    if bits != 2:
        encode_map(distance, quarter, inverse, first, key0, key1, bits, top, codes, x, at, thin)
        codes[size:] = u8(0)
        pack_codes(codes, size, bits, out)
        return
    top = code_limit(2)  # a constant to the compiler
    if quarter >= LANES:
        encode_map_packed(distance, quarter, inverse, first, key0, key1, 2, top, out, x, at, thin)
    else:
        encode_map_packed(distance, quarter, inverse, first, key0, key1, 2, top, codes, x, at, thin)
        out[:] = codes[:quarter]


@inlined
def pack_codes(codes, size, bits, out):
    """Pack the codes of a map plane by plane."""
    start, first = 0, 0
    for width in (8, 4, 2, 1):
        if bits & width:
            stride = (size * width + 7) // 8
            pack_plane(codes, 1, stride, first, width, out[start : start + stride])
            start += stride
            first += width


@kernel
def split_chunk(
    x_address, low_address, codes_address, offset_address, scale_address,
    kind, height, width, rows, cols, bits, key0, key1, begin, end,
):  # fmt: skip
    """Compress the maps [begin, end)."""
    size, blocks, packed = height * width, rows * cols, packed_size(height * width, bits)
    x, shorts = floats_at(x_address, end * size), shorts_at(x_address, end * size)
    low = shorts_at(low_address, end * blocks)
    all_codes = bytes_at(codes_address, end * packed)
    offsets, scales = shorts_at(offset_address, end), shorts_at(scale_address, end)

    padded = size + 3 + LANES
    wide = np.empty(size if kind != FLOAT else 1, f32)
    distance, codes = np.zeros(padded, f32), np.zeros(padded, np.uint8)
    row_starts, col_starts = block_starts(height, rows), block_starts(width, cols)
    places = (row_starts, col_starts, block_shares(row_starts, col_starts))
    work = (np.empty(width, f32), np.empty(width, f32), np.empty(width, f32), np.empty(width, f32),
            np.empty(width, f32), np.empty(width + LANES, f32), np.empty(cols, f32))  # fmt: skip
    keys = (u32(key0), u32(key1))

    for m in range(begin, end):
        source, start, ahead = x, m * size, (x, (m + 1) * size, 0)
        if kind != FLOAT:
            ahead = (x, (m + 1) * size // 2, 1)
            if kind != BFLOAT or rows == 0:
                widen(shorts, start, wide, 0, size, kind)
                source, start = wide, 0
        if rows == 0:
            inverse = _subtract_offset(
                source[start : start + size], m, bits, offsets, scales, distance
            )
        elif kind == BFLOAT:
            inverse = _subtract_means(
                shorts, start, m, width, bits, places, low, work, offsets, scales, distance
            )
        else:
            inverse = _subtract_means(
                source, start, m, width, bits, places, low, work, offsets, scales, distance
            )
        out = all_codes[m * packed : (m + 1) * packed]
        encode_codes(distance, m, size, bits, inverse, keys, codes, ahead, out)


@kernel(parallel=True)
def split(
    x_address, low_address, codes_address, offset_address, scale_address,
    kind, height, width, rows, cols, bits, key0, key1, maps, chunks,
):  # fmt: skip
    """Compress all maps, in chunks that threads share."""
    for chunk in prange(chunks):
        split_chunk(
            x_address, low_address, codes_address, offset_address, scale_address,
            kind, height, width, rows, cols, bits, key0, key1,
            chunk * maps // chunks, (chunk + 1) * maps // chunks,
        )  # fmt: skip


@inlined
def unpack_codes(packed, size, bits, codes):
    """Unpack the codes of a map, a byte each."""
    start, first = 0, 0
    for width in (8, 4, 2, 1):
        if bits & width:
            stride = (size * width + 7) // 8
            plane = packed[start : start + stride]
            for slot in range(8 // width):
                at = slot * stride
                fields = codes[at : min(at + stride, size)]
                unpack_slot(plane, slot * width, width, first, fields, first == 0)
            start += stride
            first += width


@inlined
def _decode(codes, low, m, rows, width, starts, offset, scale, base, values, out, start):
    """Rebuild map m from its codes; with rows == 0 it is one block without a mean."""
    row_starts, col_starts = starts
    cols = col_starts.shape[0] - 1
    segments = segments_of(width, cols)
    for segment in range(segments):
        first, last = segment * cols // segments, (segment + 1) * cols // segments
        left, across = col_starts[first], col_starts[last] - col_starts[first]
        for a in range(row_starts.shape[0] - 1):
            for b in range(first, last):
                values[b] = offset
                if rows:
                    values[b] = from_bf16(low[(m * rows + a) * cols + b]) + offset
            spread(values, col_starts, first, last, base)
            corner, height = row_starts[a] * width + left, row_starts[a + 1] - row_starts[a]
            decode_rows(codes, corner, base, scale, out, start + corner, width, height, across)


@kernel
def merge_chunk(
    low_address, codes_address, offset_address, scale_address, out_address,
    factor_address, term_address, mask_address, count, channels,
    kind, height, width, rows, cols, bits, begin, end,
):  # fmt: skip
    """Rebuild the maps [begin, end), and finish them if there are factors (fp32 only)."""
    finish = (factor_address, term_address, mask_address, count, channels)
    size, packed = height * width, packed_size(height * width, bits)
    out, shorts = floats_at(out_address, end * size), shorts_at(out_address, end * size)
    low = shorts_at(low_address, end * rows * cols)
    all_codes = bytes_at(codes_address, end * packed)
    offsets, scales = shorts_at(offset_address, end), shorts_at(scale_address, end)

    wide = np.empty(size if kind == HALF else 1, f32)
    codes = np.empty(size, np.uint8)
    base, values = np.empty(width + LANES, f32), np.empty(max(cols, 1), f32)
    starts = (block_starts(height, max(rows, 1)), block_starts(width, max(cols, 1)))

    for m in range(begin, end):
        unpack_codes(all_codes[m * packed : (m + 1) * packed], size, bits, codes)
        offset, scale = from_bf16(offsets[m]), from_bf16(scales[m])
        if kind == BFLOAT:
            _decode(
                codes, low, m, rows, width, starts, offset, scale, base, values, shorts, m * size
            )
            continue
        target, start = (out, m * size) if kind == FLOAT else (wide, 0)
        _decode(codes, low, m, rows, width, starts, offset, scale, base, values, target, start)
        if kind == HALF:
            narrow(wide, 0, shorts, m * size, size, kind)
        if factor_address != 0:
            finish_map(out, m * size, size, m % channels, finish)


@kernel(parallel=True)
def merge(
    low_address, codes_address, offset_address, scale_address, out_address,
    factor_address, term_address, mask_address, count, channels,
    kind, height, width, rows, cols, bits, maps, chunks,
):  # fmt: skip
    """Rebuild all maps, in chunks that threads share."""
    for chunk in prange(chunks):
        merge_chunk(
            low_address, codes_address, offset_address, scale_address, out_address,
            factor_address, term_address, mask_address, count, channels,
            kind, height, width, rows, cols, bits,
            chunk * maps // chunks, (chunk + 1) * maps // chunks,
        )  # fmt: skip
