"""Gradient norms of single samples, remembered from one epoch to the next."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

_KEPT = 0.5  # of what was known of a sample; the rest comes from its new gradient
_TINY = 1e-9


class SampleNorms:
    """For each layer, a running average of |dL/dy_i|**2 for every sample i of the training set."""

    def __init__(self, samples: int) -> None:
        self._samples = samples
        self._averages: dict[str, Tensor] = {}
        self._next: Tensor | None = None
        self.current: Tensor | None = None

    def set_next(self, indices: Sequence[int] | Tensor) -> None:
        """Name the samples of the batch to come."""
        found = torch.as_tensor(indices).cpu()
        if found.dim() != 1 or found.is_floating_point() or found.is_complex() or not len(found):
            raise ValueError(
                f"indices must be a list of whole numbers, one for each sample of the batch; "
                f"got {found.dtype} of shape {tuple(found.shape)}"
            )
        low, high = int(found.min()), int(found.max())
        if low < 0 or high >= self._samples:
            raise ValueError(
                f"indices must be from 0 to {self._samples - 1} (samples={self._samples}); "
                f"got {low} to {high}"
            )
        self._next = found.long()

    def begin(self) -> None:
        """Start the forward of a batch; each needs indices of its own."""
        if self._next is None:
            raise ValueError(
                f"samples={self._samples} needs set_indices(indices) before each training forward"
            )
        self.current, self._next = self._next, None

    def check_batch(self, rows: int, is_first: bool, kind: str) -> None:
        """Raise ValueError unless the first layer's rows are those of the samples named.

        The rows of a linear layer may be tokens, several a sample. Later layers may have rows of
        another kind (regions of interest); they are told apart by their ranges alone.
        """
        named = len(self.current) if self.current is not None else 0
        if is_first and (rows % named if kind == "linear" else rows != named):
            raise ValueError(f"set_indices named {named} samples for a batch of {rows}")

    def weights(self, layer: str) -> tuple[float, ...] | None:
        """Return what is known of the batch's samples; who is new gets the mean of the others."""
        if layer not in self._averages or self.current is None:
            return None
        known = self._averages[layer][self.current]
        seen = known[known > 0]
        if not len(seen):
            return None
        return tuple((torch.where(known > 0, known, seen.mean()) + _TINY).tolist())

    def update(self, layer: str, indices: Tensor, norms: Tensor) -> Tensor:
        """Bring in new norms and return the averages of these samples."""
        averages = self._averages.setdefault(layer, torch.zeros(self._samples))
        averages[indices] = _KEPT * averages[indices] + (1 - _KEPT) * norms.cpu().float()
        return averages[indices]

    def state_dict(self) -> dict[str, Any]:
        """Return the averages, and the indices that were named but not used yet."""
        averages = {layer: average.clone() for layer, average in self._averages.items()}
        return {"averages": averages, "next": self._next}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take up a saved state."""
        wrong = [len(a) for a in state["averages"].values() if len(a) != self._samples]
        if wrong:
            raise ValueError(f"samples is {self._samples}, but the saved state is for {wrong[0]}")
        self._averages = {layer: a.clone() for layer, a in state["averages"].items()}
        self._next = state["next"]
