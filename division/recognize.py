"""Which tensor is this: the same one as before, a weight, or something new?

A storage is told by its address *under a live weak reference*, which keeps the address from being
reused after the storage is freed. Weights are told by their edge in the autograd graph, never by
pointer: autocast and FSDP compute with copies.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.multiprocessing.reductions import StorageWeakRef

# Nodes that hand on their input unchanged: from a saved tensor through them to its parameter.
_PASSING = {
    "TBackward0",
    "ViewBackward0",
    "UnsafeViewBackward0",
    "ReshapeAliasBackward0",
    "TransposeBackward0",
    "PermuteBackward0",
    "ExpandBackward0",
    "UnsqueezeBackward0",
    "SqueezeBackward1",
    "SliceBackward0",
    "SelectBackward0",
    "ToCopyBackward0",
}


@dataclass(frozen=True, eq=False)
class Fingerprint:
    """A key that equal tensors share, and what has to hold besides for them to be the same."""

    key: tuple[Any, ...]
    storage: StorageWeakRef | None = None  # must be alive still
    checksum: Tensor | None = None  # must be equal

    def same(self, other: "Fingerprint") -> bool:
        """Tell whether a tensor with the same key is the tensor that left this fingerprint."""
        if self.storage is not None:
            return not self.storage.expired()
        if self.checksum is None or other.checksum is None:
            return True
        return torch.equal(self.checksum, other.checksum)


def fingerprint(tensor: Tensor) -> Fingerprint:
    """Identify a tensor by its storage, view and version, or a cast copy by what was cast.

    Autocast casts the common input of two convolutions twice. The copies differ, but both hang on
    the same graph edge. The edge does not show an in-place edit of the source under no_grad, so a
    sum over the bits of the copy has to agree too.
    """
    view = (tensor.shape, tensor.stride(), tensor.dtype)
    cast = tensor.grad_fn
    if cast is not None and cast.name() == "ToCopyBackward0":
        source, output = cast.next_functions[0]
        if source is not None and not hasattr(source, "variable"):
            return Fingerprint((source._sequence_nr(), output, *view), checksum=_checksum(tensor))
    storage = tensor.untyped_storage()
    key = (storage._cdata, tensor.storage_offset(), *view, tensor._version)
    return Fingerprint(key, storage=StorageWeakRef(storage))


def _checksum(tensor: Tensor) -> Tensor | None:
    if isinstance(tensor, FakeTensor):  # there are no bits to add up
        return None
    words = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[tensor.element_size()]
    return tensor.detach().view(words).sum(dtype=torch.int64)


def is_weight(tensor: Tensor) -> bool:
    """Tell whether a tensor is a parameter, a view of one, or its cast copy (autocast, FSDP)."""
    if isinstance(tensor, nn.Parameter) or isinstance(tensor._base, nn.Parameter):
        return True  # a frozen weight, or a view of one, has no edge to walk
    node = tensor.grad_fn
    while node is not None and node.name() in _PASSING:
        node = node.next_functions[0][0]
    variable = getattr(node, "variable", None)
    return isinstance(variable, nn.Parameter)
