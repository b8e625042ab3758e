"""GPU twins of `fixedlength`: prepares memory, starts kernels; imports without Triton.

Packing waits for the GPU once, to learn how long the words and the missing elements are.
"""

import struct

import torch
from torch import Tensor

from division.bounded import BLOCK, Grid
from division.fixedlength import check_words, index_type, is_channel_last
from division.kernels.cpu_fixed_host import flat_memory, memory_index
from division.kernels.gpu_launch import KINDS, keys_of, launch, module, raw

STARTS = ("measure_blocks", "write_blocks", "count_words", "read_blocks")
BLOCKS = 64  # blocks a program


def pack_bounded(
    x: Tensor, error_bound: float, dither: bool, seed: int
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Code a tensor within a bound, as `fixedlength.pack_bounded`."""
    x = x.detach()
    last = is_channel_last(x)
    x = x if last else x.contiguous()
    count = x.numel()
    grid = Grid.of(error_bound, x.dtype)
    headers = x.new_empty(-(-count // BLOCK), dtype=torch.uint8)
    programs = -(-count // (BLOCKS * BLOCK))
    counts = x.new_zeros((programs, 2), dtype=torch.int64)
    geometry = _geometry(list(x.shape), last)
    numbers = (grid.step, grid.inverse, grid.bound_down, grid.limit, _bits_of(grid.bound))
    settings = (count, *geometry, *numbers, *keys_of(seed))
    options = _options(x.dtype, last, count, dither)
    source = flat_memory(raw(x))
    measured = (source, headers, counts)
    launch(module("gpu_fixed").measure_blocks, programs, measured, settings, **options)

    ends = counts.cumsum(0)
    most = ends[-1].tolist() if programs else (0, 0)  # the host waits here
    words = x.new_empty(most[0], dtype=torch.int32)
    index = x.new_empty(most[1], dtype=index_type(count))
    values = x.new_empty(most[1])
    written = (source, ends, counts, words, index, raw(values))
    launch(module("gpu_fixed").write_blocks, programs, written, settings, **options)
    return headers, words, index, values


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
    count = torch.Size(shape).numel()
    if channels_last:
        out = values.new_empty((shape[0], *shape[2:], shape[1])).movedim(-1, 1)
    else:
        out = values.new_empty(shape)
    headers, words = headers.contiguous(), words.contiguous()
    options = _options(values.dtype, channels_last, count, dither)
    programs = -(-count // (BLOCKS * BLOCK))
    counts = words.new_zeros(programs, dtype=torch.int64)
    counting = {"WIDE": options["WIDE"], "BLOCKS": BLOCKS}
    launch(module("gpu_fixed").count_words, programs, (headers, counts), (count,), **counting)
    ends = counts.cumsum(0)
    _check(ends, words)
    tensors = (headers, ends, words, flat_memory(raw(out)))
    sizes = (count, *_geometry(shape, channels_last), words.numel())
    settings = (*sizes, Grid.of(error_bound, values.dtype).step, *keys_of(seed))
    launch(module("gpu_fixed").read_blocks, programs, tensors, settings, **options)
    if index.numel():
        flat_memory(out)[memory_index(index, out.shape, channels_last)] = values
    return out


def _geometry(shape: list[int], channels_last: bool) -> tuple[int, int]:
    """Return channels and positions of a map, where they matter."""
    return (shape[1], torch.Size(shape[2:]).numel()) if channels_last else (1, 1)


def _options(dtype: torch.dtype, last: bool, count: int, dither: bool) -> dict[str, int]:
    return {
        "DITHER": int(dither),
        "KIND": KINDS[dtype],
        "LAST": int(last),
        "WIDE": int(count + BLOCKS * BLOCK >= 2**31),
        "BLOCKS": BLOCKS,
    }


def _bits_of(number: float) -> int:
    """Return the bits of an fp64: Triton would round a number to fp32."""
    bits: int = struct.unpack("<q", struct.pack("<d", number))[0]
    return bits


def _check(ends: Tensor, words: Tensor) -> None:
    """Check the length of a payload, without waiting for a GPU: it stops itself."""
    if not ends.numel():
        check_words(0, words)
    elif ends.is_cuda:
        message = f"the payload has {words.numel()} words; its headers ask for another number"
        torch._assert_async(ends[-1] == words.numel(), message)
    elif not ends.is_meta:
        check_words(int(ends[-1]), words)
