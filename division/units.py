"""What one batch stores, at every width: the table that a budget is spent by."""

from collections.abc import Sequence
from dataclasses import dataclass

WIDTHS = tuple(range(1, 9))


@dataclass(frozen=True)
class Unit:
    """Sites with common bits.

    Attributes:
        keys: of the sites; the first is the one that stores the copy.
        elements: how many are stored.
        floor: the fewest bits that it may have (`fine_bits`, for data and vectors).
        sizes: bytes at each width.
        noise: squared error of the stored elements at each width.
    """

    keys: tuple[str, ...]
    elements: int
    floor: int
    sizes: tuple[int, ...]
    noise: tuple[float, ...]

    def size(self, bits: int) -> int:
        """Return its bytes at a width, or at the floor if that is more."""
        return self.sizes[max(bits, self.floor) - 1]

    def error(self, bits: int, known: int, error: float) -> float:
        """Return the squared gradient error at a width, given that at another."""
        noise = self.noise[known - 1]
        return error * self.noise[bits - 1] / noise if noise else 0.0

    @property
    def choices(self) -> tuple[int, ...]:
        """The widths that it may have."""
        return tuple(range(self.floor, WIDTHS[-1] + 1))

    @property
    def has_choice(self) -> bool:
        """Tell whether there are several."""
        return self.floor < WIDTHS[-1]


@dataclass(frozen=True)
class Table:
    """What one batch stores.

    Attributes:
        units: whose bits can be chosen.
        other: bytes of everything else: masks, indices, statistics, sites with bits of their own.
        stock: bytes that stock PyTorch would hold.
    """

    units: tuple[Unit, ...]
    other: int
    stock: int

    def size(self, bits: Sequence[int]) -> int:
        """Return the bytes of all, given the bits of each unit."""
        return self.other + sum(u.size(b) for u, b in zip(self.units, bits, strict=True))

    def uniform(self, bits: int) -> list[int]:
        """Return the bits of each unit if all have the same, but for floors."""
        return [max(bits, unit.floor) for unit in self.units]

    def error(self, bits: Sequence[int], errors: Sequence[float]) -> float:
        """Return the squared gradient error of all, given that of each unit at 1 bit."""
        parts = zip(self.units, bits, errors, strict=True)
        return sum(unit.error(b, 1, error) for unit, b, error in parts)

    def keys(self) -> tuple[tuple[str, ...], ...]:
        """Return the names of the units."""
        return tuple(unit.keys for unit in self.units)
