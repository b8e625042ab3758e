"""Timing on a shared machine: alternating rounds, ratios, quantiles."""

import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Quantiles:
    """Median, and the 20th and 80th percentile, of n values."""

    p50: float
    p20: float
    p80: float
    n: int

    @classmethod
    def of(cls, values: list[float]) -> "Quantiles":
        """Summarise values; with one value all three are that value."""
        if len(values) == 1:
            return cls(values[0], values[0], values[0], 1)
        tenths = statistics.quantiles(values, n=10, method="inclusive")
        return cls(statistics.median(values), tenths[1], tenths[7], len(values))


def host_seconds(task: Callable[[], object]) -> float:
    """Return how long a task takes by the host's clock."""
    start = time.perf_counter()
    task()
    return time.perf_counter() - start


def alternate(
    tasks: Mapping[str, Callable[[], float]], rounds: int, warmup: int = 1
) -> Iterator[dict[str, float]]:
    """Yield the seconds that every task tells, one round at a time; odd rounds in reverse order.

    Whatever slows the machine for a while then slows all tasks, and no task always runs in the wake
    of the same other.
    """
    for _ in range(warmup):
        for task in tasks.values():
            task()
    for number in range(rounds):
        names = list(tasks) if number % 2 == 0 else list(reversed(tasks))
        yield {name: tasks[name]() for name in names}


def ratios(rounds: list[dict[str, float]], base: str) -> dict[str, Quantiles]:
    """Return how fast each task is against the base: base seconds / its seconds, per round."""
    return {name: Quantiles.of([r[base] / r[name] for r in rounds]) for name in rounds[0]}
