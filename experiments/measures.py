"""What of ours stands beside a claim, from rows: `activations resnet50 division 256`."""

import functools
import math
import statistics
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from experiments import equal, grid, record
from experiments.record import Row
from experiments.tables import core, table1, table4

GIB = 2**30
# The settings for which the design has bars; other measurements are rows, but in no table.
STEP = {"network.name": "resnet18", "image": 32, "batch": 64, "peak_batch": 256}
SIZES = {"batch": 256, "image": 224}
PROFILES = ("paper", "cifar", "quick")  # the largest scale first
SCALES = ("paper", "reduced", "quick")


@dataclass(frozen=True)
class Measured:
    """A value of ours, and how far it can be trusted.

    Attributes:
        value: in the claim's unit.
        scale: of the rows.
        of: what it was measured on.
        n: seeds, rounds or batches; 1 where something was counted.
        sd: sample standard deviation over seeds, where there are several.
        error: standard error of the value, where it is known.
        not_comparable: why it is no verdict on the claim; empty if it is.
    """

    value: float
    scale: str
    of: str
    n: int = 1
    sd: float | None = None
    error: float | None = None
    not_comparable: str = ""


class Measures:
    """Finds measured values in a folder of rows; None where there are none yet."""

    def __init__(self, results: Path) -> None:
        self._results = results
        self._known: dict[str, Callable[..., Measured | None]] = {
            "activations": functools.partial(self._counted, "activation_bytes"),
            "total": functools.partial(self._counted, "total_bytes"),
            "batch_ratio": self._batch_ratio,
            "saved": self._saved,
            "saved_ratio": self._saved_ratio,
            "saved_change": self._saved_change,
            "step": self._step,
            "faster": self._faster,
            "throughput": self._throughput,
            "error_ratio": self._error_ratio,
            "equal_error": self._equal_error,
            "accuracy": self._accuracy,
            "accuracy_change": self._accuracy_change,
            "table1_ratio": self._table1_ratio,
        }

    def __call__(self, text: str) -> Measured | None:
        """Measure what a claim asks for."""
        name, *arguments = text.split()
        if name not in self._known:
            raise ValueError(f"no measure {name!r}; choose from: {', '.join(self._known)}")
        return self._known[name](*arguments)

    def _rows(self, experiment: str, **settings: object) -> list[Row]:
        return core.newest(record.load(self._results, experiment), **settings)

    def _counted(self, metric: str, model: str, label: str, batch: str) -> Measured | None:
        for row in self._rows("table3"):
            of = (row.model, row.config["label"], row.metric, row.config.get("batch"))
            if of == (model, label, metric, int(batch)):
                return Measured(row.value / GIB, row.scale, f"{model}, counted without data")
        return None

    def _batch_ratio(self, model: str, label: str, budget: str) -> Measured | None:
        found = {
            row.config["label"]: row
            for row in self._rows("table3")
            if (row.model, row.metric, row.config.get("budget")) == (model, "max_batch", budget)
        }
        if not {label, "vanilla"} <= found.keys():
            return None
        value = found[label].value / found["vanilla"].value
        return Measured(value, found[label].scale, f"{model}, planned for {budget}")

    def _sizes(self, model: str) -> dict[object, Row]:
        return {r.config["label"]: r for r in self._rows("sizes", **SIZES) if r.model == model}

    def _saved(self, model: str, label: str) -> Measured | None:
        row = self._sizes(model).get(label)
        of = f"{model}, counted without data"
        return None if row is None else Measured(row.value / GIB, row.scale, of)

    def _saved_ratio(self, model: str, label: str, base: str) -> Measured | None:
        ours, stock = self._saved(model, label), self._saved(model, base)
        return ours and stock and replace(ours, value=stock.value / ours.value)

    def _saved_change(self, model: str, label: str, base: str) -> Measured | None:
        ours, stock = self._saved(model, label), self._saved(model, base)
        return ours and stock and replace(ours, value=100 * (ours.value / stock.value - 1))

    def _step(self, label: str) -> Measured | None:
        for row in self._rows("benchmark", **STEP):
            if (row.config["label"], row.metric) == (label, "throughput_ratio"):
                return Measured(row.value, row.scale, _timed(row), row.n)
        return None

    def _faster(self, label: str, other: str) -> Measured | None:
        ours, theirs = self._step(label), self._step(other)
        return ours and theirs and replace(ours, value=ours.value / theirs.value)

    def _throughput(self, model: str, label: str, batch: str) -> Measured | None:
        """Take the same batch of whatever network was timed; only the same on a GPU compares."""
        for row in table4.newest(record.load(self._results, "table4")):
            of = (row.config["label"], row.metric, row.config["batch"])
            if of == (label, "throughput_ratio", int(batch)) and "budget" not in row.config:
                why = "" if row.model == model and row.machine["gpu"] else "another network, a CPU"
                return Measured(row.value, row.scale, _timed(row), row.n, not_comparable=why)
        return None

    def _error_ratio(self, label: str, base: str, model: str) -> Measured | None:
        """Return the largest ratio of two gradient errors over the states of a training."""
        rows = [r for r in record.load(self._results, "errors") if r.metric == "gradient_error"]
        rows = [row for row in rows if row.model == model]
        rows.sort(key=lambda r: (-SCALES.index(r.scale), r.utc))
        for last in reversed([row for row in rows if row.config["label"] == label]):
            alike = [row for row in rows if equal.settings(row) == equal.settings(last)]
            found = {(r.config["label"], r.config["at"]): r for r in alike}
            states = [at for name, at in found if name == label and (base, at) in found]
            if states:
                value = max(found[label, at].value / found[base, at].value for at in states)
                of = f"{last.model} on {last.dataset}, worst of {len(states)} states"
                return Measured(value, last.scale, of, last.n)
        return None

    def _equal_error(self, model: str, dataset: str) -> Measured | None:
        """Return recompute's error over the published one's at its bytes, at the worst state."""
        states = equal.states_of(record.load(self._results, "errors"))
        states = [s for s in states if (s.row.model, s.row.dataset) == (model, dataset)]
        best = [state.within(equal.PUBLISHED) for state in states]
        if len(states) < equal.STATES:
            return None
        value = max(
            each.over(state.points[equal.PUBLISHED]) if each else math.inf
            for each, state in zip(best, states, strict=True)
        )
        of = f"{states[0].network}, worst of {len(states)} states"
        return Measured(value, states[0].row.scale, of, states[0].row.n)

    def _accuracy(self, dataset: str, model: str, method: str) -> Measured | None:
        for profile in PROFILES:
            tops = self._tops(profile, model, method)
            if tops and tops[0].dataset == dataset:
                why = "" if tops[0].scale == "paper" else "a shorter schedule"
                return replace(_mean(tops), not_comparable=why)
        return None

    def _accuracy_change(self, model: str, method: str, *options: str) -> Measured | None:
        """Return the mean change against vanilla at the largest scale that has both."""
        for profile in PROFILES:
            stock, tops = (
                self._tops(profile, model, "vanilla"),
                self._tops(profile, model, method, *options),
            )
            if stock and tops:
                ours, base = _mean(tops), _mean(stock)
                error = None
                if ours.error is not None and base.error is not None:
                    error = math.hypot(ours.error, base.error)
                change = ours.value - base.value
                return replace(ours, value=change, n=min(ours.n, base.n), error=error)
        return None

    def _tops(self, profile: str, model: str, method: str, *options: str) -> list[Row]:
        """Return the last accuracies of a profile's runs; options choose runs beside them."""
        own, rows = _runs_of(profile, self._results)
        own = [row for row in own if row.model == model]
        if not options:
            return [row for row in own if row.method == method]
        wanted = dict(option.split("=") for option in options)
        found = {}
        for row in sorted(rows, key=lambda r: r.utc):
            has = all(str(row.config.get(k)).lower() == v for k, v in wanted.items())
            like = any(_alike(row, each, wanted) for each in own)
            if row.method == method and row.model == model and has and like:
                found[row.seed] = row
        return list(found.values())

    def _table1_ratio(self, model: str, method: str) -> Measured | None:
        for profile in PROFILES:
            rows = _runs_of(profile, self._results, metric="")[0]
            found = {r.metric: r for r in rows if (r.model, r.method, r.seed) == (model, method, 0)}
            if {"saved_bytes", "original_bytes"} <= found.keys():
                row = found["saved_bytes"]
                value = found["original_bytes"].value / row.value
                why = "ours is of all activations and another network"
                of = f"{row.model} on {row.dataset}"
                return Measured(value, row.scale, of, not_comparable=why)
        return None


def _runs_of(
    profile: str, results: Path, metric: str = "final_top1"
) -> tuple[list[Row], list[Row]]:
    """Return the ok rows of a metric (all if none is named): a profile's own runs; and all."""
    loaded = grid.load(profile)
    rows = record.load(results, loaded.name)
    rows = [row for row in rows if row.status == "ok" and metric in ("", row.metric)]
    own = table1.select(rows, grid.config_hashes(loaded)) if rows else []
    return own, rows


def _alike(row: Row, other: Row, ignored: dict[str, str]) -> bool:
    """Tell whether two runs differ in method, seed and the options only."""
    keys = row.config.keys() | other.config.keys()
    keys = {k for k in keys if k != "seed" and not k.startswith("method.") and k not in ignored}
    return all(row.config.get(key) == other.config.get(key) for key in keys)


def _mean(rows: list[Row]) -> Measured:
    values = [float(row.value) for row in rows if row.value is not None]
    sd = statistics.stdev(values) if len(values) > 1 else None
    error = sd / math.sqrt(len(values)) if sd is not None else None
    of = f"{rows[0].model} on {rows[0].dataset}"
    return Measured(statistics.fmean(values), rows[0].scale, of, len(values), sd, error)


def _timed(row: Row) -> str:
    return f"{row.model} on {row.dataset}, batch {row.config['batch']}, {row.machine['cpu']}"
