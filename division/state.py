"""Look without touching: run a forward and put back what it changed."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn


@contextmanager
def unchanged(model: nn.Module) -> Iterator[None]:
    """Put a model's buffers and the global random generators back afterwards.

    The same buffer tensors come back with their values; buffers that the forward replaced or added
    are dropped.
    """
    before = [
        (module, dict(module._buffers), {k: _copy(b) for k, b in module._buffers.items()})
        for module in model.modules()
    ]
    with torch.random.fork_rng():
        try:
            yield
        finally:
            for module, buffers, values in before:
                module._buffers.clear()
                module._buffers.update(buffers)
                for name, value in values.items():
                    buffer = buffers[name]
                    if buffer is not None and value is not None:
                        buffer.data.copy_(value)


def _copy(buffer: torch.Tensor | None) -> torch.Tensor | None:
    return None if buffer is None else buffer.detach().clone()
