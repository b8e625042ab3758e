"""Prepares memory for the Huffman kernels and starts them; imports without Numba."""

import torch
from torch import Tensor

from division.bounded import Grid
from division.fixedlength import check_words, in_format, index_type, is_channel_last
from division.huffman import (
    REACH,
    SYMBOLS,
    canonical_codes,
    chunk_of,
    code_lengths,
    decoding_table,
    plane_of,
    trim,
    untrim,
)
from division.kernels.cpu_fixed_host import (
    flat_memory,
    job_geometry,
    job_lanes,
    memory_index,
    running_starts,
)
from division.kernels.cpu_launch import KINDS, launch, module
from division.quantize import seed_keys

_SLICES = 16  # of the tensor, whose symbols are counted apart


def pack_huffman(
    x: Tensor, error_bound: float, dither: bool, seed: int
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Code a tensor within a bound, as `huffman.pack_huffman`."""
    x = x.detach()
    shape, count, kind = list(x.shape), x.numel(), index_type(x.numel())
    lanes = job_lanes(shape, is_channel_last(x))
    if not lanes:
        x, lanes = x.contiguous(), 0
    codes, index = _quantize(x, lanes, error_bound, dither, seed)
    values = flat_memory(x)[memory_index(index, x.shape, lanes > 0)]

    kernels, bit_kernels, size = module("cpu_huffman"), module("cpu_huffman_bits"), chunk_of(shape)
    chunks = -(-count // max(1, size))
    place = codes.data_ptr()
    launch(kernels, "predict", (place, count, *plane_of(shape), size), chunks, count)
    totals = torch.empty((_SLICES, SYMBOLS), dtype=torch.int64)
    launch(
        kernels,
        "histogram",
        (place, totals.data_ptr(), count, max(1, size), _SLICES),
        _SLICES,
        count,
    )
    histogram = totals.sum(0)
    lengths = code_lengths(histogram)
    table = (canonical_codes(lengths) * 256 + lengths).to(torch.int32)
    sizes = torch.empty(chunks, dtype=torch.int64)
    places = (place, table.data_ptr(), sizes.data_ptr())
    launch(bit_kernels, "count", (*places, count, size), chunks, count)
    starts = running_starts(sizes)
    words = torch.empty(int(starts[-1]), dtype=torch.int32)
    places = (place, table.data_ptr(), starts.data_ptr())
    launch(bit_kernels, "write", (*places, words.data_ptr(), count, size), chunks, count)
    apart = torch.empty(0, dtype=torch.int64)
    if int(histogram[0]):
        apart = (codes.abs() > REACH).nonzero().flatten()
    return (
        trim(lengths), words, starts[:-1].to(kind), apart.to(kind), codes[apart], index.to(kind),
        values,
    )  # fmt: skip


def _quantize(
    x: Tensor, lanes: int, error_bound: float, dither: bool, seed: int
) -> tuple[Tensor, Tensor]:
    """Return the integers in logical order and the positions of missing elements."""
    jobs, geometry = job_geometry(list(x.shape), lanes)
    kernels, grid = module("cpu_huffman"), Grid.of(error_bound, x.dtype)
    codes = torch.empty(x.numel(), dtype=torch.int32)
    missing = torch.empty(jobs, dtype=torch.int64)
    places = (x.data_ptr(), codes.data_ptr(), missing.data_ptr())
    numbers = (grid.step, grid.inverse, grid.bound, grid.bound_down, grid.limit)
    arguments = (*places, KINDS[x.dtype], *geometry, *numbers, int(dither), *seed_keys(seed))
    launch(kernels, "quantize", arguments, jobs, x.numel())
    if not int(missing.sum()):
        return codes, torch.empty(0, dtype=torch.int64)
    index = (codes == -(2**31)).nonzero().flatten()
    codes[index] = 0
    return codes, index


def unpack_huffman(
    lengths: Tensor,
    words: Tensor,
    offsets: Tensor,
    apart: Tensor,
    left_apart: Tensor,
    index: Tensor,
    values: Tensor,
    shape: list[int],
    channels_last: bool,
    error_bound: float,
    dither: bool,
    seed: int,
) -> Tensor:
    """Return the tensor that was coded, as `huffman.unpack_huffman`."""
    codes = _read(lengths, words, offsets, apart, left_apart, shape)
    lanes, dtype = job_lanes(shape, channels_last), values.dtype
    is_native = channels_last and lanes is not None
    out = torch.empty(shape, dtype=dtype)
    if is_native:
        out = torch.empty((shape[0], *shape[2:], shape[1]), dtype=dtype).movedim(-1, 1)
    jobs, geometry = job_geometry(shape, lanes or 0)
    places = (codes.data_ptr(), out.data_ptr())
    step = Grid.of(error_bound, dtype).step
    arguments = (*places, KINDS[dtype], *geometry, step, int(dither), *seed_keys(seed))
    launch(module("cpu_huffman"), "dequantize", arguments, jobs, out.numel())
    if index.numel():
        flat_memory(out)[memory_index(index, out.shape, is_native)] = values
    return out if is_native else in_format(out, channels_last)


def _read(
    lengths: Tensor, words: Tensor, offsets: Tensor, apart: Tensor, left: Tensor, shape: list[int]
) -> Tensor:
    """Return the integers in logical order."""
    count, size = torch.Size(shape).numel(), chunk_of(shape)
    codes = torch.empty(count, dtype=torch.int32)
    if count == 0:
        return codes
    table, peek = decoding_table(untrim(lengths))
    table = table.to(torch.int32)
    starts = torch.cat([offsets.long(), torch.tensor([words.numel()])])
    ends = torch.empty(offsets.numel(), dtype=torch.int64)
    apart, left, words = apart.long().contiguous(), left.contiguous(), words.contiguous()
    arguments = (
        words.data_ptr(), starts.data_ptr(), table.data_ptr(), peek, apart.data_ptr(),
        left.data_ptr(), apart.numel(), codes.data_ptr(), ends.data_ptr(), count,
        *plane_of(shape), size,
    )  # fmt: skip
    launch(module("cpu_huffman_bits"), "read", arguments, offsets.numel(), count)
    if not torch.equal(ends, starts[1:]):
        check_words(int(ends[-1]), words)
        raise ValueError("the payload of a chunk is not as long as its offsets say")
    return codes
