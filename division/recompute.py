"""Recipes: an output that a cheap layer can compute again from what it stored is not stored again.

In conv -> norm -> ReLU -> conv the input of the norm and that of the second convolution hold the
same information. The graph edge is the recipe: from the tensor that a layer saves back to a node
whose own input is stored. The exact statistics of the norm and the exact mask of the ReLU are there
anyway.

What the graph does not show is an edit in place under no_grad. Two things guard against it: the
version of the tensor must be what the operations on the way make it, and a few of its elements must
be what the recipe gives for them.
"""

import functools
import math
import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor

from division.again import Index, Layer, layer_of
from division.recognize import VIEWS
from division.stored import Rebuilt, Slot

Again = Callable[[], Tensor]
Kept = Mapping[str, tuple[Slot, Tensor]]  # slots of a node that were packed, and their originals
# Copies that a recipe may decompress, by the option: one costs no time against a copy of its own;
# a residual sum needs two, which saves more memory and costs time.
SOURCES: dict[bool | str, int] = {False: 0, True: 1, "deep": 2}
# Nodes that save nothing and yet are part of recipes.
IN_RECIPES = {
    "AddBackward0", "CatBackward0", "PermuteBackward0", "TransposeBackward0", "SliceBackward0",
}  # fmt: skip
_PROBES = 8
_NEW = frozenset((0,))  # the version of a tensor that nobody has written to


@dataclass(frozen=True, eq=False)
class Step:
    """How to compute one output of a node again.

    Attributes:
        shape: of the output.
        take: returns what computes it, or None if a copy that it needs is gone. Until it is called
            all references are weak: a part of the graph that is dropped frees its copies.
        site: where its first source is stored.
        versions: the versions that the tensor can have if nobody else wrote to it.
        probe: a few elements of the true output; None where they are not known.
        sources: how many copies are decompressed.
        nbytes: what the recipe itself keeps.
        in_one_pass: returns what computes the output times a mask, decompressing as it goes.
    """

    shape: tuple[int, ...]
    take: Callable[[], Again | None]
    site: str
    versions: frozenset[int] = _NEW
    probe: Tensor | None = None
    sources: int = 1
    nbytes: int = 0
    in_one_pass: Callable[[Slot | None], Again | None] | None = None

    def makes(self, tensor: Tensor) -> bool:
        """Tell whether a tensor is what this step computes, as far as can be seen."""
        if tensor._version not in self.versions:
            return False
        if tuple(tensor.shape) != self.shape:
            return tensor.is_contiguous()  # a view of it, in another shape
        elements = _elements(tensor)
        if elements is None or self.probe is None:
            return True
        return torch.allclose(elements.float(), self.probe.float(), 1e-2, 1e-4, equal_nan=True)


class Recipes:
    """The steps of one forward, by the nodes whose outputs they compute."""

    def __init__(self, most_sources: int) -> None:
        self._most_sources = most_sources
        self._steps: dict[tuple[int, int], Step] = {}

    def clear(self) -> None:
        """Forget everything."""
        self._steps.clear()

    def find(self, tensor: Tensor) -> Step | None:
        """Return how to rebuild a tensor that is about to be saved, if there is a safe way."""
        node: Any = tensor.grad_fn
        output = tensor.output_nr
        while node is not None and node.name() in VIEWS and tensor.is_contiguous():
            node, output = node.next_functions[0]
        step = None if node is None else self._steps.get((node._sequence_nr(), output))
        if step is None or step.sources > self._most_sources or not step.makes(tensor):
            return None
        return step

    def note(self, node: Any, name: str, kept: Kept, module: nn.Module | None) -> None:
        """Remember how the output of a node can be computed again, if it can be."""
        layer = layer_of(node, name, module) if kept else None
        if layer is not None:
            step: Step | None = self._of_layer(layer, *next(iter(kept.values())))
        else:
            step = self._of_steps(node, name, kept)
        if step is not None:
            self._steps[node._sequence_nr(), 0] = step

    def _of_layer(self, layer: Layer, slot: Slot, source: Tensor) -> Step:
        """Return the step of a layer that stored its input."""
        shape, stored, elements = tuple(source.shape), slot.stored, _elements(source)
        probe = None
        if layer.some is not None and elements is not None:
            probe = layer.some(elements, _index(shape))
        sources = stored.sources if isinstance(stored, Rebuilt) else 1
        take = _applying(weakref.ref(slot), layer.whole)
        fused = None if layer.affine is None else _finishing(weakref.ref(slot), layer)
        return Step(shape, take, stored.site, _NEW, probe, sources, layer.nbytes, fused)

    def note_copy(self, tensor: Tensor, slot: Slot) -> None:
        """Remember that the output of a node is stored as it is."""
        node: Any = tensor.grad_fn
        if node is not None and node.name() not in VIEWS:
            key = (node._sequence_nr(), tensor.output_nr)
            take = _applying(weakref.ref(slot), None)
            shape, versions = tuple(tensor.shape), frozenset((tensor._version,))
            self._steps[key] = Step(shape, take, slot.stored.site, versions, _elements(tensor))

    def _of_steps(self, node: Any, name: str, kept: Kept) -> Step | None:
        """Return the step of a node whose inputs have steps."""
        inputs = [self._steps.get((n._sequence_nr(), i)) for n, i in node.next_functions if n]
        steps = [step for step in inputs if step is not None]
        if not steps or len(steps) != len(inputs):
            return None
        if name == "ReluBackward0" and "result" in kept:
            return _masked(steps[0], kept["result"][0], torch.relu, is_relu=True)
        if name == "MulBackward0" and "other" in kept and len(steps) == 1:
            noise = _elements(kept["other"][1])
            scaled: Callable[[Tensor], Tensor] = lambda x: x if noise is None else x * noise  # noqa: E731
            return _masked(steps[0], kept["other"][0], scaled, is_relu=False)
        if name == "AddBackward0" and node._saved_alpha == 1 and len(steps) == 2:
            return _sum(*steps)
        if name == "CatBackward0":
            shape, dim = tuple(node._input_metadata[0].shape), _signed(node._saved_dim)
            return _joined(steps, shape, lambda parts: torch.cat(parts, dim))
        function = _rearrangement(node, name)
        if function is None:
            return None
        shape = tuple(node._input_metadata[0].shape)
        return _joined(steps, shape, lambda parts: function(parts[0]))


def _applying(kept: "weakref.ref[Slot]", function: Callable[[Tensor], Tensor] | None) -> Any:
    """Return what takes a copy, and applies a function to what comes out of it."""

    def take() -> Again | None:
        slot = kept()
        if slot is None or function is None:
            return None if slot is None else slot.unpack
        return lambda: function(slot.unpack())

    return take


def _finishing(kept: "weakref.ref[Slot]", layer: Layer) -> Callable[[Slot | None], Again | None]:
    """Return what takes a copy that is scaled, shifted and masked while it is decompressed."""

    def take(mask: Slot | None) -> Again | None:
        slot = kept()
        if slot is None or layer.affine is None:
            return None
        factor, term = layer.affine

        def again() -> Tensor:
            tensor = slot.unpack_affine(factor, term, mask)
            if tensor is None:
                tensor = layer.whole(slot.unpack())
                tensor = tensor if mask is None else tensor * mask.unpack()
            return tensor

        return again

    return take


def _masked(
    step: Step, mask: Slot, on_probe: Callable[[Tensor], Tensor], is_relu: bool
) -> Step | None:
    """ReLU and dropout: the input times what their exact slot gives back."""
    kept = weakref.ref(mask)
    if step.shape != tuple(mask.shape):
        return None

    def take() -> Again | None:
        slot = kept()
        if slot is not None and is_relu and step.in_one_pass is not None:
            return step.in_one_pass(slot)
        again = step.take()
        return None if slot is None or again is None else lambda: again() * slot.unpack()

    probe = None if step.probe is None else on_probe(step.probe)
    return Step(step.shape, take, step.site, _in_place_too(step), probe, step.sources, step.nbytes)


def _sum(left: Step, right: Step) -> Step | None:
    """A residual sum, of two terms of one shape."""
    if left.shape != right.shape:
        return None
    step = _joined([left, right], left.shape, lambda parts: parts[0] + parts[1])
    known = left.probe is not None and right.probe is not None
    probe = left.probe + right.probe if known else None  # type: ignore[operator]
    return Step(
        step.shape, step.take, step.site, _in_place_too(left), probe, step.sources, step.nbytes
    )


def _joined(
    steps: list[Step], shape: tuple[int, ...], join: Callable[[list[Tensor]], Tensor]
) -> Step:
    """What is made of several outputs, or one, by moving elements or adding them up."""

    def take() -> Again | None:
        parts = [again for again in (step.take() for step in steps) if again is not None]
        return (lambda: join([part() for part in parts])) if len(parts) == len(steps) else None

    sources, nbytes = sum(step.sources for step in steps), sum(step.nbytes for step in steps)
    versions = steps[0].versions | _NEW
    return Step(shape, take, steps[0].site, versions, None, sources, nbytes)


def _in_place_too(step: Step) -> frozenset[int]:
    """Return the versions of an output that is new, or written over its input."""
    return _NEW | {version + 1 for version in step.versions}


def _rearrangement(node: Any, name: str) -> Callable[[Tensor], Tensor] | None:
    """Return what a node does that only moves elements, or leaves some out."""
    if name == "PermuteBackward0":
        dims = [_signed(dim) for dim in node._saved_dims]
        return lambda x: x.permute(dims)
    if name == "TransposeBackward0":
        pair = (_signed(node._saved_dim0), _signed(node._saved_dim1))
        return lambda x: x.transpose(*pair)
    if name == "SliceBackward0":
        part = (node._saved_dim, node._saved_start, node._saved_end, node._saved_step)
        dim, *rest = (_signed(number) for number in part)
        return lambda x: torch.ops.aten.slice(x, dim, *rest)
    return None


def _signed(number: int) -> int:
    """Undo what the graph does to negative numbers: it shows them modulo 2**64."""
    return number - 2**64 if number >= 2**63 else number


def _elements(tensor: Tensor) -> Tensor | None:
    """Return a few elements of a tensor, the same places for tensors of the same shape."""
    # To look at numbers on a GPU, the program would have to wait for it.
    if isinstance(tensor, FakeTensor) or tensor.device.type != "cpu" or tensor.numel() < _PROBES:
        return None
    return tensor.detach()[_index(tuple(tensor.shape))]


@functools.lru_cache(maxsize=256)
def _index(shape: tuple[int, ...]) -> Index:
    """Return the index of a few elements, spread over a shape."""
    count = math.prod(shape)
    places = torch.arange(_PROBES) * (count // _PROBES) + count // (2 * _PROBES)
    return tuple(torch.unravel_index(places, shape))
