"""Tokens: a sequence of patches goes through a map codec on its grid, other tokens in bf16."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from division.codec import Codec, Packed
from division.codecs.cast import Cast


@dataclass(frozen=True)
class Tokens(Codec):
    """Keeps (N, T, C) as `extra` tokens in 16 bits and a height x width grid through `codec`.

    Class and register tokens are few, matter to every patch and are no neighbours of any.
    """

    codec: Codec
    extra: int
    height: int
    width: int
    name: ClassVar[str] = "tokens"

    def takes(self, dtype: torch.dtype) -> bool:
        """Take what the codec of the grid takes."""
        return self.codec.takes(dtype)

    def _pack(self, x: Tensor, seed: int, channel: int) -> dict[str, Tensor]:
        grid = self._grid(x[:, self.extra :]).contiguous()
        tensors = self.codec._pack(grid, seed, -1)
        if self.extra:
            tensors["extra"] = Cast()._pack(x[:, : self.extra], seed, -1)["data"].contiguous()
        return tensors

    def _unpack(self, packed: Packed) -> Tensor:
        n, _, channels = packed.shape
        shape = torch.Size((n, self.height, self.width, channels))
        inner = Packed(packed.tensors, shape, packed.dtype, torch.contiguous_format, -1)
        grid = self.codec.decompress(inner).reshape(n, -1, channels)
        if not self.extra:
            return grid
        return torch.cat([packed.tensors["extra"].to(packed.dtype), grid], 1)

    def _grid(self, x: Tensor) -> Tensor:
        return x.reshape(x.shape[0], self.height, self.width, x.shape[2])
