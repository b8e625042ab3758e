"""Tokens: a sequence of patches goes through a map codec on its grid, other tokens in bf16."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from division.codec import Codec, Packed


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

    def takes_as_it_lies(self, x: Tensor, channel: int) -> bool:
        """Take what the codec of the grid takes."""
        return self.codec.takes_as_it_lies(self._grid(x), -1)

    def _pack(self, x: Tensor, seed: int, channel: int) -> dict[str, Tensor]:
        tensors = self.codec._pack(self._grid(x), seed, -1)
        if self.extra:
            extra = x[:, : self.extra]
            dtype = torch.bfloat16 if x.element_size() > 2 else x.dtype
            tensors["extra"] = extra.to(dtype, copy=True, memory_format=torch.contiguous_format)
        return tensors

    def _unpack(self, packed: Packed) -> Tensor:
        like = next(iter(packed.tensors.values()))
        out = like.new_empty(packed.shape, dtype=packed.dtype)
        self.decompress_into(packed, out)
        return out

    def decompress_into(self, packed: Packed, out: Tensor) -> None:
        """Write both parts where they belong."""
        n, _, channels = packed.shape
        shape = torch.Size((n, self.height, self.width, channels))
        grid = Packed(packed.tensors, shape, packed.dtype, torch.contiguous_format, -1)
        self.codec.decompress_into(grid, self._grid(out))
        if self.extra:
            out[:, : self.extra] = packed.tensors["extra"]

    def _grid(self, x: Tensor) -> Tensor:
        n, _, channels = x.shape
        sample, token, _ = x.stride()
        steps = (sample, self.width * token, token, x.stride(2))
        start = x.storage_offset() + self.extra * token
        return x.as_strided((n, self.height, self.width, channels), steps, start)
