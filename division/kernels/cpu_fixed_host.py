"""Prepares memory for the fixed-length kernels and starts them; imports without Numba."""

import torch
from torch import Tensor

from division.bounded import Grid
from division.fixedlength import check_words, in_format, index_type, is_channel_last
from division.kernels.cpu_launch import KINDS, launch, module
from division.quantize import seed_keys

_LARGE_MAP = 4096  # positions from which a job has fewer channels, for the cache's sake


def job_lanes(shape: list[int], channels_last: bool) -> int | None:
    """Return how many channels a job has, 0 for a contiguous tensor, None if blocks do not fit.

    Every job must begin with a block. A sample that is no whole number of blocks is first copied
    to the contiguous layout: its blocks run on into the next sample.
    """
    if not channels_last:
        return 0
    _, channels, *space = shape
    size = torch.Size(space).numel()
    if channels * size % 32:
        return None
    if size < _LARGE_MAP:
        return 64
    return 16 if size % 2 == 0 else 32


def job_geometry(shape: list[int], lanes: int) -> tuple[int, tuple[int, int, int, int]]:
    """Return the number of jobs, and channels, size of a map, elements and lanes."""
    count = torch.Size(shape).numel()
    if lanes == 0:
        return -(-count // module("cpu_fixed_jobs").RUN), (1, 1, count, 0)
    n, channels, *space = shape
    return n * -(-channels // lanes), (channels, torch.Size(space).numel(), count, lanes)


def running_starts(counts: Tensor) -> Tensor:
    """Return where every job's words start and, at the end, how many there are."""
    return torch.cat([counts.new_zeros(1), counts.cumsum(0)])


def pack_bounded(
    x: Tensor, error_bound: float, dither: bool, seed: int
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Code a tensor within a bound, as `fixedlength.pack_bounded`."""
    x = x.detach()
    lanes = job_lanes(list(x.shape), is_channel_last(x))
    if not lanes:
        x, lanes = x.contiguous(), 0
    jobs, geometry = job_geometry(list(x.shape), lanes)
    kernels, grid = module("cpu_fixed"), Grid.of(error_bound, x.dtype)
    blocks = -(-x.numel() // 32)
    headers = torch.empty(blocks, dtype=torch.uint8)
    # Room for the worst case: memory that is never touched costs nothing.
    buffer = torch.empty(blocks * kernels.MOST_WORDS, dtype=torch.int32)
    flagged = torch.empty(blocks, dtype=torch.int64)
    masks = torch.empty(blocks, dtype=torch.int32)
    counts = torch.empty((jobs, 3), dtype=torch.int64)
    places = tuple(t.data_ptr() for t in (x, headers, buffer, flagged, masks, counts))
    numbers = (grid.step, grid.inverse, grid.bound, grid.bound_down, grid.limit)
    arguments = (*places, KINDS[x.dtype], *geometry, *numbers, int(dither), *seed_keys(seed))
    launch(kernels, "pack", arguments, jobs, x.numel())

    starts = running_starts(counts[:, 0])
    words = torch.empty(int(starts[-1]), dtype=torch.int32)
    places = (buffer.data_ptr(), starts.data_ptr(), words.data_ptr())
    launch(kernels, "gather", (*places, *geometry), jobs, words.numel())
    index = torch.empty(int(counts[:, 2].sum()), dtype=torch.int64)
    if index.numel():
        places = tuple(t.data_ptr() for t in (flagged, masks, counts, index))
        kernels.list_missing(*places, geometry, jobs)
    values = flat_memory(x)[memory_index(index, x.shape, lanes > 0)]
    return headers, words, index.to(index_type(x.numel())), values


def unpack_bounded(
    headers: Tensor,
    words: Tensor,
    index: Tensor,
    values: Tensor,
    shape: list[int],
    channels_last: bool,
    error_bound: float,
    dither: bool,
    seed: int,
) -> Tensor:
    """Return the tensor that was coded, as `fixedlength.unpack_bounded`."""
    lanes = job_lanes(shape, channels_last)
    if lanes is None:
        parts = (headers, words, index, values)
        contiguous = unpack_bounded(*parts, shape, False, error_bound, dither, seed)
        return in_format(contiguous, channels_last=True)
    jobs, geometry = job_geometry(shape, lanes)
    kernels, dtype = module("cpu_fixed"), values.dtype
    headers, words = headers.contiguous(), words.contiguous()
    counts = torch.empty(jobs, dtype=torch.int64)
    kernels.count_words(headers.data_ptr(), counts.data_ptr(), *geometry, jobs)
    starts = running_starts(counts)
    check_words(int(starts[-1]), words)
    if channels_last:
        out = torch.empty((shape[0], *shape[2:], shape[1]), dtype=dtype).movedim(-1, 1)
    else:
        out = torch.empty(shape, dtype=dtype)
    places = tuple(t.data_ptr() for t in (headers, words, starts, out))
    step = Grid.of(error_bound, dtype).step
    arguments = (*places, KINDS[dtype], *geometry, step, int(dither), *seed_keys(seed))
    launch(kernels, "unpack", arguments, jobs, out.numel())
    if index.numel():
        flat_memory(out)[memory_index(index, out.shape, channels_last)] = values
    return out


def flat_memory(x: Tensor) -> Tensor:
    """View a dense tensor as one dimension, in the order of its memory."""
    return x.as_strided((x.numel(),), (1,))


def memory_index(index: Tensor, shape: torch.Size, channels_last: bool) -> Tensor:
    """Turn positions in logical order into positions in memory."""
    index = index.long()
    if not channels_last:
        return index
    _, channels, *space = shape
    size = torch.Size(space).numel()
    plane, position = index // size, index % size
    sample, channel = plane // channels, plane % channels
    return (sample * size + position) * channels + channel
