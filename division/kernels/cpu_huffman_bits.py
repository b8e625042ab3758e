"""Huffman codes written to and read from words, one chunk of elements after another."""

# mypy: disable-error-code="no-untyped-def, no-untyped-call, misc, untyped-decorator, call-arg"
# mypy: disable-error-code="assignment"

import numpy as np
from numba import prange

from division.kernels.cpu_common import longs_at
from division.kernels.cpu_common import words_at as words_of
from division.kernels.cpu_compile import inlined, kernel
from division.kernels.cpu_huffman import SYMBOLS, ZERO, ints_at, run_end, symbol_of

_u64 = np.uint64


@inlined
def _length(table, symbol):
    return np.int64(table[symbol] & np.uint32(255))


@kernel
def count_chunk(codes_address, table_address, sizes_address, count, size, begin, end):
    """Count the words of the chunks [begin, end)."""
    codes, table = ints_at(codes_address, count), words_of(table_address, SYMBOLS)
    sizes = longs_at(sizes_address, end)
    for chunk in range(begin, end):
        bits, i, last = 0, chunk * size, min((chunk + 1) * size, count)
        while i < last:
            if codes[i]:
                bits += _length(table, symbol_of(codes[i]))
                i += 1
                continue
            end_of_run = run_end(codes, i, last)
            zeros = end_of_run - i
            i = end_of_run
            bits += (zeros >> 7) * _length(table, 3) + ((zeros & 127) >> 5) * _length(table, 2)
            bits += ((zeros & 31) >> 3) * _length(table, 1) + (zeros & 7) * _length(table, ZERO)
        sizes[chunk] = (bits + 31) // 32


@kernel(parallel=True)
def count(codes_address, table_address, sizes_address, number, size, jobs, chunks):
    """Count the words of all chunks."""
    for chunk in prange(chunks):
        begin, end = chunk * jobs // chunks, (chunk + 1) * jobs // chunks
        count_chunk(codes_address, table_address, sizes_address, number, size, begin, end)


@kernel
def write_chunk(
    codes_address, table_address, starts_address, words_address, count, size, begin, end
):
    """Write the codes of the chunks [begin, end); `table` has code * 256 + length."""
    codes, table = ints_at(codes_address, count), words_of(table_address, SYMBOLS)
    starts = longs_at(starts_address, end + 1)
    words = words_of(words_address, starts[end])
    for chunk in range(begin, end):
        at, held, bits = starts[chunk], _u64(0), 0
        i, last, zeros = chunk * size, min((chunk + 1) * size, count), 0
        while i < last:
            if zeros == 0 and codes[i] == 0:
                zeros = run_end(codes, i, last) - i
            symbol, covered = symbol_of(codes[i]), 1
            if zeros >= 128:
                symbol, covered = 3, 128
            elif zeros >= 32:
                symbol, covered = 2, 32
            elif zeros >= 8:
                symbol, covered = 1, 8
            i += covered
            zeros = max(zeros - covered, 0)
            entry = table[symbol]
            length = np.int64(entry & np.uint32(255))
            held = (held << _u64(length)) | _u64(entry >> np.uint32(8))
            bits += length
            if bits >= 32:
                bits -= 32
                words[at] = np.uint32(held >> _u64(bits))
                at += 1
        if bits:
            words[at] = np.uint32(held << _u64(32 - bits))


@kernel(parallel=True)
def write(codes_address, table_address, starts_address, words_address, count, size, jobs, chunks):
    """Write all codes, in chunks that threads share."""
    for chunk in prange(chunks):
        begin, end = chunk * jobs // chunks, (chunk + 1) * jobs // chunks
        write_chunk(
            codes_address, table_address, starts_address, words_address, count, size, begin, end
        )


@inlined
def _sum_up(plane, width):
    """Replace the differences of a plane by the integers: running sums along both dimensions."""
    for y in range((plane.shape[0] + width - 1) // width):
        row = plane[y * width : min((y + 1) * width, plane.shape[0])]
        total = np.int32(0)
        if y:
            above = plane[(y - 1) * width : y * width]
            for k in range(row.shape[0]):
                total += row[k]
                row[k] = above[k] + total
        else:
            for k in range(row.shape[0]):
                total += row[k]
                row[k] = total


@kernel
def read_chunk(
    words_address, starts_address, table_address, peek, apart_address, left_address, aparts,
    codes_address, ends_address, count, height, width, size, begin, end,
):  # fmt: skip
    """Rebuild the integers of the chunks [begin, end); note where each stopped reading.

    No word beyond the end of a chunk is read; past it there are zeros.
    """
    starts, ends = longs_at(starts_address, end + 1), longs_at(ends_address, end)
    words, table = words_of(words_address, starts[end]), words_of(table_address, 1 << peek)
    apart, left = longs_at(apart_address, aparts), ints_at(left_address, aparts)
    codes, plane = ints_at(codes_address, count), height * width
    window = _u64((1 << peek) - 1)
    for chunk in range(begin, end):
        at, stop, held, bits = starts[chunk], starts[chunk + 1], _u64(0), 0
        first, last = chunk * size, min((chunk + 1) * size, count)
        next_apart = np.searchsorted(apart, first)
        used, i = 0, first
        while i < last:
            if bits < peek:
                word = words[at] if at < stop else np.uint32(0)
                held = (held << _u64(32)) | _u64(word)
                at += 1
                bits += 32
            entry = table[(held >> _u64(bits - peek)) & window]
            length = np.int64(entry & np.uint32(255))
            bits -= length
            used += length
            symbol = np.int64(entry >> np.uint32(8))
            if symbol > 3:
                codes[i] = np.int32(symbol) - ZERO
                i += 1
            elif symbol == 0:
                codes[i] = left[next_apart] if next_apart < aparts else np.int32(0)
                next_apart += 1
                i += 1
            else:
                run = 8 if symbol == 1 else (32 if symbol == 2 else 128)
                codes[i : min(i + run, last)] = 0
                i += run
        ends[chunk] = starts[chunk] + (used + 31) // 32 if i == last else -1
        for begun in range(first, last, plane):
            _sum_up(codes[begun : min(begun + plane, last)], width)


@kernel(parallel=True)
def read(
    words_address, starts_address, table_address, peek, apart_address, left_address, aparts,
    codes_address, ends_address, count, height, width, size, jobs, chunks,
):  # fmt: skip
    """Rebuild all integers, in chunks that threads share."""
    for chunk in prange(chunks):
        read_chunk(
            words_address, starts_address, table_address, peek, apart_address, left_address,
            aparts, codes_address, ends_address, count, height, width, size,
            chunk * jobs // chunks, (chunk + 1) * jobs // chunks,
        )  # fmt: skip
