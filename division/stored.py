"""What takes the place of a saved tensor: a packed copy, and how backward must see it."""

import weakref
from collections.abc import Callable
from typing import Protocol

import torch
from torch import Tensor

from division.codec import Codec, Packed
from division.forms import Form
from division.waiting import Waiting


class Desk:
    """Where one decompressed tensor of a forward lies for a second reader.

    It makes way for any other of its size, so that it adds little to the peak of a backward pass.
    """

    __slots__ = ("_owner", "_tensor")

    def __init__(self) -> None:
        self._owner: weakref.ref[Stored] | None = None
        self._tensor: Tensor | None = None

    def find(self, owner: "Stored") -> Tensor | None:
        """Return the tensor of a copy if it lies here."""
        return self._tensor if self._owner is not None and self._owner() is owner else None

    def leave(self, owner: "Stored", tensor: Tensor, wanted: bool) -> None:
        """Take note of a tensor that was decompressed, and keep it if it is wanted again."""
        if wanted:
            self._owner, self._tensor = weakref.ref(owner), tensor
        elif self.find(owner) is not None or (
            self._tensor is not None and tensor.nbytes >= self._tensor.nbytes
        ):
            self._owner, self._tensor = None, None


class Stored:
    """A packed copy of one saved tensor."""

    __slots__ = (
        "__weakref__", "_desk", "_packed", "_unread", "codec", "form", "shape", "site", "waiting",
    )  # fmt: skip

    def __init__(
        self,
        codec: Codec,
        packed: Packed | Waiting,
        form: Form,
        shape: torch.Size,
        site: str,
        desk: Desk,
    ) -> None:
        self.codec = codec
        self.form = form
        self.waiting = packed if isinstance(packed, Waiting) else None
        self._packed = None if isinstance(packed, Waiting) else packed
        self.shape = shape
        self.site = site
        self._desk = desk
        self._unread = 0

    @property
    def packed(self) -> Packed:
        """What the codec keeps; a mask that has waited so far is packed."""
        if self._packed is None:
            assert self.waiting is not None
            self.settle(self.waiting.pack())
        assert self._packed is not None
        return self._packed

    def settle(self, packed: Packed) -> None:
        """Take the mask that was waited for."""
        self._packed, self.waiting = packed, None

    def tensor(self) -> Tensor:
        """Return the decompressed tensor in the shape of the original."""
        return self.form.unsee(self.codec.decompress(self.packed), self.shape)

    def add_reader(self) -> None:
        """Count a slot that will read the copy."""
        self._unread += 1

    def read(self, first_time: bool) -> Tensor:
        """Return the tensor for a slot; it may stay decompressed until all have read it once."""
        found = self._desk.find(self)
        tensor = self.tensor() if found is None else found
        self._unread -= first_time
        self._desk.leave(self, tensor, wanted=self._unread > 0)
        return tensor

    def read_affine(self, factor: Tensor, term: Tensor, mask: Tensor | None) -> Tensor:
        """Return the tensor, channels scaled and shifted, and masked: `Codec.decompress_affine`."""
        tensor = self.codec.decompress_affine(self.packed, factor, term, mask)
        self._desk.leave(self, tensor, wanted=False)
        return tensor


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

    def add_reader(self) -> None:
        """Count a slot that will read the tensor."""
        self.readers += 1

    def read(self, first_time: bool) -> Tensor:
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

    __slots__ = ("__weakref__", "_has_read", "shape", "stored", "stride")

    def __init__(self, stored: Stored | Rebuilt, tensor: Tensor) -> None:
        stored.add_reader()
        self._has_read = False
        self.stored = stored
        self.shape = tensor.shape
        self.stride = tensor.stride()

    def unpack(self) -> Tensor:
        """Return the tensor in the shape and the layout of the original."""
        stored = self.stored
        if isinstance(stored, Stored) and stored.form.channel == -1 and stored.shape == self.shape:
            return self._in_place(stored)
        tensor = stored.read(not self._has_read)
        self._has_read = True
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
        bits = None
        if mask is not None:
            inside = mask.stored
            if not isinstance(inside, Stored):
                return None
            if inside.packed.memory_format != stored.packed.memory_format:
                return None
            bits = inside.packed.tensors["bits"]
        return stored.read_affine(factor, term, bits)

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
