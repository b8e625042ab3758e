"""Methods that change how a forward runs, not what a saved tensor is kept as.

Activation checkpointing, offloading and autocast are such. The `forward` of the chosen modules is
replaced by a callable object that holds its module, so that deepcopy and pickle copy the two
together; classes, parameters and `state_dict` keys stay as they are.
"""

from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from torch import nn

from division.method import Method


@dataclass
class Wrapping(Method):
    """Base of the methods that run modules in their own way."""

    masks: bool = False
    _paused: bool = field(default=False, init=False, repr=False)

    @abstractmethod
    def chosen(self, model: nn.Module) -> Iterable[nn.Module]:
        """Return the modules that run in the method's way."""

    @abstractmethod
    def run(self, module: nn.Module, forward: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Run one module, whose stock forward is given."""

    def attach(self, model: nn.Module) -> None:
        """Wrap the chosen modules."""
        for module in self.chosen(model):
            module.forward = _Forward(module, self)

    def detach(self, model: nn.Module) -> None:
        """Give the modules their own forward again."""
        for module in model.modules():
            wrapped = module.__dict__.get("forward")
            if isinstance(wrapped, _Forward) and wrapped.method is self:
                wrapped.unwrap()

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Run the modules as stock for a while."""
        self._paused = True
        try:
            yield
        finally:
            self._paused = False


class _Forward:
    """Stands in for the `forward` of one module."""

    def __init__(self, module: nn.Module, method: Wrapping) -> None:
        self.module = module
        self.method = method
        self.own = module.__dict__.get("forward")  # somebody else's replacement, or None

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if self.method._paused:
            return self.stock(*args, **kwargs)
        return self.method.run(self.module, self.stock, *args, **kwargs)

    def stock(self, *args: Any, **kwargs: Any) -> Any:
        if self.own is not None:
            return self.own(*args, **kwargs)
        return type(self.module).forward(self.module, *args, **kwargs)

    def unwrap(self) -> None:
        del self.module.forward
        if self.own is not None:
            self.module.forward = self.own
