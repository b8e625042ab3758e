"""Fixed-length coding of bounded integers: `fixedlength`, one job of whole blocks after another.

How many words a block takes is known only once it is coded. Each job writes to its own part of a
buffer with room for the worst case, most of which is never touched; a second kernel moves the parts
together.
"""

# mypy: disable-error-code="no-untyped-def, no-untyped-call, misc, untyped-decorator, call-arg"
# mypy: disable-error-code="var-annotated"

import numpy as np
from numba import prange

from division.kernels.cpu_common import (
    FLOAT,
    bytes_at,
    f32,
    floats_at,
    longs_at,
    shorts_at,
    u8,
    u32,
)
from division.kernels.cpu_common import words_at as words_of
from division.kernels.cpu_compile import inlined, kernel
from division.kernels.cpu_fixed_blocks import pack_block, unpack_block
from division.kernels.cpu_fixed_jobs import deliver, fetch, job_of, part_size, scratch_size
from division.kernels.cpu_fixed_quantize import (
    dequantize_dithered,
    dequantize_run,
    fill_noise,
    quantize_dithered,
    quantize_run,
)

MOST_WORDS = 24  # of a block: 23 planes, with dither, and the signs


@inlined
def _quantize(source, at, first, number, kind, grid, dither, keys, noise, codes):
    """Code a part of a job, padded with zeros to whole blocks; return the number of blocks."""
    x = source[at : at + number]
    if dither:
        fill_noise(first // 32, keys, noise)
        quantize_dithered(x, noise, codes, grid, kind)
    else:
        quantize_run(x, codes, grid)
    blocks = (number + 31) // 32
    codes[number : 32 * blocks] = 0
    return blocks


@kernel
def pack_chunk(
    x_address, headers_address, words_address, flagged_address, masks_address, counts_address,
    kind, channels, size, count, lanes, step, inverse, bound, bound_down, limit, dither,
    key0, key1, begin, end,
):  # fmt: skip
    """Code the jobs [begin, end); counts has words, flagged blocks and missing elements of each.

    Flagged blocks are listed with a mask of the elements that are missing from the grid.
    """
    x, shorts = floats_at(x_address, count), shorts_at(x_address, count)
    blocks = (count + 31) // 32
    headers, words = bytes_at(headers_address, blocks), words_of(words_address, blocks * MOST_WORDS)
    flagged, masks = longs_at(flagged_address, blocks), words_of(masks_address, blocks)
    counts = longs_at(counts_address, 3 * end)
    grid = (f32(step), f32(inverse), np.float64(bound), f32(bound_down), f32(limit))
    keys = (u32(key0), u32(key1))

    is_copied = kind != FLOAT or lanes != 0
    room = scratch_size(channels, size, lanes)
    scratch = np.empty(room if is_copied else 1, f32)
    slab = np.empty(room if kind != FLOAT and lanes != 0 else 1, f32)
    part = part_size()
    codes, noise = np.empty(part, np.int32), np.empty(part, f32)

    for job in range(begin, end):
        first, number = job_of(job, channels, size, count, lanes)
        source, origin = x, first
        if is_copied:
            fetch(x, shorts, job, channels, size, count, lanes, kind, slab, scratch)
            source, origin = scratch, 0
        block = first // 32
        at, missing = block * MOST_WORDS, 0
        flagged_at = block
        for begun in range(0, number, part):
            here = min(part, number - begun)
            whole = _quantize(
                source, origin + begun, first + begun, here, kind, grid, dither, keys, noise, codes
            )
            for i in range(whole):
                packed = pack_block(codes, 32 * i, words, at)
                headers[block] = u8(packed & np.uint64(255))
                at += np.int64((packed >> np.uint64(8)) & np.uint64(255))
                mask = u32(packed >> np.uint64(32))
                if mask != u32(0):
                    flagged[flagged_at], masks[flagged_at] = block, mask
                    flagged_at += 1
                    while mask != u32(0):
                        mask = u32(mask & u32(mask - u32(1)))
                        missing += 1
                block += 1
        counts[3 * job] = at - first // 32 * MOST_WORDS
        counts[3 * job + 1] = flagged_at - first // 32
        counts[3 * job + 2] = missing


@kernel(parallel=True)
def pack(
    x_address, headers_address, words_address, flagged_address, masks_address, counts_address,
    kind, channels, size, count, lanes, step, inverse, bound, bound_down, limit, dither,
    key0, key1, jobs, chunks,
):  # fmt: skip
    """Code all jobs, in chunks that threads share."""
    for chunk in prange(chunks):
        pack_chunk(
            x_address, headers_address, words_address, flagged_address, masks_address,
            counts_address, kind, channels, size, count, lanes, step, inverse, bound, bound_down,
            limit, dither, key0, key1, chunk * jobs // chunks, (chunk + 1) * jobs // chunks,
        )  # fmt: skip


@kernel
def gather_chunk(
    words_address, starts_address, out_address, channels, size, count, lanes, begin, end
):
    """Move the words of the jobs [begin, end) together, those of job j to out[starts[j]]."""
    blocks = (count + 31) // 32
    words, starts = words_of(words_address, blocks * MOST_WORDS), longs_at(starts_address, end + 1)
    out = words_of(out_address, starts[end])
    for job in range(begin, end):
        first, _ = job_of(job, channels, size, count, lanes)
        at, number = first // 32 * MOST_WORDS, starts[job + 1] - starts[job]
        out[starts[job] : starts[job + 1]] = words[at : at + number]


@kernel(parallel=True)
def gather(words_address, starts_address, out_address, channels, size, count, lanes, jobs, chunks):
    """Move all words together, in chunks that threads share."""
    for chunk in prange(chunks):
        begin, end = chunk * jobs // chunks, (chunk + 1) * jobs // chunks
        gather_chunk(
            words_address, starts_address, out_address, channels, size, count, lanes, begin, end
        )


@kernel
def list_missing(flagged_address, masks_address, counts_address, index_address, geometry, jobs):
    """Write the positions of all missing elements, in order."""
    channels, size, count, lanes = geometry
    blocks = (count + 31) // 32
    flagged, masks = longs_at(flagged_address, blocks), words_of(masks_address, blocks)
    counts, found = longs_at(counts_address, 3 * jobs), 0
    index = longs_at(index_address, count)
    for job in range(jobs):
        first, _ = job_of(job, channels, size, count, lanes)
        for i in range(first // 32, first // 32 + counts[3 * job + 1]):
            for bit in range(32):
                if (masks[i] >> u32(bit)) & u32(1):
                    index[found] = 32 * flagged[i] + bit
                    found += 1


@kernel
def count_words(headers_address, counts_address, channels, size, count, lanes, jobs):
    """Count the words of every job from the headers alone."""
    headers, counts = bytes_at(headers_address, (count + 31) // 32), longs_at(counts_address, jobs)
    for job in range(jobs):
        first, number = job_of(job, channels, size, count, lanes)
        mine = headers[first // 32 : (first + number + 31) // 32]
        total = u32(0)
        for i in range(mine.shape[0]):
            total += u32(mine[i] & u8(127)) + u32(mine[i] >> u8(7))
        counts[job] = total


@kernel
def unpack_chunk(
    headers_address, words_address, starts_address, out_address, kind, channels, size, count, lanes,
    step, dither, key0, key1, begin, end,
):  # fmt: skip
    """Rebuild the jobs [begin, end)."""
    headers, starts = (
        bytes_at(headers_address, (count + 31) // 32),
        longs_at(starts_address, end + 1),
    )
    words = words_of(words_address, starts[end])
    out, shorts = floats_at(out_address, count), shorts_at(out_address, count)
    step, keys = f32(step), (u32(key0), u32(key1))

    is_copied = kind != FLOAT or lanes != 0
    room = scratch_size(channels, size, lanes)
    scratch = np.empty(room if is_copied else 1, f32)
    slab = np.empty(room if kind != FLOAT and lanes != 0 else 1, f32)
    part = part_size()
    codes, noise = np.empty(part, np.int32), np.empty(part, f32)

    for job in range(begin, end):
        first, number = job_of(job, channels, size, count, lanes)
        target, origin = out, first
        if is_copied:
            target, origin = scratch, 0
        block, at = first // 32, starts[job]
        for begun in range(0, number, part):
            here = min(part, number - begun)
            for i in range((here + 31) // 32):
                width, is_signed = (
                    np.int64(headers[block] & u8(127)),
                    np.int64(headers[block] >> u8(7)),
                )
                unpack_block(words, at, width, is_signed, codes, 32 * i)
                at += width + is_signed
                block += 1
            values = target[origin + begun : origin + begun + here]
            if dither:
                fill_noise((first + begun) // 32, keys, noise)
                dequantize_dithered(codes, noise, step, values)
            else:
                dequantize_run(codes, step, values)
        if is_copied:
            deliver(scratch, job, channels, size, count, lanes, kind, slab, out, shorts)


@kernel(parallel=True)
def unpack(
    headers_address, words_address, starts_address, out_address, kind, channels, size, count, lanes,
    step, dither, key0, key1, jobs, chunks,
):  # fmt: skip
    """Rebuild all jobs, in chunks that threads share."""
    for chunk in prange(chunks):
        unpack_chunk(
            headers_address, words_address, starts_address, out_address, kind, channels, size,
            count, lanes, step, dither, key0, key1,
            chunk * jobs // chunks, (chunk + 1) * jobs // chunks,
        )  # fmt: skip
