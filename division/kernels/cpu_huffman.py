"""Lorenzo prediction and Huffman coding of integers: `huffman`, one chunk after another."""

# mypy: disable-error-code="no-untyped-def, no-untyped-call, misc, untyped-decorator, call-arg"

import numpy as np
from numba import prange

from division.kernels.cpu_common import FLOAT, f32, floats_at, longs_at, shorts_at, u32
from division.kernels.cpu_common import words_at as words_of
from division.kernels.cpu_compile import inlined, kernel
from division.kernels.cpu_fixed_jobs import deliver, fetch, job_of, part_size, scratch_size
from division.kernels.cpu_fixed_quantize import (
    MISSING,
    dequantize_dithered,
    dequantize_run,
    fill_noise,
    quantize_dithered,
    quantize_run,
)

SYMBOLS = 1024
ZERO = np.int32(512)  # the symbol of a difference of zero
_REACH = np.int32(508)


@inlined
def ints_at(address, count):
    """Return the int32 array at an address."""
    return words_of(address, count).view(np.int32)


@inlined
def symbol_of(difference):
    """Return the symbol of a difference, 0 for those out of reach."""
    inside = (difference >= -_REACH) & (difference <= _REACH)
    return np.int64(difference + ZERO) if inside else np.int64(0)


@inlined
def run_end(codes, i, last):
    """Return where the run of zeros that begins at i ends."""
    while i < last and codes[i] == 0:
        i += 1
    return i


@kernel
def quantize_chunk(
    x_address, codes_address, missing_address, kind, channels, size, count, lanes,
    step, inverse, bound, bound_down, limit, dither, key0, key1, begin, end,
):  # fmt: skip
    """Turn the jobs [begin, end) into integers in logical order; count what is missing of each."""
    x, shorts = floats_at(x_address, count), shorts_at(x_address, count)
    codes, missing = ints_at(codes_address, count), longs_at(missing_address, end)
    grid = (f32(step), f32(inverse), np.float64(bound), f32(bound_down), f32(limit))
    keys, part = (u32(key0), u32(key1)), part_size()
    room = scratch_size(channels, size, lanes)
    scratch, slab = np.empty(room, f32), np.empty(room if kind != FLOAT and lanes else 1, f32)
    noise = np.empty(part, f32)
    for job in range(begin, end):
        first, number = job_of(job, channels, size, count, lanes)
        fetch(x, shorts, job, channels, size, count, lanes, kind, slab, scratch)
        for begun in range(0, number, part):
            here = min(part, number - begun)
            values = scratch[begun : begun + here]
            target = codes[first + begun : first + begun + here]
            if dither:
                fill_noise((first + begun) // 32, keys, noise)
                quantize_dithered(values, noise, target, grid, kind)
            else:
                quantize_run(values, target, grid)
        found = 0
        for i in range(first, first + number):
            found += codes[i] == MISSING
        missing[job] = found


@kernel(parallel=True)
def quantize(
    x_address, codes_address, missing_address, kind, channels, size, count, lanes,
    step, inverse, bound, bound_down, limit, dither, key0, key1, jobs, chunks,
):  # fmt: skip
    """Turn all jobs into integers, in chunks that threads share."""
    for chunk in prange(chunks):
        quantize_chunk(
            x_address, codes_address, missing_address, kind, channels, size, count, lanes,
            step, inverse, bound, bound_down, limit, dither, key0, key1,
            chunk * jobs // chunks, (chunk + 1) * jobs // chunks,
        )  # fmt: skip


@kernel
def dequantize_chunk(
    codes_address, out_address, kind, channels, size, count, lanes, step, dither, key0, key1,
    begin, end,
):  # fmt: skip
    """Rebuild the elements of the jobs [begin, end)."""
    out, shorts = floats_at(out_address, count), shorts_at(out_address, count)
    codes, step, keys = ints_at(codes_address, count), f32(step), (u32(key0), u32(key1))
    room, part = scratch_size(channels, size, lanes), part_size()
    scratch, slab = np.empty(room, f32), np.empty(room if kind != FLOAT and lanes else 1, f32)
    noise = np.empty(part, f32)
    for job in range(begin, end):
        first, number = job_of(job, channels, size, count, lanes)
        for begun in range(0, number, part):
            here = min(part, number - begun)
            source = codes[first + begun : first + begun + here]
            if dither:
                fill_noise((first + begun) // 32, keys, noise)
                dequantize_dithered(source, noise, step, scratch[begun : begun + here])
            else:
                dequantize_run(source, step, scratch[begun : begun + here])
        deliver(scratch, job, channels, size, count, lanes, kind, slab, out, shorts)


@kernel(parallel=True)
def dequantize(
    codes_address, out_address, kind, channels, size, count, lanes, step, dither, key0, key1,
    jobs, chunks,
):  # fmt: skip
    """Rebuild all elements, in chunks that threads share."""
    for chunk in prange(chunks):
        dequantize_chunk(
            codes_address, out_address, kind, channels, size, count, lanes, step, dither, key0,
            key1, chunk * jobs // chunks, (chunk + 1) * jobs // chunks,
        )  # fmt: skip


@kernel
def predict_chunk(codes_address, count, height, width, size, begin, end):
    """Replace the integers of the chunks [begin, end), of `size` elements, by their differences.

    From the end of a plane to its beginning, so that the neighbours are still there.
    """
    codes = ints_at(codes_address, count)
    plane = height * width
    for first in range(begin * size, min(end * size, count), plane):
        here = codes[first : min(first + plane, count)]
        for y in range((here.shape[0] - 1) // width, -1, -1):
            row = here[y * width : min((y + 1) * width, here.shape[0])]
            if y:
                above = here[(y - 1) * width : y * width]
                for i in range(row.shape[0] - 1, 0, -1):
                    row[i] -= row[i - 1] + above[i] - above[i - 1]
                row[0] -= above[0]
            else:
                for i in range(row.shape[0] - 1, 0, -1):
                    row[i] -= row[i - 1]


@kernel(parallel=True)
def predict(codes_address, count, height, width, size, jobs, chunks):
    """Replace all integers, in chunks that threads share."""
    for chunk in prange(chunks):
        begin, end = chunk * jobs // chunks, (chunk + 1) * jobs // chunks
        predict_chunk(codes_address, count, height, width, size, begin, end)


@kernel
def histogram_chunk(codes_address, totals_address, count, size, slices, begin, end):
    """Count the symbols of the slices [begin, end) of all chunks, each slice in its own row."""
    codes, totals = ints_at(codes_address, count), longs_at(totals_address, slices * SYMBOLS)
    for part in range(begin, end):
        mine = totals[part * SYMBOLS : (part + 1) * SYMBOLS]
        mine[:] = 0
        chunks = (count + size - 1) // size
        for chunk in range(part * chunks // slices, (part + 1) * chunks // slices):
            i, last = chunk * size, min((chunk + 1) * size, count)
            while i < last:
                if codes[i]:
                    mine[symbol_of(codes[i])] += 1
                    i += 1
                    continue
                end_of_run = run_end(codes, i, last)
                zeros = end_of_run - i
                i = end_of_run
                mine[3] += zeros >> 7
                mine[2] += (zeros & 127) >> 5
                mine[1] += (zeros & 31) >> 3
                mine[ZERO] += zeros & 7


@kernel(parallel=True)
def histogram(codes_address, totals_address, count, size, slices, items, chunks):
    """Count all symbols, in chunks that threads share."""
    for chunk in prange(chunks):
        begin, end = chunk * items // chunks, (chunk + 1) * items // chunks
        histogram_chunk(codes_address, totals_address, count, size, slices, begin, end)
