"""What recompute changes, measure by measure: where it helps, and where it does not."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

from experiments import record
from experiments.equal import State, states_of
from experiments.measures import SIZES, STEP
from experiments.record import Row
from experiments.tables import core

HELPS, SAME, COSTS = "helps", "no difference", "costs"
NOTICED = 0.01  # a smaller change is none
_PAIRS = (("division", "division-recompute"), ("division-recompute", "division-recompute-deep"))
_SIZES = (*_PAIRS, ("division-published", "division-recompute-3"))


@dataclass(frozen=True)
class Gain:
    """A number under one setting, and under another.

    Attributes:
        what: the number.
        of: network and data.
        before: the setting that it is compared with.
        after: the setting in question.
        ratio: the number under `after`, over that under `before`.
        more_is_better: for throughput.
    """

    what: str
    of: str
    before: str
    after: str
    ratio: float
    more_is_better: bool = False

    @property
    def verdict(self) -> str:
        """Say whether it helps."""
        change = self.ratio - 1 if self.more_is_better else 1 - self.ratio
        return SAME if abs(change) < NOTICED else HELPS if change > 0 else COSTS


def gains(results: Path) -> list[Gain]:
    """Return all that rows tell, network by network."""
    return [
        *_of_steps(core.newest(record.load(results, "benchmark"), **STEP)),
        *_of_sizes(core.newest(record.load(results, "sizes"), **SIZES)),
        *_of_errors(states_of(record.load(results, "errors"))),
        *_of_transformers(core.newest(record.load(results, "transformers"))),
    ]


def _of_steps(rows: list[Row]) -> Iterator[Gain]:
    for metric, what, more in (
        ("throughput_ratio", "throughput of a step", True),
        ("peak_bytes", "peak memory of a step", False),
        ("saved_bytes", "stored bytes", False),
    ):
        found = {str(row.config["label"]): row for row in rows if row.metric == metric}
        for before, after in _PAIRS:
            if {before, after} <= found.keys():
                row = found[after]
                of = f"{row.model} on {row.dataset}"
                yield Gain(what, of, before, after, _over(row, found[before]), more)


def _of_sizes(rows: Iterable[Row]) -> Iterator[Gain]:
    found = {(row.model, str(row.config["label"])): row for row in rows}
    for model in dict.fromkeys(model for model, _ in found):
        of = f"{model}, {SIZES['image']} pixels"
        for before, after in _SIZES:
            if {(model, before), (model, after)} <= found.keys():
                ratio = _over(found[model, after], found[model, before])
                yield Gain("stored bytes", of, before, after, ratio)


def _of_errors(states: list[State]) -> Iterator[Gain]:
    for network, group in groupby(states, key=lambda state: state.network):
        measured = list(group)
        for before, after in _PAIRS:
            both = [s for s in measured if {before, after} <= s.points.keys()]
            if both:
                saved = both[-1].points[after].saved / both[-1].points[before].saved
                yield Gain("stored bytes", network, before, after, saved)
                error = max(s.points[after].over(s.points[before]) for s in both)
                yield Gain(_worst(both), network, before, after, error)
        yield from _at_the_bytes_of("actnn", network, measured)


def _at_the_bytes_of(rival: str, network: str, states: list[State]) -> Iterator[Gain]:
    """Compare with a rival as recompute is compared with DIVISION as it was published."""
    fitting = [(state, state.within(rival)) for state in states if rival in state.points]
    ratios = [best.over(state.points[rival]) for state, best in fitting if best]
    if ratios:
        what = f"gradient error within its bytes, worst of {len(ratios)} states"
        yield Gain(what, network, rival, "the best recompute that fits", max(ratios))


def _of_transformers(rows: Iterable[Row]) -> Iterator[Gain]:
    found = {(row.model, str(row.config["label"]), row.metric): row for row in rows}
    what: dict[str, Callable[[Row], str]] = {
        "saved_bytes": lambda row: "stored bytes",
        "gradient_error": lambda row: f"gradient error, untrained, {row.n} draws",
    }
    for (model, label, metric), row in found.items():
        before = label.removesuffix(", recompute")
        if label != before and metric in what and (model, before, metric) in found:
            of = f"{model} on {row.dataset}"
            ratio = _over(row, found[model, before, metric])
            yield Gain(what[metric](row), of, before, label, ratio)


def _worst(states: list[State]) -> str:
    return f"gradient error, worst of {len(states)} states"


def _over(row: Row, other: Row) -> float:
    return float(row.value or 0.0) / float(other.value or 1.0)
