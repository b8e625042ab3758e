"""Attention: q, k and v are stored; outputs, statistics and weights are rebuilt from them.

The backward of fused attention uses q, k, v, the output and the log-sum-exp of every row; that of
softmax(q k) v uses the attention weights. Stored beside lossy q, k, v they would contradict them.
Rebuilt from what is stored all agree, and they cost nothing.
"""

import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor

from division.codec import FLOAT_TYPES
from division.forms import Form
from division.fused import FUSED, INPUTS, Again, Fused
from division.obstacles import obstacle
from division.recognize import VIEWS
from division.site import Site
from division.stored import Rebuilt

if TYPE_CHECKING:
    from division.capture import Capture


class Unpackable(Protocol):
    """Something that gives a tensor back."""

    def unpack(self) -> Tensor:
        """Return the tensor."""


Inputs = Callable[[], Sequence[Tensor]]  # makes q, k and v


class Attention:
    """One call: hands out each of its five tensors, making all of them at once."""

    def __init__(self, inputs: Inputs, again: Again, outputs: tuple[str, str]) -> None:
        self._inputs = inputs
        self._again = again
        self._outputs = outputs
        self._ready: dict[str, Tensor] = {}
        self._is_over = False

    def ticket(self, slot: str, tensor: Tensor) -> tuple["Attention", str]:
        """Return what a slot holds instead of its tensor."""
        return self, slot

    @staticmethod
    def redeem(ticket: tuple["Attention", str]) -> Tensor:
        """Return the tensor of a slot; the last of the five leaves nothing behind."""
        call, slot = ticket
        if slot not in call._ready:
            call._ready = call._all()
        tensor = call._ready.pop(slot)
        call._is_over = not call._ready
        return tensor

    def rebuild(self) -> Tensor:
        """Return the output (N, T, heads, D) for the layer behind, whose backward comes first.

        What was made for it serves the backward of the attention too, unless that is over.
        """
        tensors = self._ready or self._all()
        if not self._is_over:
            self._ready = tensors
        self._is_over = False
        return tensors["output"].transpose(1, 2)

    def _all(self) -> dict[str, Tensor]:
        """Make the five tensors."""
        with torch.no_grad():
            inputs = self._inputs()
            outputs = self._again(*inputs)
        return dict(zip((*INPUTS, *self._outputs), (*inputs, *outputs), strict=True))


def keep_fused(kind: Fused, capture: "Capture", node: Any, where: Callable[[str], Site]) -> bool:
    """Store the inputs of fused attention and have the rest rebuilt from them."""
    raws = {slot: getattr(node, f"_raw_saved_{slot}") for slot in (*INPUTS, *kind.outputs)}
    again, query = kind.again(node), raws["query"].data
    obstacles = (obstacle(raws[slot].data) for slot in INPUTS)
    why = again if isinstance(again, str) else next(filter(None, obstacles), "")
    if not why and (query.dtype not in FLOAT_TYPES or not capture.method.codec(where("query"))):
        why = f"{capture.method.name} leaves it"
    for slot in ("attn_mask", "attn_bias"):
        bias = getattr(node, f"_raw_saved_{slot}", None)
        if bias is not None:
            capture.leave(where(slot), bias.data, "added to the scores, kept exact")
    if why or isinstance(again, str):
        for slot, raw in raws.items():
            capture.leave(where(slot), raw.data, why)
        return True
    if capture.ledger is not None:
        for slot in kind.outputs:
            why = "rebuilt from the stored q, k and v"
            capture.ledger.add(where(slot).labels(), raws[slot].data, "rebuilt", why, 0)
    inputs = _keep_inputs(capture, node, [raws[slot].data for slot in INPUTS], where)
    call = Attention(inputs, again, kind.outputs)
    # The layer behind flattens (N, T, heads, D), and finds it here without a copy of its own.
    capture.store.offer(raws["output"].data.transpose(1, 2), call, where("output"))
    for slot, raw in raws.items():
        raw.register_hooks(partial(call.ticket, slot), Attention.redeem)
    return True


def _keep_inputs(
    capture: "Capture", node: Any, tensors: Sequence[Tensor], where: Callable[[str], Site]
) -> Inputs:
    """Store q, k and v, as one tensor if they are parts of one; return what gives them back."""
    joined = _joined(tensors)
    if joined is not None:
        form, site = Form(-1), where("query, key, value")
        whole = capture.through(node, joined, form, site.of(tensors[0], form))
        if whole is None:  # keep_fused has asked the method before
            raise RuntimeError(f"{capture.method.name} leaves one role at {site.path!r}, not all")
        return partial(_parts, whole, tensors[0].shape, tensors[0].stride())
    form = Form(-1, heads=True)
    kept = [
        capture.through(node, tensor, form, where(slot).of(tensor, form))
        for slot, tensor in zip(INPUTS, tensors, strict=True)
    ]
    slots = [slot for slot in kept if slot is not None]
    return lambda: [slot.unpack() for slot in slots]


def _joined(tensors: Sequence[Tensor]) -> Tensor | None:
    """Return (N, T, 3 x heads x D) if q, k and v (N, heads, T, D) lie side by side in it."""
    query = tensors[0]
    n, heads, length, size = query.shape
    width = heads * size
    steps, start = query.stride(), query.storage_offset()
    if steps[1:] != (size, 3 * width, 1):
        return None
    for place, tensor in enumerate(tensors):
        here = tensor.storage_offset() == start + place * width and tensor.stride() == steps
        same = tensor.untyped_storage()._cdata == query.untyped_storage()._cdata
        if not (here and same and tensor.shape == query.shape):
            return None
    return query.detach().as_strided((n, length, 3 * width), (steps[0], steps[2], 1), start)


def _parts(whole: Unpackable, shape: torch.Size, steps: tuple[int, ...]) -> list[Tensor]:
    """Return q, k and v as views of the tensor that they were stored in."""
    tensor = whole.unpack()
    width = shape[1] * shape[3]
    return [tensor.as_strided(shape, steps, place * width) for place in range(3)]


# softmax(q k) v, written out: from the softmax back to the product that made its scores.
_MOST_STEPS = 6
ROWS_CHECKED = 8


Scaling = tuple[Callable[[Tensor, float], Tensor], float]


@dataclass(frozen=True)
class Scores:
    """Where the input of a softmax comes from: a product of matrices, and how it was scaled."""

    product: int  # sequence number of its node
    scalings: tuple[Scaling, ...]

    def weights(self, product: Tensor, dim: int) -> Tensor:
        """Return the softmax of the scaled product, by the very operations of the forward."""
        for operation, number in self.scalings:
            product = operation(product, number)
        return torch.softmax(product, dim)


class Product:
    """What is kept of a product of matrices: its stored factors, and some rows to check with."""

    def __init__(self, left: Tensor, right: Tensor) -> None:
        n, rows, _ = left.shape
        self.factors: list[weakref.ref[Any]] = []
        self._at = [(n * i // ROWS_CHECKED, rows * i // ROWS_CHECKED) for i in range(ROWS_CHECKED)]
        sample, row = (list(each) for each in zip(*self._at, strict=True))
        self._rows = left.detach()[sample, row].unsqueeze(1).bmm(right.detach()[sample])

    def made(self, weights: Tensor, scores: Scores) -> bool:
        """Tell whether attention weights are the softmax of the product, by a few of the rows.

        The graph does not show an edit in place of the detached scores, a mask for instance.
        """
        if isinstance(weights, FakeTensor):  # no data to look at: believe the graph
            return True
        sample, row = (list(each) for each in zip(*self._at, strict=True))
        found = weights.detach().reshape(-1, *weights.shape[-2:])[sample, row]
        return torch.allclose(found, scores.weights(self._rows, -1)[:, 0], rtol=1e-3, atol=1e-6)


def scores_of(softmax: Any) -> Scores | None:
    """Find the product behind a softmax, or None where more than a scaling lies between.

    A mask or a bias that is added on the way is saved by nobody, so it cannot be added again.
    """
    node: Any = softmax.next_functions[0][0]
    scalings: list[Scaling] = []
    without_data = isinstance(softmax._raw_saved_result.data, FakeTensor)
    for _ in range(_MOST_STEPS):
        name = node.name() if node is not None else ""
        if name == "BmmBackward0":
            return Scores(node._sequence_nr(), tuple(reversed(scalings)))
        scaling = _scaling(node, name, without_data)
        if scaling is not None:
            scalings.append(scaling)
        elif name not in VIEWS:
            return None
        node = node.next_functions[0][0]
    return None


def _scaling(node: Any, name: str, without_data: bool) -> Scaling | None:
    """Return how a node multiplies or divides by a number, or None; without data by any number."""
    operations: dict[str, Callable[[Tensor, float], Tensor]]
    operations = {"MulBackward0": torch.mul, "DivBackward0": torch.div}
    if name not in operations:
        return None
    other = node._raw_saved_other.data
    if not isinstance(other, Tensor) or other.dim():
        return None
    return operations[name], 1.0 if without_data else other.detach().item()


def weights_again(
    factors: Sequence[Unpackable], scores: Scores, shape: torch.Size, dim: int
) -> Tensor:
    """Return the softmax of a product from its stored factors."""
    return scores.weights(torch.bmm(*(each.unpack() for each in factors)).view(shape), dim)


def keep_softmax(capture: "Capture", node: Any, where: Callable[[str], Site]) -> bool:
    """Have attention weights rebuilt from q and k if they can be; tell whether."""
    scores, raw, site = scores_of(node), node._raw_saved_result, where("result")
    product = capture.products.get(scores.product) if scores else None
    tensor = raw.data
    if scores is None or product is None or obstacle(tensor):
        return False
    slots = [slot for slot in (each() for each in product.factors) if slot is not None]
    dim = node._saved_dim if node._saved_dim < tensor.dim() else node._saved_dim - 2**64
    is_last = dim in (-1, tensor.dim() - 1)
    if len(slots) != 2 or not is_last or not product.made(tensor, scores):
        return False
    again = partial(weights_again, slots, scores, tensor.shape, dim)
    if capture.ledger is not None:
        why = "rebuilt from the stored factors of its scores"
        capture.ledger.add(site.labels(), tensor, "rebuilt", why, 0)
    slot = capture.store.add(tensor, Rebuilt(again, tensor.shape, site.path or site.node))
    raw.register_hooks(lambda _: slot, type(slot).unpack)
    return True


# Nodes whose slots belong together: what handles them, and tells whether it did.
AS_A_WHOLE: dict[str, Callable[["Capture", Any, Callable[[str], Site]], bool]] = {
    **{name: partial(keep_fused, kind) for name, kind in FUSED.items()},
    "SoftmaxBackward0": keep_softmax,
    "SafeSoftmaxBackward0": keep_softmax,
}
