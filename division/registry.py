"""Names for codecs and methods, ours and those that other packages offer as entry points."""

import inspect
from collections.abc import Callable
from importlib.metadata import EntryPoints, entry_points
from typing import Generic, TypeVar

T = TypeVar("T")


class Registry(Generic[T]):
    """A table from names to factories; an unknown name or option raises, listing the choices.

    >>> shapes = Registry[str]("shape", "division.doc_shapes")
    >>> shapes.register("square", lambda size=1: f"square of {size}")
    >>> shapes.get("square", size=3)
    'square of 3'
    >>> shapes.get("cube")
    Traceback (most recent call last):
        ...
    ValueError: unknown shape 'cube'; choose one of: square
    """

    def __init__(self, kind: str, group: str) -> None:
        self._kind = kind
        self._group = group
        self._factories: dict[str, Callable[..., T]] = {}

    def register(self, name: str, factory: Callable[..., T]) -> None:
        """Add a factory; a name can be taken only once."""
        if name in self._factories:
            raise ValueError(f"{self._kind} {name!r} is registered already")
        self._factories[name] = factory

    def names(self) -> list[str]:
        """Return every name, sorted; installed packages' entry points included."""
        return sorted({*self._factories, *(point.name for point in self._entry_points())})

    def get(self, name: str, **options: object) -> T:
        """Build the named object with its options."""
        factory = self._find(name)
        known = [p for p in inspect.signature(factory).parameters if p != "self"]
        unknown = [option for option in options if option not in known]
        if unknown:
            listed = ", ".join(known) or "none"
            raise ValueError(
                f"{self._kind} {name!r} has no option {unknown[0]!r}; its options: {listed}"
            )
        return factory(**options)

    def _find(self, name: str) -> Callable[..., T]:
        if name in self._factories:
            return self._factories[name]
        for point in self._entry_points():
            if point.name == name:
                factory: Callable[..., T] = point.load()
                return factory
        raise ValueError(f"unknown {self._kind} {name!r}; choose one of: {', '.join(self.names())}")

    def _entry_points(self) -> EntryPoints:
        return entry_points(group=self._group)
