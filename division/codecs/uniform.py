"""Uniform: per-group quantization with stochastic rounding, the common ancestor of the field."""

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from division.bits import packed_size
from division.codec import Codec, Packed, check_range
from division.codecs.cast import Cast
from division.codecs.groups import pack_groups, unpack_groups


@dataclass(frozen=True)
class Uniform(Codec):
    """Quantizes groups of neighbours to `bits` bits between their own minimum and maximum.

    >>> import torch
    >>> packed = Uniform(bits=2).compress(torch.randn(4, 8, 16, 16))
    >>> 8 * packed.nbytes / (4 * 8 * 16 * 16)  # bits an element
    2.125
    """

    bits: int = 2
    group: int = 256
    name: ClassVar[str] = "uniform"

    def __post_init__(self) -> None:
        check_range("bits", self.bits, 1, 8)
        check_range("group", self.group, 2, 65536)

    def _pack(self, x: Tensor, seed: int, channel: int) -> dict[str, Tensor]:
        if self._pays(x.numel()):
            return pack_groups(x, self.group, self.bits, low=False, seed=seed)
        return Cast()._pack(x, seed, channel)

    def _unpack(self, packed: Packed) -> Tensor:
        if self._pays(packed.shape.numel()):
            return unpack_groups(packed, self.group, self.bits)
        return Cast()._unpack(packed)

    def _pays(self, count: int) -> bool:
        """Tell whether groups take less than a bf16 copy (a small tensor is mostly padding)."""
        groups = -(-count // self.group)
        return groups * (packed_size(self.group, self.bits) + 4) < 2 * count
