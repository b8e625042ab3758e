"""Gradient errors at equal stored bytes, from the rows of `experiments.errors`.

What DIVISION stores as it was published is the budget; beside it stands the best setting with
recompute that fits into it.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from experiments.record import SCALES, Row

PUBLISHED = "division-published"
BAR = 0.6  # of the published error
STATES = 3  # of a training, without which there is no verdict on it: start, middle, end
_NOT_OF_THE_STATE = ("label", "spec", "at", "step")


@dataclass(frozen=True)
class Point:
    """What a spec stores at a state, and how wrong its gradients are there."""

    label: str
    options: Mapping[str, object]
    saved: float
    error: Row

    @property
    def value(self) -> float:
        """Return the gradient error."""
        return float(self.error.value or 0.0)

    def over(self, other: "Point") -> float:
        """Return the error as a share of another's."""
        return self.value / other.value


@dataclass(frozen=True)
class State:
    """All specs that were measured at one state of one training."""

    at: str
    points: Mapping[str, Point]

    @property
    def row(self) -> Row:
        """Return one of the rows: they share network, data, step and scale."""
        return next(iter(self.points.values())).error

    @property
    def network(self) -> str:
        """Say what was trained on what."""
        return f"{self.row.model} on {self.row.dataset}"

    def within(self, label: str) -> Point | None:
        """Return the best setting with recompute that stores no more than another spec."""
        limit = self.points[label].saved
        fitting = [p for p in self.points.values() if rebuilds(p) and p.saved <= limit]
        return min(fitting, key=lambda point: point.value, default=None)


def rebuilds(point: Point) -> bool:
    """Tell whether a spec is DIVISION with recompute."""
    return point.error.method == "division" and bool(point.options.get("recompute"))


def settings(row: Row) -> dict[str, object]:
    """Return what two gradient errors must have in common to be compared."""
    return {k: v for k, v in row.config.items() if k not in _NOT_OF_THE_STATE}


def states_of(rows: Iterable[Row]) -> list[State]:
    """Return the states of every network that has DIVISION as published beside recompute.

    A network that was measured in several settings is shown at the largest scale, the latest.
    """
    totals = [row for row in rows if row.metric in ("gradient_error", "saved_bytes")]
    totals.sort(key=lambda row: (SCALES.index(row.scale), row.utc))
    chosen = {(r.model, r.dataset): settings(r) for r in totals if r.config["label"] == PUBLISHED}
    found = []
    for (model, dataset), wanted in chosen.items():
        alike = [r for r in totals if (r.model, r.dataset) == (model, dataset)]
        alike = [row for row in alike if settings(row) == wanted]
        steps = {str(row.config["at"]): int(str(row.config["step"])) for row in alike}
        for at in sorted(steps, key=lambda at: steps[at]):
            points = _points(row for row in alike if row.config["at"] == at)
            if PUBLISHED in points and any(map(rebuilds, points.values())):
                found.append(State(at, points))
    return found


def _points(rows: Iterable[Row]) -> dict[str, Point]:
    found = {(str(row.config["label"]), row.metric): row for row in rows}  # the latest counts
    return {
        label: Point(label, row.options, float(found[label, "saved_bytes"].value or 0.0), row)
        for (label, metric), row in found.items()
        if metric == "gradient_error"
    }
