"""The packed copies of one forward: each tensor once, tokens on the grid of their patches."""

import weakref
from typing import Any

import torch
from torch import Tensor

from division.codec import Codec, Packed
from division.codecs.mask import Mask
from division.codecs.tokens import Tokens
from division.forms import Form, grid_of
from division.method import Method
from division.recognize import Fingerprint, fingerprint
from division.recompute import SOURCES, Recipes
from division.site import Site
from division.stored import Desk, Rebuilder, Rebuilt, Slot, Stored
from division.waiting import Waiting


class Store:
    """Makes copies and finds those that are there; holds none of them alive."""

    def __init__(self, method: Method, masks_wait: bool = False) -> None:
        self._method = method
        self._masks_wait = masks_wait
        self._desk = Desk()
        self.waiting: weakref.ref[Stored] | None = None  # the last mask, if it is not packed yet
        self._copies: dict[tuple[Any, ...], tuple[weakref.ref[Stored | Rebuilt], Fingerprint]] = {}
        self._offers: dict[tuple[Any, ...], tuple[weakref.ref[Rebuilder], Fingerprint, str]] = {}
        self.recipes = Recipes(SOURCES[method.recompute]) if method.recompute else None
        self._grids: dict[int, tuple[int, int]] = {}

    def clear(self) -> None:
        """Forget everything; no mask waits any longer."""
        self.settle(self.waiting)
        self._copies.clear()
        self._offers.clear()
        if self.recipes is not None:
            self.recipes.clear()

    def note_map(self, shape: tuple[int, ...]) -> None:
        """Remember the size of a map (N, C, H, W) that a convolution made: tokens may be of it."""
        if len(shape) == 4:
            self._grids[shape[2] * shape[3]] = (shape[2], shape[3])

    def keep(
        self, tensor: Tensor, codec: Codec, form: Form, site: str, exact: bool
    ) -> tuple[Slot, bool]:
        """Return a slot on a copy that is there, or on a new one; and whether it was there.

        A copy serves those of its own codec; what is rebuilt, or belongs to a method whose copies
        serve everybody, all but exact surrogates (masks, indices).
        """
        mark = fingerprint(tensor)
        key = (mark.key, None if self._method.one_copy and not exact else codec)
        found = self._copies.get(key)
        if found is None and not exact:
            found = self._copies.get((mark.key, None))
        copy = found[0]() if found and self._method.share and found[1].same(mark) else None
        if copy is None and not exact:
            copy = self._taken_offer(mark, tensor.shape) or self._by_recipe(tensor)
        if copy is not None:
            return Slot(copy, tensor), True
        seen = form.see(tensor.detach())
        laid_out = self._on_grid(codec, seen, form)
        copy = Stored(
            laid_out, self._packed(laid_out, seen, form), form, tensor.shape, site, self._desk
        )
        self._copies[key] = (weakref.ref(copy), mark)
        if copy.waiting is not None:
            self.settle(self.waiting)
            self.waiting = weakref.ref(copy)
        slot = Slot(copy, tensor)
        if self.recipes is not None and not exact:
            self.recipes.note_copy(tensor, slot)
        return slot, False

    def _packed(self, codec: Codec, seen: Tensor, form: Form) -> Packed | Waiting:
        """Compress a tensor, and pack with it the mask that waits for it, if one does."""
        seed = self._method.next_seed()
        if self._masks_wait and isinstance(codec, Mask) and codec.of_result:
            return Waiting(codec, seen)
        mask = self.waiting() if self.waiting is not None and form.channel == 1 else None
        if mask is not None and mask.waiting is not None and mask.waiting.is_of(seen):
            both = mask.waiting.pack_with(seen, codec, seed)
            if both is not None:
                mask.settle(both[0])
                return both[1]
        return codec.compress(seen, seed, form.channel)

    def settle(self, waiting: "weakref.ref[Stored] | None") -> None:
        """Have a mask packed now, unless it is or nobody needs it any more."""
        mask = waiting() if waiting is not None else None
        if mask is not None and mask.waiting is not None and not mask.waiting.is_spoilt():
            mask.settle(mask.waiting.pack())
        if waiting is self.waiting:
            self.waiting = None

    def add(self, tensor: Tensor, rebuilt: Rebuilt) -> Slot:
        """Have a tensor rebuilt for all that save it."""
        mark = fingerprint(tensor)
        self._copies[mark.key, None] = (weakref.ref(rebuilt), mark)
        return Slot(rebuilt, tensor)

    def offer(self, tensor: Tensor, rebuilder: Rebuilder, site: Site) -> None:
        """Have a tensor rebuilt if anybody saves it; what can do so lives while its node does."""
        mark = fingerprint(tensor)
        self._offers[mark.key] = (weakref.ref(rebuilder), mark, site.path or site.node)

    def _taken_offer(self, mark: Fingerprint, shape: torch.Size) -> Rebuilt | None:
        """Return what rebuilds a tensor, now that it is needed, if there is an offer."""
        found = self._offers.get(mark.key)
        rebuilder = found[0]() if found and self._method.share and found[1].same(mark) else None
        if found is None or rebuilder is None:
            return None
        rebuilt = Rebuilt(rebuilder.rebuild, shape, found[2])
        self._copies[mark.key, None] = (weakref.ref(rebuilt), mark)
        return rebuilt

    def _by_recipe(self, tensor: Tensor) -> Rebuilt | None:
        """Return what rebuilds a tensor from what another layer stored, if that is smaller."""
        step = self.recipes.find(tensor) if self.recipes is not None else None
        again = step.take() if step is not None and step.nbytes < tensor.nbytes // 16 else None
        if step is None or again is None:
            return None
        return Rebuilt(again, tensor.shape, step.site, False, step.sources, step.nbytes)

    def _on_grid(self, codec: Codec, seen: Tensor, form: Form) -> Codec:
        """Return the codec, or one that lays tokens on their grid first."""
        if seen.dim() != 3 or form.channel != -1 or not codec.uses_maps:
            return codec
        found = grid_of(seen.shape[1], self._grids)
        return Tokens(codec, found[0], *found[1]) if found else codec
