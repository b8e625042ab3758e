"""The codec contract: tensor -> Codec.compress -> Packed -> Codec.decompress -> tensor.

A codec is an immutable set of options; two codecs with the same options are equal and make the same
bytes. What every codec owes its caller, and what the shared test checks of each registered one:

- any floating tensor of 32 or 16 bits is taken: contiguous, channels_last, strided, empty,
  constant, one element; anything else raises `TypeError` naming the dtype;
- shape, dtype, device and memory format come back; values come back as the codec promises;
- `Packed.nbytes` is what the packed tensors really hold, and never more than a bf16 copy would
  (than the original, for a codec that promises more precision than bf16: `keeps_precision`);
- under FakeTensorMode sizes are exact, but for a codec whose sizes depend on the values
  (`sized_by_data`): there it assumes what its options say;
- same options, same seed, same input: same bytes, on every backend;
- a NaN or Inf comes back as NaN or Inf, or is refused with an error; never as a finite number
  (a finite number within 1 % of the end of its type's range, or fp32 beyond 1e36, may come back as
  Inf or NaN: block sums and rounded-up scales overflow there);
- the input is neither changed nor kept alive, and nothing draws from the global random generator.

The channel dimension is 1 unless `channel=-1` says that it is the last (tokens (N, T, C)); all
other dimensions but the first are space.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from division.bits import unpack_mask

FLOAT_TYPES = (torch.float32, torch.bfloat16, torch.float16)
_FORMATS = {4: torch.channels_last, 5: torch.channels_last_3d}


@dataclass(frozen=True, eq=False)
class Packed:
    """What a codec keeps of one tensor: named tensors, and how the original looked."""

    tensors: Mapping[str, Tensor]
    shape: torch.Size
    dtype: torch.dtype
    memory_format: torch.memory_format
    channel: int = 1

    @property
    def nbytes(self) -> int:
        """Bytes of the storages that the packed tensors hold."""
        storages = {t.untyped_storage()._cdata: t.untyped_storage() for t in self.tensors.values()}
        return sum(storage.nbytes() for storage in storages.values())


class Codec(ABC):
    """Compresses single tensors; see the module docstring for the contract."""

    name: ClassVar[str]
    dtypes: ClassVar[tuple[torch.dtype, ...]] = FLOAT_TYPES
    keeps_precision: ClassVar[bool] = False
    sized_by_data: ClassVar[bool] = False
    uses_maps: ClassVar[bool] = False  # neighbours in space matter: tokens are laid on their grid

    def takes(self, dtype: torch.dtype) -> bool:
        """Tell whether tensors of a type can be compressed."""
        return dtype in self.dtypes

    def compress(self, x: Tensor, seed: int = 0, channel: int = 1) -> Packed:
        """Return a packed copy of x; `seed` decides the rounding noise of stochastic codecs."""
        if not self.takes(x.dtype):
            known = ", ".join(str(dtype) for dtype in self.dtypes)
            raise TypeError(f"codec {self.name!r} takes {known}; got {x.dtype}")
        if channel not in (1, -1):
            raise ValueError(f"channel is 1 or -1 (the last dimension); got {channel}")
        memory_format = memory_format_of(x) if channel == 1 else torch.contiguous_format
        source = x.detach()
        if not self.takes_as_it_lies(x, channel):
            source = source.contiguous(memory_format=memory_format)
        tensors = self._pack(source, seed, channel)
        return Packed(tensors, x.shape, x.dtype, memory_format, channel)

    def compress_masked(
        self, x: Tensor, seed: int, low: float, high: float
    ) -> tuple[Packed, Tensor] | None:
        """Return what `compress` does and the bits of a mask of x, or None if not in one pass."""
        return None

    def decompress(self, packed: Packed) -> Tensor:
        """Return the tensor that `compress` was given, up to what the codec loses."""
        return self._unpack(packed)

    def decompress_into(self, packed: Packed, out: Tensor) -> None:
        """Write what `decompress` returns where it belongs."""
        out.copy_(self.decompress(packed))

    def decompress_affine(
        self, packed: Packed, factor: Tensor, term: Tensor, mask: Tensor | None
    ) -> Tensor:
        """Return what `decompress` does, every channel scaled and shifted, and masked.

        The channel is dimension 1; `mask` is as `bits.pack_mask` makes it, in the memory's order.
        """
        y = self.decompress(packed)
        spread = (-1, *[1] * (y.dim() - 2))
        y = (y * factor.view(spread) + term.view(spread)).to(y.dtype)
        if mask is None:
            return y
        inside = unpack_mask(mask, y.numel(), 0.0, 1.0, y.dtype)
        return torch.where(unflatten_memory(inside, y.shape, packed.memory_format) > 0, y, 0.0)

    def takes_as_it_lies(self, x: Tensor, channel: int) -> bool:
        """Tell whether `_pack` can read a tensor that is not dense, and spare a copy of it."""
        return False

    @abstractmethod
    def _pack(self, x: Tensor, seed: int, channel: int) -> dict[str, Tensor]:
        """Pack a tensor that is dense in its memory format."""

    @abstractmethod
    def _unpack(self, packed: Packed) -> Tensor:
        """Undo `_pack`."""


def memory_format_of(x: Tensor) -> torch.memory_format:
    """Return channels_last (2-D or 3-D) only where x is dense in it and not simply contiguous."""
    last = _FORMATS.get(x.dim())
    if last is not None and not x.is_contiguous() and x.is_contiguous(memory_format=last):
        return last
    return torch.contiguous_format


def flatten_memory(x: Tensor) -> Tensor:
    """View a dense tensor as one dimension, in the order of its memory."""
    return x.as_strided((x.numel(),), (1,))


def unflatten_memory(flat: Tensor, shape: torch.Size, memory_format: torch.memory_format) -> Tensor:
    """Undo `flatten_memory`."""
    if memory_format == torch.contiguous_format:
        return flat.view(shape)
    n, c, *space = shape
    return flat.view(n, *space, c).movedim(-1, 1)


def check_choice(option: str, value: object, choices: tuple[object, ...]) -> None:
    """Raise ValueError unless `value` is one of the choices."""
    if value not in choices:
        listed = ", ".join(repr(choice) for choice in choices)
        raise ValueError(f"{option} must be one of {listed}; got {value!r}")


def check_range(option: str, value: object, low: int, high: int) -> None:
    """Raise ValueError unless `value` is a whole number in [low, high]."""
    if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
        raise ValueError(f"{option} must be a whole number from {low} to {high}; got {value!r}")
