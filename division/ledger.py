"""The ledger: every tensor that autograd saves, what it costs stock, what it costs now, why."""

import re
from collections.abc import Iterable
from dataclasses import dataclass, field

from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef

LARGE = 16 * 1024  # bytes from which a tensor that stays in full is worth a line of its own


@dataclass(frozen=True)
class Row:
    """One saved slot of one autograd node."""

    site: str
    module: str
    node: str
    slot: str
    shape: tuple[int, ...]
    dtype: str
    bytes_before: int
    bytes_after: int
    codec: str
    why: str

    @property
    def compressed(self) -> bool:
        """Tell whether the slot went through a codec, as against staying stock."""
        return self.codec != "stock"


@dataclass
class Ledger:
    """Counts unique storages: a tensor that two nodes save is charged to the first that does."""

    kernels: str = ""
    stock_bytes: int | None = None  # where a forward of its own had to count what stock would hold
    rows: list[Row] = field(default_factory=list)
    _stock: dict[int, StorageWeakRef] = field(default_factory=dict, repr=False)
    _kept: dict[int, StorageWeakRef] = field(default_factory=dict, repr=False)
    _owned: frozenset[int] = field(default=frozenset(), repr=False)

    @property
    def original_bytes(self) -> int:
        """What stock PyTorch would hold for the backward pass, weights excluded."""
        if self.stock_bytes is not None:
            return self.stock_bytes
        return sum(row.bytes_before for row in self.rows)

    @property
    def saved_bytes(self) -> int:
        """What is held now."""
        return sum(row.bytes_after for row in self.rows)

    @property
    def ratio(self) -> float:
        """How many times less is held than stock."""
        return self.original_bytes / self.saved_bytes if self.saved_bytes else float("nan")

    def disregard(self, tensors: Iterable[Tensor]) -> None:
        """Leave tensors out of the count: parameters and buffers, which are no activations."""
        self._owned = frozenset(t.untyped_storage()._cdata for t in tensors)

    def owns(self, tensor: Tensor) -> bool:
        """Tell whether a tensor is one of those left out."""
        return tensor.untyped_storage()._cdata in self._owned

    def add(
        self,
        site: tuple[str, str, str, str],
        tensor: Tensor,
        codec: str,
        why: str,
        stored: int | None,
    ) -> None:
        """Note one slot; `stored` is what its packed copy takes, or None where it stays stock."""
        size = tensor.untyped_storage().nbytes()
        before = size if _first_sight(self._stock, tensor) else 0
        after = stored
        if after is None:
            after = size if _first_sight(self._kept, tensor) else 0
        dtype = str(tensor.dtype).removeprefix("torch.")
        self.rows.append(Row(*site, tuple(tensor.shape), dtype, before, after, codec, why))

    def note(self, site: tuple[str, str, str, str], why: str) -> None:
        """Note a node whose saved tensors are somebody else's and cannot be looked at."""
        self.rows.append(Row(*site, (), "", 0, 0, "stock", why))

    def left_in_full(self) -> list[Row]:
        """Return what is still stored in full and large, largest first."""
        rows = [r for r in self.rows if not r.compressed and r.bytes_after >= LARGE]
        return sorted(rows, key=lambda row: -row.bytes_after)

    def __str__(self) -> str:
        return _table(self)


def _first_sight(seen: dict[int, StorageWeakRef], tensor: Tensor) -> bool:
    """Remember a storage by identity; the weak reference keeps its address from being reused."""
    storage = tensor.untyped_storage()
    key = storage._cdata
    if key in seen and not seen[key].expired():
        return False
    seen[key] = StorageWeakRef(storage)
    return True


def size_text(count: float) -> str:
    """Write a number of bytes the way people read it."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1024 or unit == "GiB":
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.2f} {unit}"
        count /= 1024
    raise AssertionError("unreachable")


def parse_size(text: str) -> int:
    """Read a number of bytes as people write it: "24GiB", "1.5 GiB", "512 MB".

    >>> parse_size("1.5 KiB")
    1536
    """
    found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([KMGT]?)(i?)B\s*", text)
    if found is None:
        raise ValueError(f"a size is a number with B, KiB, MiB, GiB, KB, MB or GB; got {text!r}")
    number, unit, binary = found.groups()
    base = 1024 if binary else 1000
    return int(float(number) * base ** ("KMGT".index(unit) + 1 if unit else 0))


def bytes_of(budget: object) -> int:
    """Read the option `budget`: a size as text, or a number of bytes."""
    try:
        found = parse_size(budget) if isinstance(budget, str) else budget
    except ValueError as error:
        raise ValueError(f"budget: {error}") from None
    if not isinstance(found, int) or isinstance(found, bool):
        raise ValueError(f'budget must be a number of bytes, or text as "1.5GiB"; got {budget!r}')
    if found < 1:
        raise ValueError(f"budget must be more than nothing; got {budget!r}")
    return found


def _table(ledger: Ledger, most: int = 40) -> str:
    rows = sorted(ledger.rows, key=lambda row: -max(row.bytes_before, row.bytes_after))
    shown = [r for r in rows[:most] if max(r.bytes_before, r.bytes_after) > 0]
    head = ("site", "module", "saved slot", "shape", "before", "after", "codec", "why")
    lines = [
        (
            r.site,
            r.module,
            f"{r.node}.{r.slot}",
            f"{'x'.join(map(str, r.shape))} {r.dtype}",
            size_text(r.bytes_before),
            size_text(r.bytes_after),
            r.codec,
            r.why,
        )
        for r in shown
    ]
    widths = [max(len(line[i]) for line in (head, *lines)) for i in range(len(head))]
    text = "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in (head, *lines)
    )
    rest = rows[len(shown) :]
    if rest:
        before, after = sum(r.bytes_before for r in rest), sum(r.bytes_after for r in rest)
        text += f"\n... and {len(rest)} smaller: {size_text(before)} -> {size_text(after)}"
    total = f"{size_text(ledger.original_bytes)} -> {size_text(ledger.saved_bytes)}"
    return f"{text}\ntotal: {total} ({ledger.ratio:.2f}x less), kernels: {ledger.kernels or 'none'}"
