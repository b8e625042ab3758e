"""Forwards that are run to learn from: what a batch stores at every width, and what noise does.

None of them leaves a trace: buffers, random generators and `.grad` stay as they are.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, ClassVar
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._pytree import tree_leaves

from division.budget import key_of, with_bits
from division.capture import Capture
from division.codec import Codec, Packed, memory_format_of
from division.codecs import Dual
from division.ledger import Ledger
from division.method import Division, Method
from division.site import Site
from division.state import unchanged
from division.units import WIDTHS, Table, Unit

Where = Callable[[], tuple[str, nn.Module | None] | None]
Note = tuple[list[int], list[float]]  # bytes and squared error of one tensor, at every width
_NO_BYTES, _NO_NOISE = (0,) * len(WIDTHS), (0.0,) * len(WIDTHS)  # of who only reads
_ANEW = 1 << 31  # a seed with this bit is none that the other forwards use


@dataclass(frozen=True)
class Forward:
    """One call of a model, with its arguments, to be made again."""

    model: nn.Module
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    where: Where

    def run(self, method: Method, ledger: Ledger | None = None) -> list[Tensor]:
        """Call the model under a method and return the outputs that have a gradient."""
        with Capture(method, ledger, self.where):
            output = self.model.forward(*self.args, **self.kwargs)
        return with_gradient(output)


def with_gradient(tree: Any) -> list[Tensor]:
    """Return the tensors of an output, however nested, that a gradient can arrive at."""
    return [t for t in tree_leaves(tree) if isinstance(t, Tensor) and t.requires_grad]


@dataclass(frozen=True)
class Sizing(Codec):
    """Packs at the fewest bits, and notes what every width would have made of the tensor."""

    codec: Dual
    notes: list[Note] = field(compare=False)
    name: ClassVar[str] = "division"
    uses_maps: ClassVar[bool] = True

    def takes_as_it_lies(self, x: Tensor, channel: int) -> bool:
        """Take what the codec takes."""
        return self.codec.takes_as_it_lies(x, channel)

    def _pack(self, x: Tensor, seed: int, channel: int) -> dict[str, Tensor]:
        layout = memory_format_of(x) if channel == 1 else torch.contiguous_format
        sizes, noise = [], []
        kept: dict[str, Tensor] = {}
        for bits in WIDTHS:
            codec = with_bits(self.codec, bits)
            tensors = codec._pack(x, seed, channel)
            packed = Packed(tensors, x.shape, x.dtype, layout, channel)
            sizes.append(packed.nbytes)
            noise.append(_squared_error(codec, packed, x))
            kept = tensors if bits == self.codec.bits else kept
        self.notes.append((sizes, noise))
        return kept

    def _unpack(self, packed: Packed) -> Tensor:
        return self.codec._unpack(packed)


def _squared_error(codec: Codec, packed: Packed, x: Tensor) -> float:
    if isinstance(x, FakeTensor):  # no data: the law of a uniform grid
        return 1.0 / (2.0**codec.bits - 1.0) ** 2 if isinstance(codec, Dual) else 0.0
    error = codec.decompress(packed).float().sub_(x)
    return float(error.square_().nan_to_num_(0.0, 0.0, 0.0).sum(dtype=torch.float64))


def _common(method: Method) -> dict[str, Any]:
    """Return the options that all methods have."""
    return {each.name: getattr(method, each.name) for each in fields(Method) if each.init}


class _Tracing(Method):
    """Does as DIVISION at the fewest bits, and finds the units."""

    name: ClassVar[str] = "division"

    def __init__(self, method: Division) -> None:
        super().__init__(**_common(method))
        self._method = method
        self._notes: list[Note] = []
        self._owners: WeakKeyDictionary[Packed, str] = WeakKeyDictionary()
        self._united: dict[str, str] = {}  # from a key to one of its unit that came before
        self._units: dict[str, Unit] = {}

    def codec(self, site: Site) -> Codec | None:
        """Return a codec that notes all sizes, where there is a choice."""
        usual = self._method.usual(site)
        chooses = isinstance(usual, Dual) and not self._method.is_fixed(site)
        return Sizing(usual, self._notes) if chooses else usual  # type: ignore[arg-type]

    def stored(self, site: Site, node: Any, tensor: Tensor, packed: Packed, shared: bool) -> None:
        """Count a copy to its unit, or a reader of one."""
        usual = self.codec(site)
        if not isinstance(usual, Sizing):
            return
        key = key_of(site)
        if shared:
            first, second = self._first(self._owners[packed]), self._first(key)
            if first != second:
                self._united[second] = first
            return
        self._owners[packed] = key
        sizes, noise = self._notes.pop()
        beside = packed.nbytes - sizes[usual.codec.bits - 1]  # class tokens, in 16 bits
        new = Unit(
            (key,), tensor.numel(), usual.codec.bits, tuple(s + beside for s in sizes), tuple(noise)
        )
        self._united.setdefault(key, key)
        self._units[key] = _joined(self._units[key], new) if key in self._units else new

    def units(self) -> tuple[Unit, ...]:
        """Return the units that were found, in the order of the forward."""
        found: dict[str, Unit] = {}
        for key in self._united:
            first = self._first(key)
            new = self._units.get(key) or Unit((key,), 0, 1, _NO_BYTES, _NO_NOISE)
            found[first] = _joined(found[first], new) if first in found else new
        return tuple(found.values())

    def _first(self, key: str) -> str:
        while self._united.setdefault(key, key) != key:
            key = self._united[key]
        return key


def _joined(one: Unit, other: Unit) -> Unit:
    """Return the unit of two that have their bits together."""
    return Unit(
        tuple(dict.fromkeys((*one.keys, *other.keys))),
        one.elements + other.elements,
        max(one.floor, other.floor),
        tuple(map(sum, zip(one.sizes, other.sizes, strict=True))),
        tuple(map(sum, zip(one.noise, other.noise, strict=True))),
    )


def trace(forward: Forward, method: Division) -> Table:
    """Run a forward at the fewest bits and return what it stores at every width."""
    tracing, ledger = _Tracing(method), Ledger()
    ledger.disregard([*forward.model.parameters(), *forward.model.buffers()])
    with unchanged(forward.model):
        forward.run(tracing, ledger)
    units = tracing.units()
    table = Table(units, 0, ledger.original_bytes)
    return replace(table, other=ledger.saved_bytes - table.size(table.uniform(1)))


class _Replaying(Method):
    """Does as DIVISION with its present bits; the noise of some sites can be drawn anew."""

    name: ClassVar[str] = "division"

    def __init__(self, method: Division, anew: Sequence[str]) -> None:
        super().__init__(**_common(method))
        self._method = method
        self._anew = frozenset(anew)
        self._is_anew = False

    def codec(self, site: Site) -> Codec | None:
        """Return the codec that the site has now."""
        self._is_anew = key_of(site) in self._anew
        return self._method.codec(site)

    def next_seed(self) -> int:
        """Return the seed of the tensor that a codec was just asked for."""
        seed = super().next_seed()
        return seed ^ _ANEW if self._is_anew else seed


def gradient_errors(
    forward: Forward, method: Division, units: Sequence[Unit], arrived: Sequence[Tensor | None]
) -> list[float] | None:
    """Return the squared error, relative, that the rounding of each unit adds to the gradient.

    The noise of one unit is drawn anew, all else stays as it was: the gradient moves by two
    independent errors of this unit, and by nothing else.

    Args:
        forward: of a batch.
        method: with its present bits.
        units: to look at; one whose bits are given has no error here.
        arrived: the gradients that arrived at the outputs.

    Returns:
        None if there is no finite gradient.
    """
    weights = [p for p in forward.model.parameters() if p.requires_grad]

    def gradient(anew: Sequence[str]) -> list[Tensor | None] | None:
        with unchanged(forward.model):  # and so the same dropout each time
            outputs = forward.run(_Replaying(method, anew))
            pairs = [(o, a) for o, a in zip(outputs, arrived, strict=False) if a is not None]
            if len(outputs) != len(arrived) or any(o.shape != a.shape for o, a in pairs):
                return None  # the model has another output than it had
            starts, given = zip(*pairs, strict=True)
            return list(torch.autograd.grad(starts, weights, given, allow_unused=True))

    exact = gradient(())
    total = 0.0 if exact is None else _square(exact)
    if exact is None or not 0.0 < total < float("inf"):
        return None
    errors = []
    for unit in units:
        moved = gradient(unit.keys) if unit.has_choice else exact
        assert moved is not None
        pairs = zip(moved, exact, strict=True)
        apart = [m - e for m, e in pairs if m is not None and e is not None]
        errors.append(_square(apart) / (2.0 * total))
    return errors


def _square(tensors: Sequence[Tensor | None]) -> float:
    parts = [t.double().square().sum() for t in tensors if t is not None]
    return float(torch.stack([part.to(parts[0].device) for part in parts]).sum()) if parts else 0.0
