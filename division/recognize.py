"""Which tensor is this: the same one as before, a weight, or something new?

A storage is told by its address *under a live weak reference*, which keeps the address from being
reused after the storage is freed. Weights are told by their edge in the autograd graph, never by
pointer: autocast and FSDP compute with copies.
"""

import math
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


VIEWS = {"ViewBackward0", "UnsafeViewBackward0", "ReshapeAliasBackward0"}
_CHANNEL_FIRST = ("Convolution", "NativeBatchNorm", "CudnnBatchNorm", "NativeGroupNorm")
_CHANNEL_LAST = ("Addmm", "Mm", "NativeLayerNorm", "FusedRmsNorm", "Embedding")
_LOOK_BACK = 12  # nodes; further back nothing is told


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
    view: tuple[Any, ...] = (tensor.shape, tensor.stride(), tensor.dtype)
    if tensor.is_contiguous():  # whatever shape it is seen in, the bytes are the same
        view = (tensor.numel(), tensor.dtype)
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


def shape_before_view(tensor: Tensor) -> tuple[int, ...]:
    """Return the shape that a tensor had before it was viewed as what it is, or nothing."""
    node = tensor.grad_fn
    if node is None or node.name() not in VIEWS:
        return ()
    shape = tuple(node._saved_self_sym_sizes)  # type: ignore[attr-defined]
    return shape if math.prod(shape) == tensor.numel() else ()


def channel_of(tensor: Tensor) -> int:
    """Tell from the graph whether the channel is dimension 1 or the last (-1).

    Convolutions and batch norms have it first, linear layers and layer norms last; transpositions
    on the way exchange the two.
    """
    node: Any = tensor.grad_fn if tensor.dim() >= 3 else None
    channel = 1
    for _ in range(_LOOK_BACK):
        name = node.name() if node is not None else ""
        if not name or name.startswith(_CHANNEL_FIRST):
            return channel
        if name.startswith(_CHANNEL_LAST):
            return -channel
        if _moves_last(node, name):
            channel = -channel
        node = node.next_functions[0][0] if node.next_functions else None
    return 1


def _moves_last(node: Any, name: str) -> bool:
    """Tell whether a node moves the last dimension elsewhere."""
    if name == "PermuteBackward0":
        return node._saved_dims[-1] not in (len(node._saved_dims) - 1, 2**64 - 1, -1)
    if name != "TransposeBackward0":
        return False
    last = len(node._input_metadata[0].shape) - 1
    return any(int(d) in (last, -1, 2**64 - 1) for d in (node._saved_dim0, node._saved_dim1))


def is_weight(tensor: Tensor) -> bool:
    """Tell whether a tensor is a parameter, a view of one, or its cast copy (autocast, FSDP)."""
    if isinstance(tensor, nn.Parameter) or isinstance(tensor._base, nn.Parameter):
        return True  # a frozen weight, or a view of one, has no edge to walk
    node = tensor.grad_fn
    while node is not None and node.name() in _PASSING:
        node = node.next_functions[0][0]
    variable = getattr(node, "variable", None)
    return isinstance(variable, nn.Parameter)
