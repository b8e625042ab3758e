"""Kernels that cut tensors into slabs: channels_last maps, and narrow contiguous ones.

Positions of a channels_last map are `step` elements apart and samples `sample_step`: a part of
longer rows, or of a sequence with more tokens, is taken where it is.
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
    f32,
    floats_at,
    from_bf16,
    packed_size,
    shorts_at,
    u32,
)
from division.kernels.cpu_compile import kernel
from division.kernels.cpu_copies import (
    copy,
    fill_base,
    from_slab,
    gather,
    lanes_of,
    scatter,
    to_slab,
)
from division.kernels.cpu_finish import finish_map, finish_slab
from division.kernels.cpu_slabs import fill_blocks, merge_slab, split_slab
from division.kernels.cpu_tiles import LANES


@kernel
def split_chunk(
    x_address, low_address, codes_address, offset_address, scale_address,
    kind, channels, height, width, rows, cols, bits, key0, key1,
    channels_last, step, sample_step, groups, begin, end,
):  # fmt: skip
    """Compress the slabs [begin, end); every sample has `groups` of them."""
    size, blocks, packed = height * width, rows * cols, packed_size(height * width, bits)
    samples = (end + groups - 1) // groups
    maps = samples * channels
    room = samples * sample_step
    x, shorts = floats_at(x_address, room), shorts_at(x_address, room)
    low, all_codes = shorts_at(low_address, maps * blocks), bytes_at(codes_address, maps * packed)
    all_offsets, all_scales = shorts_at(offset_address, maps), shorts_at(scale_address, maps)

    widest = (channels + groups - 1) // groups + LANES  # enough for a share in whole tiles
    is_copied = kind == HALF or not channels_last or channels // groups < LANES
    are_codes_copied = not channels_last or channels // groups < LANES
    wide = np.empty(1 if kind == FLOAT or channels_last else size * widest, f32)
    slab = np.zeros(size * widest if is_copied else 1, f32)
    slab_codes = np.empty(packed * widest if are_codes_copied else 1, np.uint8)
    places = (block_starts(height, rows), block_starts(width, cols), np.empty(size, np.int64))
    all_means, all_base = (
        np.empty(blocks * widest, np.uint16),
        np.empty(max(blocks, 1) * widest, f32),
    )
    offsets, scales = np.empty(widest, np.uint16), np.empty(widest, np.uint16)
    work = (np.empty(widest, f32), np.empty(widest, f32), np.empty(widest, f32),
            np.empty(widest, f32), np.empty(widest, f32), np.empty(widest, f32))  # fmt: skip
    offset, inverse, counters = (
        np.empty(widest, f32),
        np.empty(widest, f32),
        np.empty(widest, np.uint32),
    )
    codes = np.empty((size + 8) * widest if bits != 2 else 1, np.uint8)
    shape, keys = (height, width, rows, cols), (u32(key0), u32(key1))

    for job in range(begin, end):
        sample, group = job // groups, job % groups
        first, last = lanes_of(group, groups, channels, channels_last)
        used, first_map = last - first, sample * channels + first
        lanes = max(used, LANES)
        fill_blocks(height, width, rows, cols, lanes, places[2])
        lane_step = 1 if channels_last else size
        start = sample * sample_step + first * lane_step
        code_lane_step, code_step = (1, channels) if channels_last else (packed, 1)
        code_start = sample * channels * packed + first * code_lane_step
        source, at, source_step = x, start, step
        out = (all_codes, code_start, code_step)
        if is_copied:
            gather(x, shorts, start, lane_step, step, size, used, kind, wide, slab, lanes)
            source, at, source_step = slab, 0, lanes
        if are_codes_copied:
            out = (slab_codes, 0, lanes)
        means, base = all_means[: blocks * lanes], all_base[: max(blocks, 1) * lanes]
        payload = (means, offsets, scales)
        scratch = (work, base, offset, inverse, counters, codes)
        # The next slab, to be fetched meanwhile; what was copied is small and already here.
        ahead = used if group + 1 < groups else (sample + 1) * sample_step - start
        if kind == BFLOAT and not is_copied:
            split_slab(
                shorts, start, step, first_map, shape, bits, keys, lanes, places, payload, out,
                scratch, ahead,
            )  # fmt: skip
        else:
            split_slab(
                source, at, source_step, first_map, shape, bits, keys, lanes, places, payload, out,
                scratch, 0 if is_copied else ahead,
            )  # fmt: skip
        if are_codes_copied:
            from_slab(
                slab_codes, lanes, all_codes, code_start, code_lane_step, code_step, used, packed
            )
        low_lane_step, low_step = (1, channels) if channels_last else (blocks, 1)
        low_start = sample * channels * blocks + first * low_lane_step
        copy(means, 0, 1, lanes, low, low_start, low_lane_step, low_step, blocks, used)
        all_offsets[first_map : first_map + used] = offsets[:used]
        all_scales[first_map : first_map + used] = scales[:used]


@kernel(parallel=True)
def split(
    x_address, low_address, codes_address, offset_address, scale_address,
    kind, channels, height, width, rows, cols, bits, key0, key1,
    channels_last, step, sample_step, groups, slabs, chunks,
):  # fmt: skip
    """Compress all slabs, in chunks that threads share."""
    for chunk in prange(chunks):
        split_chunk(
            x_address, low_address, codes_address, offset_address, scale_address,
            kind, channels, height, width, rows, cols, bits, key0, key1, channels_last, step,
            sample_step, groups, chunk * slabs // chunks, (chunk + 1) * slabs // chunks,
        )  # fmt: skip


@kernel
def merge_chunk(
    low_address, codes_address, offset_address, scale_address, out_address,
    factor_address, term_address, mask_address, count, real_channels,
    kind, channels, height, width, rows, cols, bits, channels_last, step, sample_step, groups,
    begin, end,
):  # fmt: skip
    """Rebuild the slabs [begin, end), and finish them if there are factors (fp32 only)."""
    finish = (factor_address, term_address, mask_address, count, real_channels)
    size, blocks, packed = height * width, rows * cols, packed_size(height * width, bits)
    samples = (end + groups - 1) // groups
    maps = samples * channels
    room = samples * sample_step
    out, shorts = floats_at(out_address, room), shorts_at(out_address, room)
    low, all_codes = shorts_at(low_address, maps * blocks), bytes_at(codes_address, maps * packed)
    offsets, all_scales = shorts_at(offset_address, maps), shorts_at(scale_address, maps)

    widest = (channels + groups - 1) // groups + LANES  # enough for a share in whole tiles
    is_copied = kind == HALF or not channels_last or channels // groups < LANES
    are_codes_copied = not channels_last or channels // groups < LANES
    wide = np.empty(1 if kind == FLOAT or channels_last else size * widest, f32)
    slab = np.empty(size * widest if is_copied else 1, f32)
    slab_codes = np.zeros(packed * widest if are_codes_copied else 1, np.uint8)
    all_means, all_base = (
        np.zeros(blocks * widest, np.uint16),
        np.empty(max(blocks, 1) * widest, f32),
    )
    scales, block_of = np.zeros(widest, f32), np.empty(size, np.int64)

    for job in range(begin, end):
        sample, group = job // groups, job % groups
        first, last = lanes_of(group, groups, channels, channels_last)
        used, first_map = last - first, sample * channels + first
        lanes = max(used, LANES)
        fill_blocks(height, width, rows, cols, lanes, block_of)
        means, base = all_means[: blocks * lanes], all_base[: max(blocks, 1) * lanes]
        low_lane_step, low_step = (1, channels) if channels_last else (blocks, 1)
        low_start = sample * channels * blocks + first * low_lane_step
        copy(low, low_start, low_lane_step, low_step, means, 0, 1, lanes, blocks, used)
        for i in range(used):
            scales[i] = from_bf16(all_scales[first_map + i])
        fill_base(means, offsets[first_map : first_map + used], blocks, lanes, base)
        code_lane_step, code_step = (1, channels) if channels_last else (packed, 1)
        code_start = sample * channels * packed + first * code_lane_step
        codes, code_at = all_codes, code_start
        if are_codes_copied:
            to_slab(
                all_codes, code_start, code_lane_step, code_step, slab_codes, lanes, used, packed
            )
            codes, code_at, code_step = slab_codes, 0, lanes
        lane_step = 1 if channels_last else size
        start = sample * sample_step + first * lane_step
        target, at, target_step = out, start, step
        if is_copied:
            target, at, target_step = slab, 0, lanes
        if kind == BFLOAT and not is_copied:
            merge_slab(
                codes, code_at, code_step, size, bits, block_of, base, scales, lanes,
                shorts, start, step,
            )  # fmt: skip
        else:
            merge_slab(
                codes, code_at, code_step, size, bits, block_of, base, scales, lanes,
                target, at, target_step,
            )  # fmt: skip
        if is_copied:
            scatter(slab, lanes, out, shorts, start, lane_step, step, size, used, kind, wide)
        if factor_address != 0 and channels_last:
            finish_slab(out, start, step, size, first, used, finish)
        elif factor_address != 0:
            for i in range(first_map, first_map + used):
                finish_map(out, i * size, size, i % real_channels, finish)


@kernel(parallel=True)
def merge(
    low_address, codes_address, offset_address, scale_address, out_address,
    factor_address, term_address, mask_address, count, real_channels,
    kind, channels, height, width, rows, cols, bits, channels_last, step, sample_step, groups,
    slabs, chunks,
):  # fmt: skip
    """Rebuild all slabs, in chunks that threads share."""
    for chunk in prange(chunks):
        merge_chunk(
            low_address, codes_address, offset_address, scale_address, out_address,
            factor_address, term_address, mask_address, count, real_channels,
            kind, channels, height, width, rows, cols, bits, channels_last, step, sample_step,
            groups, chunk * slabs // chunks, (chunk + 1) * slabs // chunks,
        )  # fmt: skip
