"""Fast CPU twins (Numba) of the definitions: same signatures, same bytes.

This module only prepares memory and chooses a kernel; it can be imported without Numba. The
kernels are compiled on first use, once per machine, and take addresses and sizes: one compiled
version serves every element type, shape and number of bits.
"""

import functools
import importlib
import os

import torch
from torch import Tensor

from division import bits as bitpack
from division import windows
from division.frequency import channels_last_steps, is_channels_last
from division.kernels.cpu_fixed_host import pack_bounded as pack_bounded
from division.kernels.cpu_fixed_host import unpack_bounded as unpack_bounded
from division.kernels.cpu_huffman_host import pack_huffman as pack_huffman
from division.kernels.cpu_huffman_host import unpack_huffman as unpack_huffman
from division.kernels.cpu_launch import KINDS, launch, module
from division.kernels.cpu_samples_host import group_ranges as group_ranges
from division.kernels.cpu_samples_host import merge_samples as merge_samples
from division.kernels.cpu_samples_host import split_samples as split_samples
from division.quantize import seed_keys

_PROCESS = os.getpid()
_NARROW = 24  # contiguous maps narrower than this are computed side by side
_SLAB = 65536  # elements in a slab of small maps: it fits into a core's own cache
_FEWEST_LANES, _MOST_LANES = 64, 256  # maps in a slab: rows long enough for streaming
_LARGE_MAP = 4096  # positions from which a slab has fewer lanes still, for the cache's sake


@functools.cache
def _import_trouble() -> str | None:
    try:
        importlib.import_module("numba")
    except Exception as error:  # a broken install raises more than ImportError
        return f"numba cannot be imported ({error})."
    return None


def usable() -> str | None:
    """Return None if the kernels can be used now, or one sentence that says why not."""
    if os.getpid() != _PROCESS:
        return "this process is a fork, and OpenMP threads do not survive a fork."
    return _import_trouble()


def _slab_groups(channels: int, size: int) -> int:
    """Return into how many slabs the channels of a sample (or all contiguous maps) are cut."""
    lanes = 16
    if size < _LARGE_MAP:
        lanes = min(max(_SLAB // max(size, 1), _FEWEST_LANES), _MOST_LANES)
    return -(-channels // lanes)


def _launch_maps(
    name: str,
    addresses: tuple[int, ...],
    settings: tuple[int, ...],
    maps: Tensor,
) -> None:
    """Run the kernel that suits the layout of the maps."""
    n, c, height, width = maps.shape
    channels_last = is_channels_last(maps)
    steps = channels_last_steps(maps) if channels_last else (1, n * c * height * width)
    if not channels_last and width >= _NARROW:
        arguments = (*addresses, KINDS[maps.dtype], height, width, *settings)
        launch(module("cpu_maps"), name, arguments, n * c, n * c * height * width)
        return
    if not channels_last:
        n, c = 1, n * c
    groups = _slab_groups(c, height * width)
    size = (c, height, width)
    places = (int(channels_last), *steps, groups)
    arguments = (*addresses, KINDS[maps.dtype], *size, *settings, *places)
    launch(module("cpu_lanes"), name, arguments, n * groups, n * c * height * width)


def split_maps(
    x: Tensor, bits: int, rows: int, cols: int, window: int, seed: int
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Compress maps as `frequency.split_maps`; a window must tile the map or cover it."""
    n, c, height, width = x.shape
    channels_last = is_channels_last(x)
    if not channels_last:
        x = x.contiguous()
    low = _empty_maps(n, c, rows, cols, torch.bfloat16, channels_last)
    size = bitpack.packed_size(height * width, bits)
    if channels_last:
        codes = torch.empty((n, size, c), dtype=torch.uint8).transpose(1, 2)
    else:
        codes = torch.empty((n, c, size), dtype=torch.uint8)
    offset = torch.empty((n, c), dtype=torch.bfloat16)
    scale = torch.empty_like(offset)
    tensors = (x, low, codes, offset, scale)
    addresses = tuple(tensor.data_ptr() for tensor in tensors)
    settings = (rows, cols, bits, *seed_keys(seed))
    _launch_maps("split", addresses, settings, x)
    return low, codes, offset, scale


def split_maps_masked(
    x: Tensor, bits: int, rows: int, cols: int, seed: int, low: float, high: float
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Compress maps and pack a mask of them, as `frequency.split_maps_masked`."""
    return *split_maps(x, bits, rows, cols, 0, seed), pack_mask(x.flatten(), low, high)


def merge_maps(
    low: Tensor,
    codes: Tensor,
    offset: Tensor,
    scale: Tensor,
    bits: int,
    height: int,
    width: int,
    dtype: torch.dtype,
    channels_last: bool,
) -> Tensor:
    """Rebuild maps as `frequency.merge_maps`."""
    out = _empty_maps(offset.shape[0], offset.shape[1], height, width, dtype, channels_last)
    merge_maps_into(low, codes, offset, scale, bits, out)
    return out


def merge_maps_into(
    low: Tensor, codes: Tensor, offset: Tensor, scale: Tensor, bits: int, out: Tensor
) -> None:
    """Rebuild maps where they belong, as `frequency.merge_maps_into`."""
    _merge(low, codes, offset, scale, bits, out, (0, 0, 0, 0, 1))


def merge_maps_affine(
    low: Tensor,
    codes: Tensor,
    offset: Tensor,
    scale: Tensor,
    bits: int,
    height: int,
    width: int,
    dtype: torch.dtype,
    channels_last: bool,
    factor: Tensor,
    term: Tensor,
    mask: Tensor | None,
) -> Tensor:
    """Rebuild maps and finish them, as `frequency.merge_maps_affine`."""
    shape = (offset.shape[0], offset.shape[1], height, width)
    out = _empty_maps(*shape, torch.float32, channels_last)
    finish = [tensor.contiguous() for tensor in (factor, term, mask) if tensor is not None]
    places = [tensor.data_ptr() for tensor in finish] + [0] * (3 - len(finish))
    _merge(low, codes, offset, scale, bits, out, (*places, out.numel(), out.shape[1]))
    return out if dtype == torch.float32 else out.to(dtype)


def _merge(
    low: Tensor,
    codes: Tensor,
    offset: Tensor,
    scale: Tensor,
    bits: int,
    out: Tensor,
    finish: tuple[int, ...],
) -> None:
    rows, cols = low.shape[2:]
    if is_channels_last(out):
        low = low.contiguous(memory_format=torch.channels_last)
        codes = codes.transpose(1, 2)
    else:
        low = low.contiguous()
    tensors = (low, codes.contiguous(), offset.contiguous(), scale.contiguous(), out)
    addresses = tuple(tensor.data_ptr() for tensor in tensors)
    _launch_maps("merge", (*addresses, *finish), (rows, cols, bits), out)


def _empty_maps(
    n: int, c: int, height: int, width: int, dtype: torch.dtype, channels_last: bool
) -> Tensor:
    """Return new maps, with the strides that the fake operators promise."""
    if channels_last:
        return torch.empty((n, height, width, c), dtype=dtype).permute(0, 3, 1, 2)
    return torch.empty((n, c, height, width), dtype=dtype)


def pack_mask(x: Tensor, low: float, high: float) -> Tensor:
    """Pack which elements lie inside, as `bits.pack_mask`."""
    x = x.detach().contiguous()
    if not x.dtype.is_floating_point:
        x = x.to(torch.result_type(x, low))
    if x.dtype not in KINDS:
        return bitpack.pack_mask(x, low, high)
    count = x.numel()
    out = torch.empty(-(-count // 8), dtype=torch.uint8)
    bounds = torch.tensor((low, high), dtype=x.dtype).tolist()  # compared in the type of x
    arguments = (x.data_ptr(), out.data_ptr(), KINDS[x.dtype], count, *bounds)
    launch(module("cpu_masks"), "pack", arguments, -(-count // bitpack.MASK_BLOCK), count)
    return out


def unpack_mask(
    packed: Tensor, count: int, outside: float, inside: float, dtype: torch.dtype
) -> Tensor:
    """Return the two values of a mask, as `bits.unpack_mask`."""
    if dtype.itemsize not in (2, 4):
        return bitpack.unpack_mask(packed, count, outside, inside, dtype)
    out = torch.empty(count, dtype=dtype)
    as_integer = torch.int32 if dtype.itemsize == 4 else torch.int16
    values = torch.tensor((outside, inside), dtype=dtype).view(as_integer).tolist()
    packed = packed.contiguous()
    is_wide = int(dtype.itemsize == 4)
    arguments = (packed.data_ptr(), out.data_ptr(), is_wide, count, *values)
    launch(module("cpu_masks"), "unpack", arguments, -(-count // bitpack.MASK_BLOCK), count)
    return out


def _launch_windows(
    name: str, source: Tensor, out: Tensor, geometry: tuple[list[int], ...]
) -> bool:
    """Convert window indices, unless their shape or layout has no kernel."""
    (size, kernel, stride, padding, dilation), shape = geometry, source.shape
    if len(size) != 2 or source.dim() not in (3, 4) or size[0] * size[1] >= 2**31:
        return False
    lanes, length = 0, shape[-1]
    if not source.is_contiguous():
        if not source.movedim(-3, -1).is_contiguous():
            return False
        lanes = length = shape[-3]
    places = (source.data_ptr(), out.data_ptr(), lanes, shape[-2], shape[-1], size[1], kernel[1])
    arguments = (*places, *stride, *padding, *dilation, kernel[0])
    count = source.numel()
    launch(module("cpu_windows"), name, arguments, count // length if count else 0, count)
    return True


def pack_window_index(
    index: Tensor,
    size: list[int],
    kernel: list[int],
    stride: list[int],
    padding: list[int],
    dilation: list[int],
) -> Tensor:
    """Turn positions in the plane into positions in the window: `windows.pack_window_index`."""
    geometry = (size, kernel, stride, padding, dilation)
    packed = torch.empty_like(index, dtype=torch.uint8)
    if _launch_windows("pack", index, packed, geometry):
        return packed
    return windows.pack_window_index(index, *geometry)


def unpack_window_index(
    packed: Tensor,
    size: list[int],
    kernel: list[int],
    stride: list[int],
    padding: list[int],
    dilation: list[int],
) -> Tensor:
    """Return the positions that were packed: `windows.unpack_window_index`."""
    geometry = (size, kernel, stride, padding, dilation)
    index = torch.empty_like(packed, dtype=torch.int64)
    if _launch_windows("unpack", packed, index, geometry):
        return index
    return windows.unpack_window_index(packed, *geometry)
