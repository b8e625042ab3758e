"""A model without memory: real layers and real methods on tensors that have a shape and no data.

The model is built as usual, since some look at values while they are built, and then each of its
tensors is replaced by a fake one. A method's kernels know the sizes of what they return without
computing it.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn import functional as F

from division.ledger import Ledger
from division.method import Method
from division.model import compress, measure, restore
from division.walk import Loss, Walk, ready, tensors_of, walk

Optimizer = Callable[[Sequence[nn.Parameter]], torch.optim.Optimizer]
# All parameters at once (foreach), as torch does on a GPU; for Adam that takes a copy of them.
OPTIMIZERS: dict[str, Optimizer] = {
    "sgd": lambda parameters: torch.optim.SGD(parameters, 0.1, foreach=True),
    "momentum": lambda parameters: torch.optim.SGD(parameters, 0.1, momentum=0.9, foreach=True),
    "adam": lambda parameters: torch.optim.Adam(parameters, foreach=True),
}


class DryRun:
    """Takes training steps of one model without data.

    Args:
        model: whose tensors are replaced, in place.
        sample: shape of one input, without the batch.
        dtype: of weights and input.
        input_dtype: of the input, if it is another.
        optimizer: makes the optimizer from the parameters.
        loss: see `walk`.
    """

    def __init__(
        self,
        model: nn.Module,
        sample: tuple[int, ...],
        dtype: torch.dtype,
        input_dtype: torch.dtype | None,
        optimizer: Optimizer,
        loss: Loss | None,
    ) -> None:
        self._mode = FakeTensorMode(allow_non_fake_inputs=True)
        self._model = model.train()
        self._sample, self._input_dtype = sample, input_dtype or dtype
        self._loss = loss or usual_loss
        with self._mode:
            _empty(model, dtype)
            self._optimizer = ready(optimizer([p for p in model.parameters() if p.requires_grad]))

    @contextmanager
    def under(self, method: Method) -> Iterator[None]:
        """Have the model compressed by a method for a while."""
        with self._mode:
            compress(self._model, method)
        try:
            yield
        finally:
            restore(self._model)

    def check(self, batch: int) -> None:
        """Raise one ValueError for whatever the stock model has against its input."""
        try:
            self.measure(batch)
        except (RuntimeError, ValueError, TypeError, AssertionError, IndexError) as error:
            reason = str(error).strip().partition("\n")[0] or type(error).__name__
            name, shape = type(self._model).__name__, (batch, *self._sample)
            raise ValueError(f"{name} cannot run on an input of shape {shape}: {reason}") from error

    def measure(self, batch: int) -> Ledger:
        """Return the ledger of a forward."""
        with self._mode:
            return measure(self._model, self._input(batch))

    def walk(self, batch: int) -> Walk:
        """Return what a training step holds."""
        with self._mode:
            return walk(self._model, [self._input(batch)], self._loss, self._optimizer)

    def _input(self, batch: int) -> Tensor:
        return torch.empty((batch, *self._sample), dtype=self._input_dtype)


def _empty(model: nn.Module, dtype: torch.dtype) -> None:
    """Replace a model's tensors by empty ones of the mode that is on; ties stay tied."""
    replaced: dict[int, Tensor] = {}
    kept = []  # alive, so that no two of the originals have the same id
    for module in model.modules():
        tables: tuple[dict[str, Any], ...] = (module._parameters, module._buffers)
        for owned in tables:
            for name, tensor in owned.items():
                if tensor is None:
                    continue
                if id(tensor) not in replaced:
                    kept.append(tensor)
                    replaced[id(tensor)] = _like(tensor, dtype)
                owned[name] = replaced[id(tensor)]


def _like(tensor: Tensor, dtype: torch.dtype) -> Tensor:
    kind = dtype if tensor.is_floating_point() else tensor.dtype
    empty = torch.empty_strided(tensor.shape, tensor.stride(), dtype=kind, device="cpu")
    return nn.Parameter(empty, tensor.requires_grad) if isinstance(tensor, nn.Parameter) else empty


def usual_loss(output: object, labels: Tensor) -> Tensor:
    """Return the cross-entropy of a classifier's output, or the mean of whatever else it is."""
    if isinstance(output, Tensor) and output.dim() == 2:
        return F.cross_entropy(output, labels)
    found = [t for t in tensors_of(output) if t.is_floating_point() and t.requires_grad]
    if not found:
        raise ValueError(
            f"the model returns {type(output).__name__} with no tensor to train on; give a loss: "
            "a function of the output and of labels"
        )
    return torch.stack([t.float().mean() for t in found]).sum()
