"""A budget instead of a bit-width: bits for each site, by what the gradient loses per stored byte.

A site is a saved slot of a module; those that share a copy have their bits together and are one
unit. What is known of the units is a table: their bytes, exactly, and their rounding noise at every
width. Until the gradients of a few batches have been looked at (see calibrate.py), all units have
the largest width with which the table fits; then each gets its own, which stays.
"""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass, field, replace
from functools import cache
from typing import Any

from torch import Tensor

from division.allocation import allocate
from division.choice import Choice, Line
from division.codec import Codec, check_range
from division.codecs import Dual
from division.ledger import bytes_of, size_text
from division.site import Site
from division.units import WIDTHS, Table, Unit

_log = logging.getLogger("division")


def key_of(site: Site) -> str:
    """Name a site; a module that runs twice has the same bits each time."""
    role = "" if site.role == "map" else f" ({site.role})"
    return f"{site.path} {site.node}.{site.slot}{role}".strip()


@cache
def with_bits(codec: Dual, bits: int) -> Dual:
    """Return a codec with other bits."""
    return replace(codec, bits=bits)


@dataclass
class Budget:
    """The bits of every site, as far as they are known.

    Attributes:
        option: "budget" or "ratio", as the user gave it.
        value: of the option.
        batches: whose gradients are looked at before the bits are chosen.
        warmup: training steps before that.
        record: inputs and output gradients of the last forward; calibrate.py fills it.
    """

    option: str
    value: str | int | float
    batches: int
    warmup: int
    table: Table | None = field(default=None, init=False)
    record: dict[str, Any] | None = field(default=None, init=False, repr=False)
    waited: int = field(default=0, init=False)  # training forwards so far
    tried: int = field(default=0, init=False)  # batches that were looked at
    largest: int = field(default=0, init=False)  # elements of the largest input so far
    found: list[list[float]] = field(default_factory=list, init=False, repr=False)
    choice: Choice | None = field(default=None, init=False, repr=False)
    _uniform: int = field(default=0, init=False)
    _bits: dict[str, int] = field(default_factory=dict, init=False, repr=False)

    def __post_init__(self) -> None:
        check_range("calibration", self.batches, 1, 1000)
        check_range("warmup", self.warmup, 0, 1_000_000_000)
        self._limit = bytes_of(self.value) if self.option == "budget" else None
        if self._limit is None:
            _check_ratio(self.value)

    @property
    def is_settled(self) -> bool:
        """Tell whether every site has its bits for good."""
        return self.choice is not None and self.choice.is_final

    def limit(self, table: Table) -> int:
        """Return how many bytes a batch may take."""
        return int(table.stock / float(self.value)) if self._limit is None else self._limit

    def codec(self, site: Site, usual: Codec | None, fixed: bool) -> Codec | None:
        """Return the codec of a site with the bits that it has now."""
        if not isinstance(usual, Dual) or fixed:
            return usual
        if self.table is None:
            raise ValueError(
                f"{self.option}: {site.path or site.node!r} ran before the whole model did, from "
                f"whose forward the bits are chosen; compress the part that is trained"
            )
        # A site that the first batches did not reach has the width that all could have.
        return with_bits(usual, self._bits.get(key_of(site), max(usual.bits, self._uniform)))

    def start(self, table: Table) -> None:
        """Take the largest width with which a batch fits."""
        if self.table is None or table.keys() != self.table.keys():
            self.found.clear()
        self.table, self._uniform = table, self._largest(table)
        self._set(table.uniform(self._uniform), None)

    def note(self, errors: Sequence[float]) -> None:
        """Note the squared error that each unit, at its present bits, adds to a gradient."""
        assert self.table is not None
        pairs = zip(self.table.units, errors, strict=True)
        self.found.append([u.error(1, self._bits[u.keys[0]], error) for u, error in pairs])

    def settle(self, table: Table, errors: Sequence[float]) -> None:
        """Choose for good, from the squared gradient errors of the units at 1 bit."""
        self.table, self._uniform = table, self._largest(table)
        curves = [
            [(unit.size(bits), unit.error(bits, 1, error)) for bits in unit.choices]
            for unit, error in zip(table.units, _shrunk(table, errors), strict=True)
        ]
        places = allocate(curves, self.limit(table) - table.other)
        bits, same = table.uniform(0), table.uniform(self._uniform)
        bits = [least + place for least, place in zip(bits, places, strict=True)]
        if table.error(bits, errors) >= table.error(same, errors):
            bits = same  # nothing to tell the units apart by
        self._set(bits, errors)
        _log.info("%s", self.choice)

    def _largest(self, table: Table) -> int:
        limit = self.limit(table)
        fitting = [bits for bits in WIDTHS if table.size(table.uniform(bits)) <= limit]
        if not fitting:
            raise ValueError(self._too_small(table))
        return max(fitting)

    def _set(self, bits: list[int], errors: Sequence[float] | None) -> None:
        """Give every unit its bits; without errors they are not final."""
        table = self.table
        assert table is not None
        self._bits = {key: b for u, b in zip(table.units, bits, strict=True) for key in u.keys}
        lines = tuple(
            Line(
                *(unit.keys[0], len(unit.keys) - 1, unit.elements, b, unit.size(b)),
                None if errors is None or not unit.has_choice else unit.error(b, 1, errors[i]),
            )
            for i, (unit, b) in enumerate(zip(table.units, bits, strict=True))
        )
        same = table.uniform(self._uniform)
        before = 0.0 if errors is None else table.error(same, errors)
        numbers = (table.other, self.limit(table), table.stock, self._uniform, before)
        self.choice = Choice(f"{self.option}={self.value}", lines, *numbers, errors is not None)

    def _too_small(self, table: Table) -> str:
        least = table.size(table.uniform(1))
        if self._limit is None:
            return f"ratio must be at most {table.stock / least:.2f} here, at 1 bit a code; " + (
                f"got {self.value}"
            )
        return (
            f"budget must be at least {least} bytes ({size_text(least)}) for this batch, at 1 bit "
            f"a code; got {self.value!r}"
        )

    def state_dict(self) -> dict[str, Any]:
        """Return the bits, and what was seen on the way to them."""
        return {
            "given": f"{self.option}={self.value}",
            "table": astuple(self.table) if self.table else None,
            "uniform": self._uniform,
            "bits": dict(self._bits),
            "waited": self.waited,
            "tried": self.tried,
            "largest": self.largest,
            "found": [list(errors) for errors in self.found],
            "choice": astuple(self.choice) if self.choice else None,
            # What a checkpoint cannot hold is left out, and another batch serves.
            "record": self.record if _is_plain(self.record) else None,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take up a saved state."""
        given = f"{self.option}={self.value}"
        if state["given"] != given:
            was = state["given"]
            raise ValueError(f"the saved bits were chosen for {was}, and this run has {given}")
        table = state["table"]
        if table is not None:
            units = (Unit(tuple(k), n, f, tuple(s), tuple(x)) for k, n, f, s, x in table[0])
            table = Table(tuple(units), *table[1:])
        self.table, self._uniform, self._bits = table, state["uniform"], dict(state["bits"])
        self.waited, self.tried = state["waited"], state["tried"]
        self.largest = state["largest"]
        self.found = [list(errors) for errors in state["found"]]
        choice = state["choice"]
        if choice is not None:
            choice = Choice(choice[0], tuple(Line(*line) for line in choice[1]), *choice[2:])
        self.choice, self.record = choice, state["record"]


# Of the error of an average element, that every element is taken to cause at least: what a layer
# does to the gradient of the first batches, perhaps nothing yet, is not what it does for ever.
_LEAST_SHARE = 0.05


def _shrunk(table: Table, errors: Sequence[float]) -> list[float]:
    """Keep the error of every unit away from nothing."""
    elements = sum(unit.elements for unit in table.units)
    least = _LEAST_SHARE * sum(errors) / max(elements, 1)
    return [e + least * u.elements for e, u in zip(errors, table.units, strict=True)]


def _is_plain(tree: object) -> bool:
    """Tell whether something is made of tensors, numbers and text in plain containers."""
    if type(tree) is dict:
        return all(map(_is_plain, (*tree.keys(), *tree.values())))
    if type(tree) in (list, tuple):
        return all(map(_is_plain, tree))  # type: ignore[call-overload]
    return tree is None or type(tree) in (Tensor, bool, int, float, str)


def _check_ratio(value: object) -> None:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not 0 < float(value) < float("inf"):  # type: ignore[arg-type]
        raise ValueError(f"ratio must be a number above zero, such as 14; got {value!r}")


def budget_of(options: Mapping[str, Any]) -> Budget | None:
    """Return the budget that the options of DIVISION give, or None if they give none."""
    given = [name for name in ("budget", "ratio") if options[name] is not None]
    if not given:
        return None
    if len(given) > 1:
        both = " and ".join(f"{name}={options[name]!r}" for name in given)
        raise ValueError(f"budget and ratio say the same in two ways: give one; got {both}")
    for name, usual, why in (
        ("bits", None, "chooses the bits of every site"),
        ("keep", "both", "chooses between widths of both parts"),
        ("rounding", "stochastic", "looks at the noise of stochastic rounding"),
    ):
        if options[name] != usual:
            raise ValueError(f"{given[0]} {why}: leave {name} out; got {name}={options[name]!r}")
    return Budget(given[0], options[given[0]], options["calibration"], options["warmup"])
