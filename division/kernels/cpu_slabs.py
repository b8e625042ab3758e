"""Slabs: a group of maps side by side, one map a lane, vectors across the maps.

A slab is (positions, lanes) in memory. The channels of a channels_last tensor are one already;
narrow contiguous maps, half floats and groups of fewer than `LANES` channels are copied into one
that fits the cache. See `division.frequency` for what is computed.
"""

# mypy: disable-error-code="no-untyped-def, no-untyped-call, misc, untyped-decorator, call-arg"

import numpy as np

from division.kernels.cpu_common import code_limit, f32, from_bf16, grid, to_bf16, u8, u32
from division.kernels.cpu_compile import inlined
from division.kernels.cpu_encode import encode_lanes, encode_lanes_packed
from division.kernels.cpu_planes import pack_plane
from division.kernels.cpu_vectors import block_poison, block_sums, decode_lanes, decode_planes


@inlined
def fill_blocks(height, width, rows, cols, lanes, block_of):
    """Fill in where the base of each position starts in an array of (blocks, lanes)."""
    for y in range(height):
        for x in range(width):
            block = (y * rows // height) * cols + x * cols // width if rows else 0
            block_of[y * width + x] = block * lanes


@inlined
def _add_block(total, low_x, high_x, share, is_first, means, base, poison, smallest, largest):
    """Round the means of one block, lane by lane, and widen the range of the residuals."""
    for i in range(means.shape[0]):
        short = to_bf16(f32(total[i] * share))
        mean = from_bf16(short)
        below, above = f32(low_x[i] - mean), f32(high_x[i] - mean)
        least, most, bad = smallest[i], largest[i], poison[i]
        means[i] = short
        base[i] = mean
        poison[i] = f32(bad + f32(mean - mean))  # NaN once a mean is not finite
        smallest[i] = below if is_first or below < least else least
        largest[i] = above if is_first or above > most else most


@inlined
def _block_means(
    x, start, step, width, row_starts, col_starts, rows, cols, lanes, means, base, work
):
    """Store the block means of a slab as (blocks, lanes); return via `work` ranges and poison.

    Rounding is monotone, so the smallest residual of a block is its smallest element minus its
    mean: one pass over the slab gives everything.
    """
    total, low_x, high_x, poison, smallest, largest = work
    for i in range(lanes):
        poison[i] = f32(0.0)
    for a in range(rows):
        top, height = row_starts[a], row_starts[a + 1] - row_starts[a]
        for b in range(cols):
            left, across = col_starts[b], col_starts[b + 1] - col_starts[b]
            corner = start + (top * width + left) * step
            block_sums(x, corner, width * step, step, height, across, lanes, total, low_x, high_x)
            share = f32(1.0 / (height * across))
            at = (a * cols + b) * lanes
            is_first = a == 0 and b == 0
            _add_block(
                total, low_x, high_x, share, is_first, means[at : at + lanes],
                base[at : at + lanes], poison, smallest, largest,
            )  # fmt: skip


@inlined
def _add_offsets(base, offset, lanes):
    for start in range(0, base.shape[0], lanes):
        row = base[start : start + lanes]
        for i in range(lanes):
            row[i] = row[i] + offset[i]


@inlined
def _encode(
    x, start, step, size, block_of, base, inverse, counters, keys, bits, lanes, out, codes, ahead
):
    """Store the codes of a slab: packed rows in `out` if bits == 2, one byte each in `codes`."""
    packed, out_start, out_step = out
    key0, key1 = keys
    quarter = (size + 3) // 4
    for k in range(quarter):
        used = (size - k + quarter - 1) // quarter  # positions of this quad that exist
        p1, p2, p3 = k + quarter, k + 2 * quarter, k + 3 * quarter
        p1, p2, p3 = min(p1, size - 1), min(p2, size - 1), min(p3, size - 1)
        x0, x1, x2, x3 = (start + k * step, start + p1 * step, start + p2 * step, start + p3 * step)
        b0, b1, b2, b3 = block_of[k], block_of[p1], block_of[p2], block_of[p3]
        if bits == 2:
            encode_lanes_packed(
                x, x0, x1, x2, x3, base, b0, b1, b2, b3, used, inverse, counters, k,
                key0, key1, 2, code_limit(2), packed, out_start + k * out_step, 0, lanes, ahead,
            )  # fmt: skip
        else:
            encode_lanes(
                x, x0, x1, x2, x3, base, b0, b1, b2, b3, used, inverse, counters, k, key0, key1,
                bits, code_limit(bits), codes, k * lanes, quarter * lanes, lanes, ahead,
            )  # fmt: skip


@inlined
def _pack_planes(codes, size, bits, lanes, out):
    """Pack the codes (positions, lanes) of a slab into packed rows."""
    packed, out_start, out_step = out
    first, row = 0, out_start
    for width in (8, 4, 2, 1):
        if bits & width:
            stride = (size * width + 7) // 8
            for k in range(stride):
                pack_plane(
                    codes[k * lanes :], lanes, stride, first, width, packed[row : row + lanes]
                )
                row += out_step
            first += width


@inlined
def split_slab(
    x, start, step, first_map, shape, bits, keys, lanes, places, payload, out, scratch, ahead
):
    """Compress one slab: rows of means, packed rows, offsets and scales."""
    height, width, rows, cols = shape
    row_starts, col_starts, block_of = places
    means, offsets, scales = payload
    work, base, offset, inverse, counters, codes = scratch
    _, _, _, poison, smallest, largest = work
    size = height * width
    if rows:
        _block_means(
            x, start, step, width, row_starts, col_starts, rows, cols, lanes, means, base, work
        )
    else:
        block_poison(x, start, width * step, step, height, width, lanes, poison, smallest, largest)
        base[:] = f32(0.0)
    for i in range(lanes):
        bad = not (abs(poison[i]) < np.inf)
        offsets[i], scales[i], offset[i], inverse[i] = grid(smallest[i], largest[i], bits, bad)
        counters[i] = u32((first_map + i) * ((size + 3) // 4))
    _add_offsets(base, offset, lanes)
    _encode(
        x,
        start,
        step,
        size,
        block_of,
        base,
        inverse,
        counters,
        keys,
        bits,
        lanes,
        out,
        codes,
        ahead,
    )
    if bits != 2:
        codes[size * lanes :] = u8(0)
        _pack_planes(codes, size, bits, lanes, out)


@inlined
def _merge_one_plane(packed, start, step, size, bits, block_of, base, scales, lanes, out, at, jump):
    """Rebuild a slab whose codes are 1, 2, 4 or 8 bits wide."""
    stride = (size * bits + 7) // 8
    mask = 2**bits - 1
    row, shift = 0, 0
    for p in range(size):
        here = start + row * step
        decode_lanes(packed, here, shift, mask, base, block_of[p], scales, out, at, lanes)
        at += jump
        row += 1
        if row == stride:
            row, shift = 0, shift + bits


@inlined
def _merge_planes(packed, start, step, size, bits, block_of, base, scales, lanes, out, at, jump):
    """Rebuild a slab whose codes are the sum of two or three planes."""
    starts, strides, widths = np.full(3, start), np.full(3, size + 1), np.zeros(3, np.int64)
    firsts, rows, shifts = np.zeros(3, np.int64), np.zeros(3, np.int64), np.zeros(3, np.int64)
    count, first = 0, 0
    for width in (8, 4, 2, 1):
        if bits & width:
            starts[count], widths[count], firsts[count] = start, width, first
            strides[count] = (size * width + 7) // 8
            start += strides[count] * step
            first += width
            count += 1
    masks = 2**widths - 1  # 0 for a plane that is not there
    for p in range(size):
        decode_planes(
            packed, starts[0] + rows[0] * step, shifts[0], masks[0],
            starts[1] + rows[1] * step, shifts[1], masks[1], firsts[1],
            starts[2] + rows[2] * step, shifts[2], masks[2], firsts[2],
            base, block_of[p], scales, out, at, lanes,
        )  # fmt: skip
        at += jump
        for plane in range(count):
            rows[plane] += 1
            if rows[plane] == strides[plane]:
                rows[plane] = 0
                shifts[plane] += widths[plane]


@inlined
def merge_slab(packed, start, step, size, bits, block_of, base, scales, lanes, out, at, jump):
    """Rebuild one slab; its positions go to out[at:], `jump` apart."""
    if bits in (1, 2, 4, 8):
        _merge_one_plane(
            packed, start, step, size, bits, block_of, base, scales, lanes, out, at, jump
        )
    else:
        _merge_planes(packed, start, step, size, bits, block_of, base, scales, lanes, out, at, jump)
