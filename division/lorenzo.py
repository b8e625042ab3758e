"""The Lorenzo predictor on integers: each is predicted from its neighbours before it.

What is left of a plane is q[y, x] - q[y-1, x] - q[y, x-1] + q[y-1, x-1], with zeros outside: the
difference along one dimension after the other. The inverse is the running sum along each.
"""

import torch
from torch import Tensor


def difference(x: Tensor, dims: int) -> Tensor:
    """Return what the prediction leaves, over the last `dims` dimensions."""
    for dim in range(-dims, 0):
        zeros = torch.zeros_like(x.narrow(dim, 0, min(1, x.shape[dim])))
        x = torch.diff(x, dim=dim, prepend=zeros)
    return x


def running_sum(x: Tensor, dims: int) -> Tensor:
    """Undo `difference`, exactly."""
    for dim in range(-dims, 0):
        x = x.cumsum(dim, dtype=x.dtype)
    return x
