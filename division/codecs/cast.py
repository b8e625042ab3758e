"""Cast: a copy in a 16-bit floating type."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from division.codec import Codec, Packed, check_choice

_TYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16}


@dataclass(frozen=True)
class Cast(Codec):
    """Keeps 32-bit tensors in 16 bits; tensors that have 16 bits already are kept as they are."""

    dtype: str = "bfloat16"
    name: ClassVar[str] = "cast"

    def __post_init__(self) -> None:
        check_choice("dtype", self.dtype, tuple(_TYPES))

    def _pack(self, x: Tensor, seed: int, channel: int) -> dict[str, Tensor]:
        dtype = _TYPES[self.dtype] if x.element_size() > 2 else x.dtype
        return {"data": x.to(dtype, copy=True)}

    def _unpack(self, packed: Packed) -> Tensor:
        return packed.tensors["data"].to(packed.dtype)
