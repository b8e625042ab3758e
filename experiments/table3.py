"""Memory of the published networks, counted without a GPU: `make reproduce-table3`.

Two steps of each network under each method are walked, and a third checks that what lies between
them is on the lines through them. The largest batch within the first budget is counted as well.
"""

import argparse
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

from rich.console import Console

from division.dryrun import DryRun
from division.forecast import Forecast, largest
from division.ledger import parse_size
from division.walk import Walk
from experiments import record
from experiments.config import one_sentence
from experiments.sizes import METHODS, MODELS, Variants, row_of, runs_of

IMAGE = 224
BATCHES = (64, 128, 256, 512)
CHECKED = 256  # counted too, though the others would tell
BUDGETS = ("24GiB", "11GiB", "16GiB", "80GiB")  # the first by count, the others by the lines
TOLERANCE = 1e-3
OURS = ("vanilla", "division", "division-recompute", "division-published")
VARIANTS: Variants = {
    **{label: METHODS[label] for label in (*OURS, "actnn")},
    "actnn-published": ("actnn", {"share": False}),
    **{label: METHODS[label] for label in ("pooling", "pooling-all", "checkpoint")},
    "checkpoint-published": ("checkpoint", {"blocks": ("layer?",)}),
    "autocast": METHODS["autocast"],
}


def activations(step: Walk) -> int:
    """Count as the authors' benchmark: allocated after the forward less allocated before the batch.

    Without the output and the loss, but with the batch.
    """
    return step.held - step.weights - step.optimizer - step.output


def total(step: Walk) -> int:
    """Add up as the authors' benchmark: before backward, and what a step leaves behind.

    The batch and the output are in both.
    """
    return step.held + step.gradients + step.inputs + step.output


def counts_of(run: DryRun) -> Iterator[tuple[dict[str, object], tuple[str, str, int]]]:
    """Yield settings and (metric, unit, value) of a network under a method."""
    small, large = run.walk(BATCHES[0]), run.walk(BATCHES[-1])
    forecast = Forecast(small, large)
    saved = [run.measure(batch).saved_bytes for batch in (BATCHES[0], BATCHES[-1])]
    ends = {
        "saved_bytes": saved,
        "activation_bytes": [activations(small), activations(large)],
        "total_bytes": [total(small), total(large)],
        "batch_bytes": [small.inputs, large.inputs],
    }
    counted = run.walk(CHECKED)
    _check(forecast.peak(CHECKED), counted.peak)
    _check(forecast.line(*ends["total_bytes"], CHECKED), total(counted))
    for batch in BATCHES:
        for metric, values in ends.items():
            yield {"batch": batch}, (metric, "B", forecast.line(*values, batch))
        yield {"batch": batch}, ("peak_bytes", "B", forecast.peak(batch))
        yield (
            {"batch": batch},
            ("batch_bytes", "B", forecast.line(small.inputs, large.inputs, batch)),
        )
    for budget in BUDGETS:
        limit = parse_size(budget)
        found = forecast.largest(limit)
        if budget == BUDGETS[0]:
            found = largest(lambda batch: run.walk(batch).peak, limit, found)
        yield {"budget": budget}, ("max_batch", "images", found)


def _check(line: int, counted: int) -> None:
    if abs(line - counted) > TOLERANCE * counted:
        raise RuntimeError(f"sizes are no line in the batch: {line} bytes at {CHECKED}, {counted}")


def rows_of(model: str) -> list[record.Row]:
    """Count a network under every method."""
    rows = []
    for label, run in runs_of(model, VARIANTS, IMAGE):
        for settings, counted in counts_of(run):
            where = {"image": IMAGE, **settings}
            rows.append(row_of("table3", model, label, VARIANTS[label], counted, **where))
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--results", type=Path, default=Path("results"), help="where rows go")
    results = parser.parse_args().results
    started = time.monotonic()
    with one_sentence():
        record.check_writable(results)
        words = f"counting {' and '.join(MODELS)} under {len(VARIANTS)} methods, a minute or two"
        processes = ProcessPoolExecutor(len(MODELS), get_context("spawn"))
        with Console(stderr=True).status(words), processes as pool:
            rows = [row for found in pool.map(rows_of, MODELS) for row in found]
        record.append(results, record.complete(rows, started))


if __name__ == "__main__":
    main()
