"""What takes the place of a saved tensor: a packed copy, and how backward must see it."""

from collections.abc import Callable
from typing import Protocol

import torch
from torch import Tensor

from division.codec import Codec, Packed
from division.forms import Form


class Stored:
    """A packed copy of one saved tensor."""

    __slots__ = ("__weakref__", "codec", "form", "packed", "shape", "site")

    def __init__(
        self, codec: Codec, packed: Packed, form: Form, shape: torch.Size, site: str
    ) -> None:
        self.codec = codec
        self.form = form
        self.packed = packed
        self.shape = shape
        self.site = site

    def tensor(self) -> Tensor:
        """Return the decompressed tensor in the shape of the original."""
        return self.form.unsee(self.codec.decompress(self.packed), self.shape)


class Rebuilder(Protocol):
    """Something that can compute a tensor again."""

    def rebuild(self) -> Tensor:
        """Return the tensor."""


class Rebuilt:
    """A tensor that is computed again from other copies, once for all who need it."""

    __slots__ = (
        "__weakref__", "_again", "_given", "_ready", "keeps", "nbytes", "readers", "shape", "site",
        "sources",
    )  # fmt: skip

    def __init__(
        self,
        again: Callable[[], Tensor],
        shape: torch.Size,
        site: str,
        keeps: bool = True,
        sources: int = 1,
        nbytes: int = 0,
    ) -> None:
        self._again = again
        self.keeps = keeps  # from the first reader to the last; else each has it computed again
        self.sources = sources  # copies that are decompressed for it
        self.nbytes = nbytes  # what it takes itself
        self._ready: Tensor | None = None
        self._given = 0
        self.readers = 0
        self.shape = shape
        self.site = site

    def tensor(self) -> Tensor:
        """Return the tensor; the last reader leaves nothing behind."""
        tensor = self._ready
        if tensor is None:
            with torch.no_grad():
                tensor = self._again()
        self._given += 1
        is_last = self._given >= self.readers
        self._ready = None if is_last or not self.keeps else tensor
        self._given = 0 if is_last else self._given
        return tensor


class Slot:
    """What a node's slot holds instead of a tensor: a packed copy, and how backward must see it."""

    __slots__ = ("__weakref__", "shape", "stored", "stride")

    def __init__(self, stored: Stored | Rebuilt, tensor: Tensor) -> None:
        if isinstance(stored, Rebuilt):
            stored.readers += 1
        self.stored = stored
        self.shape = tensor.shape
        self.stride = tensor.stride()

    def unpack(self) -> Tensor:
        """Return the tensor in the shape and the layout of the original."""
        stored = self.stored
        if isinstance(stored, Stored) and stored.form.channel == -1 and stored.shape == self.shape:
            return self._in_place(stored)
        tensor = stored.tensor()
        if tensor.shape != self.shape:
            tensor = tensor.reshape(self.shape)  # one copy of a contiguous tensor serves all shapes
        if tensor.stride() == self.stride:
            return tensor
        exact = torch.empty_strided(
            tensor.shape, self.stride, dtype=tensor.dtype, device=tensor.device
        )
        return exact.copy_(tensor)

    def unpack_affine(self, factor: Tensor, term: Tensor, mask: "Slot | None") -> Tensor | None:
        """Return the tensor, channels scaled and shifted, and masked: in one pass, or not at all.

        The copy must be of maps as they are, and the mask of a tensor that lies in the same order.
        """
        stored = self.stored
        if not isinstance(stored, Stored) or stored.form != Form() or stored.shape != self.shape:
            return None
        if mask is None:
            return stored.codec.decompress_affine(stored.packed, factor, term, None)
        bits = mask.stored
        if not isinstance(bits, Stored) or bits.packed.memory_format != stored.packed.memory_format:
            return None
        inside = bits.packed.tensors["bits"]
        return stored.codec.decompress_affine(stored.packed, factor, term, inside)

    def _in_place(self, stored: Stored) -> Tensor:
        """Decompress tokens straight into the strides of the original."""
        like = next(iter(stored.packed.tensors.values()))
        dtype = stored.packed.dtype
        exact = torch.empty_strided(self.shape, self.stride, dtype=dtype, device=like.device)
        seen = stored.form.see(exact)
        if seen.untyped_storage()._cdata == exact.untyped_storage()._cdata:  # a view of it
            stored.codec.decompress_into(stored.packed, seen)
        else:
            exact.copy_(stored.tensor())
        return exact
