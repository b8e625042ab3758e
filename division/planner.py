"""plan(build_model, input_shape, methods, budget): what fits, with no GPU and no data.

The real model takes a whole training step under the real method, on tensors without memory. So
saved bytes are those that `measure` counts, and the peak has weights, gradients, optimizer state
and whatever a step needs for a moment (see walk.py for what is not seen).
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

import torch
from torch import nn

from division import codecs
from division.codec import check_choice
from division.dryrun import OPTIMIZERS, DryRun, Optimizer
from division.forecast import Forecast, about, largest
from division.ledger import Ledger, bytes_of, size_text
from division.method import Division, Method, Vanilla, names, resolve
from division.model import check_trainable
from division.walk import Loss, Walk

Spec = tuple[str, str, Mapping[str, Any]]  # label, name of the method, its options
RATIO = "assumed_ratio"  # the option of codecs whose sizes depend on the data


@dataclass(frozen=True)
class Entry:
    """The plan of one method; numbers are None where the note says why there are none.

    Attributes:
        label: its name in the plan.
        method: name of the method.
        options: of the method.
        note: what a reader has to know.
        ledger: every tensor that is saved for backward.
        step: what a training step holds.
        forecast: the same at any batch, not counted; None without a budget, or where the method's
            own budget refuses larger batches.
        max_batch: the largest batch within the budget, counted; 0 if none fits.
    """

    label: str
    method: str
    options: Mapping[str, Any]
    note: str = ""
    ledger: Ledger | None = None
    step: Walk | None = None
    forecast: Forecast | None = None
    max_batch: int | None = None

    @property
    def saved_bytes(self) -> int | None:
        """What autograd holds for the backward pass, as `measure` counts it."""
        return self.ledger.saved_bytes if self.ledger else None

    @property
    def peak_bytes(self) -> int | None:
        """The most that is alive at any time of a training step, weights included."""
        return self.step.peak if self.step else None


@dataclass(frozen=True)
class Plan(Mapping[str, Entry]):
    """Entries by label; `str` is a table."""

    title: str
    budget: int | None
    entries: Mapping[str, Entry] = field(repr=False)

    def __getitem__(self, label: str) -> Entry:
        if label not in self.entries:
            raise KeyError(f"{label!r} is not in the plan, which has {', '.join(self.entries)}")
        return self.entries[label]

    def __iter__(self) -> Iterator[str]:
        return iter(self.entries)

    def __len__(self) -> int:
        return len(self.entries)

    def table(self) -> list[tuple[str, ...]]:
        """Return the cells of the table, the headings first."""
        limit = f"largest batch in {size_text(self.budget)}" if self.budget else ""
        heads = ("method", "saved", "times less", "peak of a step", "peak in", limit, "note")
        return [heads, *map(_cells, self.values())]

    def __str__(self) -> str:
        lines = self.table()
        shown = [i for i in range(len(lines[0])) if lines[0][i] and any(x[i] for x in lines[1:])]
        widths = [max(len(line[i]) for line in lines) for i in shown]
        text = (
            "  ".join(line[i].ljust(width) for i, width in zip(shown, widths, strict=True)).rstrip()
            for line in lines
        )
        return "\n".join([self.title, *text])


def plan(
    build_model: Callable[[], nn.Module],
    input_shape: Sequence[int],
    methods: Sequence[str | Spec] | None = None,
    budget: str | int | None = None,
    *,
    dtype: torch.dtype = torch.float32,
    input_dtype: torch.dtype | None = None,
    optimizer: str | Optimizer = "momentum",
    loss: Loss | None = None,
) -> Plan:
    """Say what a training step needs under each method, and the largest batch that fits.

    Args:
        build_model: makes the model.
        input_shape: of the model's input, the batch first.
        methods: names, or (label, name, options); every registered method if none are given.
        budget: "24GiB", or bytes; without one no largest batch is looked for.
        dtype: of weights and input.
        input_dtype: of the input if it is another, such as torch.int64 for tokens.
        optimizer: "sgd", "momentum", "adam", or a function from parameters to an optimizer.
        loss: from the model's output and labels (zeros) to a number; if none is given, the
            cross-entropy of an output (N, classes), or the mean of any other.

    >>> net = lambda: nn.Sequential(nn.Conv2d(3, 16, 3), nn.ReLU(), nn.Conv2d(16, 8, 3))
    >>> found = plan(net, (8, 3, 32, 32), ["vanilla", "division"], budget="64MiB")
    >>> found["division"].saved_bytes < found["vanilla"].saved_bytes / 3
    True
    >>> found["division"].max_batch > found["vanilla"].max_batch
    True
    """
    shape, limit = _shape(input_shape), None if budget is None else bytes_of(budget)
    specs = _specs(methods)
    if not dtype.is_floating_point:
        raise ValueError(f"dtype must be a floating type, such as torch.float32; got {dtype}")
    name = "an optimizer of its own"
    if isinstance(optimizer, str):
        check_choice("optimizer", optimizer, tuple(OPTIMIZERS))
        name, optimizer = optimizer, OPTIMIZERS[optimizer]
    model = _built(build_model)
    run = DryRun(model, shape[1:], dtype, input_dtype, optimizer, loss)
    run.check(shape[0])
    size = "x".join(map(str, shape[1:]))
    title = f"{type(model).__name__}, batch {shape[0]} of {size}, {str(dtype)[6:]}, {name}"
    entries = {entry.label: _entry(run, entry, way, shape[0], limit) for entry, way in specs}
    return Plan(title, limit, entries)


def _entry(run: DryRun, entry: Entry, method: Method, batch: int, limit: int | None) -> Entry:
    """Fill in the numbers of one method."""
    with ExitStack() as compressed:
        try:
            compressed.enter_context(run.under(method))
            ledger = run.measure(batch)
        except ValueError as error:  # a model without blocks to checkpoint, for instance
            return replace(entry, note=f"not possible here: {error}")
        ratio = _ratio(entry.options)
        by_data = sorted(filter(_is_sized_by_data, {row.codec for row in ledger.rows}))
        if by_data and ratio is None:
            note = (
                f"the sizes of codec {by_data[0]!r} depend on the data: give {RATIO}, how many "
                "times smaller than fp32 its rows of division.measure(model, batch) are"
            )
            return replace(entry, note=note)
        counted = cache(run.walk)
        step = counted(batch)
        note = f"sizes depend on the data: {RATIO}={ratio:g}" if by_data else ""
        note = note or _is_not_settled(method) or _saves_nothing(method, ledger)
        entry = replace(entry, note=note, ledger=ledger, step=step)
        if limit is None:
            return entry
        forecast, guess = None, batch
        with suppress(ValueError):  # a batch for which the method's own budget is too small
            walks = sorted((step, counted(about(step, limit))), key=lambda each: each.batch)
            forecast = Forecast(*walks)
            guess = forecast.largest(limit)

        def peak(size: int) -> int:
            try:
                return counted(size).peak
            except ValueError:
                return limit + 1

        return replace(entry, forecast=forecast, max_batch=largest(peak, limit, guess))


def _cells(entry: Entry) -> tuple[str, ...]:
    if entry.ledger is None or entry.step is None:
        return (entry.label, "", "", "", "", "", entry.note)
    return (
        entry.label,
        size_text(entry.ledger.saved_bytes),
        f"{entry.ledger.ratio:.2f}x",
        size_text(entry.step.peak),
        entry.step.peak_in,
        "" if entry.max_batch is None else str(entry.max_batch),
        entry.note,
    )


def _ratio(options: Mapping[str, Any]) -> float | None:
    """Return the ratio that the options give, a boundary codec's options included."""
    if RATIO in options:
        return float(options[RATIO])
    found = (_ratio(value) for value in options.values() if isinstance(value, Mapping))
    return next((ratio for ratio in found if ratio is not None), None)


def _is_sized_by_data(codec: str) -> bool:
    return codec in codecs.names() and codecs.get(codec).sized_by_data


def _is_not_settled(method: Method) -> str:
    """Say what was planned where sites get their bits only from gradients."""
    if method.is_settled or not isinstance(method, Division) or method.choice is None:
        return ""
    return f"with bits={method.choice.uniform} everywhere: only gradients tell who needs more"


def _saves_nothing(method: Method, ledger: Ledger) -> str:
    """Say why a method changes nothing, where that is so."""
    if isinstance(method, Vanilla) or ledger.saved_bytes < ledger.original_bytes:
        return ""
    reasons = [row.why for row in ledger.left_in_full()] or [ledger.rows[0].why]
    return f"saves nothing: {max(set(reasons), key=reasons.count)}"


def _built(build_model: Callable[[], nn.Module]) -> nn.Module:
    model = None if isinstance(build_model, nn.Module) else build_model()
    if not isinstance(model, nn.Module):
        got = type(build_model if model is None else model).__name__
        raise TypeError(f"build_model must be a function that returns a torch.nn.Module; got {got}")
    check_trainable(model)
    return model


def _shape(given: Sequence[int]) -> tuple[int, ...]:
    shape = tuple(given)
    if len(shape) < 2 or not all(isinstance(size, int) and size >= 1 for size in shape):
        raise ValueError(
            f"input_shape must be whole numbers >= 1, the batch first, as (64, 3, 224, 224); "
            f"got {given!r}"
        )
    return shape


def _specs(methods: Sequence[str | Spec] | None) -> list[tuple[Entry, Method]]:
    """Build every method before any is counted, so that a wrong one is told at once."""
    if isinstance(methods, str):
        raise TypeError(f"methods must be a list of names or specs; got {methods!r}")
    found: dict[str, tuple[Entry, Method]] = {}
    for spec in names() if methods is None else methods:
        label, name, options = (spec, spec, {}) if isinstance(spec, str) else spec
        if label in found:
            raise ValueError(f"methods: {label!r} is there twice; use (label, name, options)")
        found[label] = Entry(label, name, dict(options)), resolve(name, **options)
    if not found:
        raise ValueError("methods is empty; leave it out for every method")
    return list(found.values())
