"""The pooling codec: a map is kept as the mean (or maximum) of its blocks, and comes back flat."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn import functional as F

from division.codec import Codec, Packed, check_choice, check_range
from division.maps import Maps, maps_of, unview_maps, view_maps


@dataclass(frozen=True)
class PoolingCodec(Codec):
    """Keeps one number a block of `block` x `block` elements (`block` in one dimension).

    Tensors with nothing to pool (vectors, maps of one element) are kept as they are.

    Args:
        block: edge of a block; it must fit into the map.
        reduce: "mean", or "max".
        align: "area" lets the blocks at the edge of a ragged map cover what is left; "reference" is
            the authors' release, which drops the remainder and shifts the map by it.

    >>> packed = PoolingCodec(block=2).compress(torch.randn(4, 8, 32, 32))
    >>> tuple(packed.tensors["pooled"].shape)
    (4, 8, 16, 16)
    """

    block: int = 2
    reduce: str = "mean"
    align: str = "area"
    name: ClassVar[str] = "pooling"
    keeps_precision: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_range("block", self.block, 2, 1024)
        check_choice("reduce", self.reduce, ("mean", "max"))
        check_choice("align", self.align, ("area", "reference"))

    def _pack(self, x: Tensor, seed: int, channel: int) -> dict[str, Tensor]:
        seen = self._maps(x.shape, x.is_contiguous(), channel)
        if seen is None:
            return {"data": x.clone()}
        maps = view_maps(x, seen, channel)
        pooled = _mean(maps, self._kernel(seen), self._ceil)
        if self.reduce == "max":
            # Pooling would lose an infinity below the maximum: x - x is 0, or NaN where not finite.
            poison = _mean(maps - maps, self._kernel(seen), self._ceil)
            pooled = F.max_pool2d(maps, self._kernel(seen), ceil_mode=self._ceil) + poison
        return {"pooled": pooled}

    def _unpack(self, packed: Packed) -> Tensor:
        contiguous = packed.memory_format == torch.contiguous_format
        seen = self._maps(packed.shape, contiguous, packed.channel)
        if seen is None:
            return packed.tensors["data"]
        pooled, kernel = packed.tensors["pooled"], self._kernel(seen)
        height, width = seen.shape[2:]
        covered = (pooled.shape[2] * kernel[0], pooled.shape[3] * kernel[1])
        maps = _spread(pooled, covered)
        if covered != (height, width):
            if self._ceil:
                maps = maps[:, :, :height, :width]
            else:
                maps = F.pad(maps, (width - covered[1], 0, height - covered[0], 0))
            layout = torch.channels_last if seen.channels_last else torch.contiguous_format
            maps = maps.contiguous(memory_format=layout)
        return unview_maps(maps, packed)

    @property
    def _ceil(self) -> bool:
        return self.align == "area"

    def _kernel(self, maps: Maps) -> tuple[int, int]:
        return (1, self.block) if maps.flat else (self.block, self.block)

    def _maps(self, shape: torch.Size, contiguous: bool, channel: int) -> Maps | None:
        """Return the maps to pool, or None where there is nothing to pool."""
        maps = maps_of(shape, contiguous, channel)
        if maps is None or shape.numel() == 0:
            return None
        size = maps.shape[3:] if maps.flat else maps.shape[2:]
        if max(size) == 1:
            return None
        if min(size) < self.block:
            edges = " x ".join(map(str, size))
            raise ValueError(f"block must fit into the map: block={self.block}, the map is {edges}")
        return maps


def _mean(maps: Tensor, kernel: tuple[int, int], ceil: bool) -> Tensor:
    """Average blocks; one that hangs over the edge averages what it covers."""
    return F.avg_pool2d(maps, kernel, ceil_mode=ceil, count_include_pad=False)


def _spread(pooled: Tensor, size: tuple[int, int]) -> Tensor:
    """Give every position the number of its block."""
    return F.interpolate(pooled, size, mode="nearest")
