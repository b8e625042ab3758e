"""Exact small surrogates: one bit a ReLU, one byte a max-pooling index, nothing but a shape."""

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from division import kernels
from division.codec import (
    FLOAT_TYPES,
    Codec,
    Packed,
    flatten_memory,
    memory_format_of,
    unflatten_memory,
)


@dataclass(frozen=True)
class Mask(Codec):
    """Keeps one bit an element: whether it lies strictly between `low` and `high`.

    Comes back as `inside` or `outside`: values on which the stock backward of the layer does what
    it would have done on the original. A bound of NaN excludes nothing.
    """

    low: float = 0.0
    high: float = math.nan
    outside: float = 0.0
    inside: float = 1.0
    of_result: bool = False  # of what a layer returns: may come back as bytes, and may wait
    check: bool = True  # refuse NaN and Inf, which one bit cannot tell from finite numbers
    name: ClassVar[str] = "mask"
    dtypes: ClassVar[tuple[torch.dtype, ...]] = (*FLOAT_TYPES, torch.bool)

    def _pack(self, x: Tensor, seed: int, channel: int) -> dict[str, Tensor]:
        if self.check and not bool(x.isfinite().all()):
            raise ValueError(
                "codec 'mask' cannot keep NaN or Inf in one bit; got a non-finite value"
            )
        return {"bits": kernels.pack_mask(flatten_memory(x), self.low, self.high)}

    def _unpack(self, packed: Packed) -> Tensor:
        bits = packed.tensors["bits"]
        in_bytes = self.of_result and kernels.takes_byte_masks(bits.device)
        values = (self.outside, self.inside, torch.uint8 if in_bytes else packed.dtype)
        flat = kernels.unpack_mask(bits, packed.shape.numel(), *values)
        return unflatten_memory(flat, packed.shape, packed.memory_format)


@dataclass(frozen=True)
class WindowIndex(Codec):
    """Keeps max-pooling indices as one byte each: the position inside the pooling window."""

    size: tuple[int, ...]
    kernel: tuple[int, ...]
    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]
    name: ClassVar[str] = "window index"
    dtypes: ClassVar[tuple[torch.dtype, ...]] = (torch.int64,)

    def _pack(self, x: Tensor, seed: int, channel: int) -> dict[str, Tensor]:
        return {"index": kernels.pack_window_index(x, *self._geometry())}

    def _unpack(self, packed: Packed) -> Tensor:
        index: Tensor = kernels.unpack_window_index(packed.tensors["index"], *self._geometry())
        return index

    def _geometry(self) -> tuple[tuple[int, ...], ...]:
        return self.size, self.kernel, self.stride, self.padding, self.dilation


@dataclass(frozen=True)
class ShapeOnly(Codec):
    """Keeps nothing: comes back uninitialised, for a backward that reads no more than the shape."""

    device: torch.device
    name: ClassVar[str] = "shape only"

    def takes(self, dtype: torch.dtype) -> bool:
        """Take any type: only its name is kept."""
        return True

    def compress(self, x: Tensor, seed: int = 0, channel: int = 1) -> Packed:
        """Note the shape; no dtype is refused and nothing is copied."""
        return Packed(self._pack(x, seed, channel), x.shape, x.dtype, memory_format_of(x), channel)

    def _pack(self, x: Tensor, seed: int, channel: int) -> dict[str, Tensor]:
        return {}

    def _unpack(self, packed: Packed) -> Tensor:
        shape, dtype = packed.shape, packed.dtype
        empty = torch.empty(shape.numel(), dtype=dtype, device=self.device)
        return unflatten_memory(empty, shape, packed.memory_format)
