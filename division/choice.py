"""The bits that a budget was spent on, as a table."""

import math
from dataclasses import dataclass

from division.ledger import size_text


@dataclass(frozen=True)
class Line:
    """One unit: a site that stores a copy, and those that share it.

    Attributes:
        site: the one that stores.
        shared: how many others read the copy.
        elements: how many are stored.
        bits: bits a code.
        nbytes: of the copy.
        error: expected squared error that it adds to the gradient, relative; None if not measured.
    """

    site: str
    shared: int
    elements: int
    bits: int
    nbytes: int
    error: float | None


@dataclass(frozen=True)
class Choice:
    """Bits for every unit; `str` is a table.

    Attributes:
        given: the option that was given, as text.
        lines: the units.
        other: bytes of what has no bits to choose.
        limit: bytes that there are.
        stock: bytes that stock PyTorch would hold.
        uniform: the largest width that all units could have.
        before: relative squared error at that width.
        is_final: whether gradients were looked at.
    """

    given: str
    lines: tuple[Line, ...]
    other: int
    limit: int
    stock: int
    uniform: int
    before: float
    is_final: bool

    @property
    def nbytes(self) -> int:
        """Bytes of a batch like the first ones."""
        return self.other + sum(line.nbytes for line in self.lines)

    def __str__(self) -> str:
        head = ("site", "elements", "bits", "bytes", "bits an element", "gradient error")
        cells = [head, *map(_cells, self.lines)]
        cells.append(("everything else", "", "", size_text(self.other), "", ""))
        widths = [max(len(line[i]) for line in cells) for i in range(len(head))]
        table = (
            "  ".join(
                [line[0].ljust(widths[0]), *map(str.rjust, line[1:], widths[1:])],
            ).rstrip()
            for line in cells
        )
        times = self.stock / self.nbytes if self.nbytes else math.nan
        last = (
            f"{self.given}: {size_text(self.nbytes)} of {size_text(self.limit)}, {times:.2f}x less"
        )
        if self.is_final:
            after = math.sqrt(sum(line.error or 0.0 for line in self.lines))
            last += (
                f"; gradient error {after:.4f}, against {math.sqrt(self.before):.4f} with "
                f"bits={self.uniform} everywhere"
            )
        else:
            last += f"; bits={self.uniform} everywhere, until gradients have been looked at"
        return "\n".join([*table, last])


def _cells(line: Line) -> tuple[str, ...]:
    site = f"{line.site}, shared by {line.shared} more" if line.shared else line.site
    error = "" if line.error is None else f"{math.sqrt(line.error):.5f}"
    density = f"{8 * line.nbytes / line.elements:.2f}" if line.elements else ""
    return site, str(line.elements), str(line.bits), size_text(line.nbytes), density, error
