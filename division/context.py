"""Capture without a model: around any code, and for what methods keep by their own means."""

from collections.abc import Iterator
from contextlib import contextmanager

from torch import Tensor

from division.capture import Capture, running
from division.ledger import Ledger
from division.method import Method, resolve
from division.recognize import is_weight
from division.site import Site


def account(
    tensor: Tensor, kept_by: str, why: str, codec: str = "stock", stored: int | None = None
) -> None:
    """Note a tensor that a method keeps by its own means, if a ledger is being written.

    `stored` is what its copy takes, or None where the tensor itself is kept.
    """
    seeing = running()
    if seeing is None or seeing.ledger is None:
        return
    path, module = seeing.where() or ("", None)
    if not (is_weight(tensor) or seeing.ledger.owns(tensor)):
        site = Site(path, module, kept_by, "tensor")
        seeing.ledger.add(site.labels(), tensor, codec, why, stored)


@contextmanager
def capture(method: str | Method = "division", **options: object) -> Iterator[Ledger]:
    """Compress whatever autograd saves inside the context; yields the ledger.

    A compressed model inside keeps its own method, and its tensors are not in this ledger.

    >>> import torch
    >>> net = torch.nn.Conv2d(3, 8, 3)
    >>> with capture("division", bits=2) as ledger:
    ...     loss = net(torch.randn(4, 3, 32, 32)).square().mean()
    >>> loss.backward()
    >>> ledger.ratio > 1
    True
    """
    ledger, resolved = Ledger(), resolve(method, **options)
    if getattr(resolved, "overrides", None):
        raise ValueError("overrides name modules, and capture has none; use compress(model, ...)")
    if not resolved.is_settled:
        raise ValueError("a budget is shared out over a model's forwards; use compress(model, ...)")
    with Capture(resolved, ledger):
        yield ledger
