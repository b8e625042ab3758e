"""The kernels as torch operators: one schema each, dispatched by device, sized without data.

`torch.ops.division.*` behave as any operator under FakeTensorMode and torch.compile: the fake
implementations give exactly the shapes, strides and dtypes that the real ones do.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from division import bits as bitpack
from division.frequency import is_channels_last
from division.kernels import ops_fixed, ops_samples, reference
from division.kernels.dispatch import backend_for
from division.quantize import NEAREST

_GEOMETRY = "int[] size, int[] kernel, int[] stride, int[] padding, int[] dilation"
_SCHEMAS = {
    "split_maps": "(Tensor x, int bits, int rows, int cols, int window, int seed)"
    " -> (Tensor, Tensor, Tensor, Tensor)",
    "split_maps_masked": "(Tensor x, int bits, int rows, int cols, int seed, float low, float high)"
    " -> (Tensor, Tensor, Tensor, Tensor, Tensor)",
    "merge_maps": "(Tensor low, Tensor codes, Tensor offset, Tensor scale, int bits, int height,"
    " int width, ScalarType dtype, bool channels_last) -> Tensor",
    "merge_maps_into": "(Tensor low, Tensor codes, Tensor offset, Tensor scale, int bits,"
    " Tensor(a!) out) -> ()",
    "merge_maps_affine": "(Tensor low, Tensor codes, Tensor offset, Tensor scale, int bits,"
    " int height, int width, ScalarType dtype, bool channels_last, Tensor factor, Tensor term,"
    " Tensor? mask) -> Tensor",
    "pack_mask": "(Tensor x, float low, float high) -> Tensor",
    "unpack_mask": "(Tensor packed, int count, float outside, float inside, ScalarType dtype)"
    " -> Tensor",
    "pack_window_index": f"(Tensor index, {_GEOMETRY}) -> Tensor",
    "unpack_window_index": f"(Tensor packed, {_GEOMETRY}) -> Tensor",
    **ops_fixed.SCHEMAS,
    **ops_samples.SCHEMAS,
}


def _split_maps(
    x: Tensor, bits: int, rows: int, cols: int, window: int, seed: int
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    # The published alignment of ragged maps and rounding to nearest exist for comparison only and
    # have no kernel.
    has_kernel = not window and seed != NEAREST
    backend = backend_for(x.device) if has_kernel else reference
    result: tuple[Tensor, Tensor, Tensor, Tensor] = backend.split_maps(
        x, bits, rows, cols, window, seed
    )
    return result


def _first_argument_decides(name: str) -> Callable[..., Tensor]:
    def call(first: Tensor, *rest: object) -> Tensor:
        result: Tensor = getattr(backend_for(first.device), name)(first, *rest)
        return result

    return call


def _fake_split_maps(
    x: Tensor, bits: int, rows: int, cols: int, window: int, seed: int
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    n, c, height, width = x.shape
    size = bitpack.packed_size(height * width, bits)
    if is_channels_last(x):
        low = x.new_empty((n, rows, cols, c), dtype=torch.bfloat16).permute(0, 3, 1, 2)
        codes = x.new_empty((n, size, c), dtype=torch.uint8).transpose(1, 2)
    else:
        low = x.new_empty((n, c, rows, cols), dtype=torch.bfloat16)
        codes = x.new_empty((n, c, size), dtype=torch.uint8)
    offset = x.new_empty((n, c), dtype=torch.bfloat16)
    return low, codes, offset, torch.empty_like(offset)


def _fake_split_maps_masked(
    x: Tensor, bits: int, rows: int, cols: int, seed: int, low: float, high: float
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    return *_fake_split_maps(x, bits, rows, cols, 0, seed), _fake_pack_mask(x, low, high)


def _fake_merge_maps(
    low: Tensor,
    codes: Tensor,
    offset: Tensor,
    scale: Tensor,
    bits: int,
    height: int,
    width: int,
    dtype: torch.dtype,
    channels_last: bool,
    *finish: Tensor | None,
) -> Tensor:
    n, c = offset.shape
    if channels_last:
        return codes.new_empty((n, height, width, c), dtype=dtype).permute(0, 3, 1, 2)
    return codes.new_empty((n, c, height, width), dtype=dtype)


def _fake_merge_maps_into(*arguments: object) -> None:
    """Write nothing: a tensor without data has no place for it."""


def _fake_pack_mask(x: Tensor, low: float, high: float) -> Tensor:
    return x.new_empty(bitpack.packed_size(x.numel(), 1), dtype=torch.uint8)


def _fake_unpack_mask(
    packed: Tensor, count: int, outside: float, inside: float, dtype: torch.dtype
) -> Tensor:
    return packed.new_empty(count, dtype=dtype)


def _fake_pack_window_index(index: Tensor, *geometry: list[int]) -> Tensor:
    return torch.empty_like(index, dtype=torch.uint8)


def _fake_unpack_window_index(packed: Tensor, *geometry: list[int]) -> Tensor:
    return torch.empty_like(packed, dtype=torch.int64)


_FAKES: dict[str, Callable[..., Any]] = {
    "split_maps": _fake_split_maps,
    "split_maps_masked": _fake_split_maps_masked,
    "merge_maps": _fake_merge_maps,
    "merge_maps_into": _fake_merge_maps_into,
    "merge_maps_affine": _fake_merge_maps,
    "pack_mask": _fake_pack_mask,
    "unpack_mask": _fake_unpack_mask,
    "pack_window_index": _fake_pack_window_index,
    "unpack_window_index": _fake_unpack_window_index,
    **ops_fixed.FAKES,
    **ops_samples.FAKES,
}


def _register() -> torch.library.Library:
    library = torch.library.Library("division", "DEF")
    for name, schema in _SCHEMAS.items():
        library.define(name + schema)
        real = _split_maps if name == "split_maps" else _first_argument_decides(name)
        for device in ("CPU", "CUDA"):
            library.impl(name, real, device)
        torch.library.register_fake(f"division::{name}", _FAKES[name], lib=library)
    return library


_library = _register()  # the operators live as long as this object

split_maps = torch.ops.division.split_maps.default
split_maps_masked = torch.ops.division.split_maps_masked.default
merge_maps = torch.ops.division.merge_maps.default
merge_maps_into = torch.ops.division.merge_maps_into.default
merge_maps_affine = torch.ops.division.merge_maps_affine.default
pack_mask = torch.ops.division.pack_mask.default
unpack_mask = torch.ops.division.unpack_mask.default
pack_window_index = torch.ops.division.pack_window_index.default
unpack_window_index = torch.ops.division.unpack_window_index.default
group_ranges = torch.ops.division.group_ranges.default
split_samples = torch.ops.division.split_samples.default
merge_samples = torch.ops.division.merge_samples.default
pack_bounded = torch.ops.division.pack_bounded.default
unpack_bounded = torch.ops.division.unpack_bounded.default
pack_huffman = torch.ops.division.pack_huffman.default
unpack_huffman = torch.ops.division.unpack_huffman.default
