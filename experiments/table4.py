"""Table 4: throughput against batch size, and at the largest batch that a memory budget allows.

The first is what compression costs at equal batches, the second what it is for. Each batch is one
benchmark, recorded as it ends; what is recorded with the same config and code is skipped.

    python -m experiments.table4 batches=[16,64] rounds=3
"""

import math
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import hydra
import torch
from omegaconf import DictConfig, OmegaConf
from rich.console import Console
from rich.progress import track
from torch.nn import functional as F

import division
from division.ledger import parse_size
from experiments import benchmark, models, peak, record
from experiments.benchmark import Spec, methods_of, options_of, plain, row_of
from experiments.config import check_overrides, flatten, one_sentence
from experiments.timing import Quantiles

ONLY_HERE = ("batches", "budget", "most", "hydra")
RATIO_BATCH = 16  # images on which sizes that depend on the data are measured, for the planner


def check(config: DictConfig) -> None:
    """Raise for a setting that is out of range, before anything is timed."""
    methods_of(config)
    if not config.batches or any(not isinstance(b, int) or b < 1 for b in config.batches):
        raise ValueError(f"batches must be whole numbers >= 1; got {list(config.batches)}")
    if config.budget is not None:
        parse_size(str(config.budget))
    if not isinstance(config.most, int) or config.most < 1:
        raise ValueError(f"most must be a whole number >= 1; got {config.most!r}")


def benchmarks(config: DictConfig) -> Iterator[DictConfig]:
    """Yield the benchmark of every batch."""
    shared = _shared(config)
    for batch in config.batches:
        chosen = {"batch": batch, "peak_batch": 0, "peak_default": False}
        yield OmegaConf.merge(shared, chosen)


def budget_config(config: DictConfig) -> DictConfig:
    """Return the settings of the comparison within the budget; batches follow from them."""
    return OmegaConf.merge(_shared(config), {"budget": str(config.budget), "most": config.most})


def _shared(config: DictConfig) -> DictConfig:
    kept = {key: value for key, value in config.items() if key not in ONLY_HERE}
    return OmegaConf.create(kept)


def data_ratio(config: DictConfig, spec: Spec) -> float | None:
    """Return how many times a method whose sizes depend on the data shrinks what it packs."""
    network = models.build(**plain(config.network), classes=10, image_size=config.image)
    network = network.to(memory_format=torch.channels_last)
    division.compress(network, str(spec["name"]), **options_of(spec))
    x = torch.randn(RATIO_BATCH, 3, config.image, config.image)
    F.cross_entropy(network(x), torch.zeros(RATIO_BATCH, dtype=torch.int64)).backward()
    known = division.codecs.names()
    packed = [
        row
        for row in division.measure(network, x).rows
        if row.codec in known and division.codecs.get(row.codec).sized_by_data and row.bytes_after
    ]
    if not packed:
        return None
    return sum(4 * math.prod(row.shape) for row in packed) / sum(row.bytes_after for row in packed)


def largest_batches(config: DictConfig, methods: dict[str, Spec]) -> dict[str, int]:
    """Return the largest batch of every method within the budget, as the planner counts it."""
    specs = []
    for label, spec in methods.items():
        ratio = data_ratio(config, spec)
        assumed = {} if ratio is None else {"assumed_ratio": max(ratio, 1.0)}
        specs.append((label, str(spec["name"]), {**options_of(spec), **assumed}))
    found = division.plan(
        lambda: models.build(**plain(config.network), classes=10, image_size=config.image),
        (RATIO_BATCH, 3, config.image, config.image),
        specs,
        config.budget,
    )
    unplanned = [label for label, entry in found.items() if not entry.max_batch]
    if unplanned:
        why = found[unplanned[0]].note or f"no batch fits into {config.budget}"
        raise ValueError(f"{unplanned[0]} has no largest batch: {why}")
    return {label: int(entry.max_batch) for label, entry in found.items()}


def budget_rows(config: DictConfig) -> list[record.Row]:
    """Time every method at its own largest batch within the budget; ratios are of images/s."""
    methods = methods_of(config)
    fitting = largest_batches(config, methods)
    batches = {label: min(batch, config.most) for label, batch in fitting.items()}
    measured = benchmark.throughput(config, methods, batches)
    speeds = [{label: batches[label] / r[label] for label in methods} for r in measured]
    rows = []
    for label, spec in track(methods.items(), "memory", console=Console(stderr=True)):
        where = OmegaConf.merge(config, {"batch": batches[label]})
        network = plain(config.network)
        found = peak.measure_step(network, dict(spec), batches[label], config.image)
        for metric, unit, value in (
            ("max_batch", "images", fitting[label]),
            ("peak_bytes", "B", found["peak"]),
        ):
            rows.append(row_of(where, label, spec, metric, unit, value))
        for metric, unit, values in (
            ("throughput_ratio", "1", [speed[label] / speed["vanilla"] for speed in speeds]),
            ("throughput", "images/s", [speed[label] for speed in speeds]),
        ):
            of = Quantiles.of(values)
            spread = {"p20": of.p20, "p80": of.p80, "n": of.n}
            rows.append(row_of(where, label, spec, metric, unit, of.p50, **spread))
    return rows


def is_done_within_budget(config: DictConfig, results: Path) -> bool:
    """Tell whether the comparison within the budget is recorded with the code as it is now."""
    wanted = flatten(config)
    mine = [r for r in record.load(results, config.experiment) if record.is_of_this_code(r)]
    return any(wanted.items() <= r.config.items() for r in mine if "budget" in r.config)


def run(config: DictConfig) -> None:
    """Measure what is not recorded yet, saying what is being measured."""
    results, console = Path(config.paths.results), Console(stderr=True)
    for number, each in enumerate(benchmarks(config), 1):
        title = f"batch {each.batch} ({number} of {len(config.batches)})"
        if benchmark.is_done(each, results):
            console.print(f"recorded already, skipped: {title}")
            continue
        console.print(title)
        started = time.monotonic()
        record.append(results, record.complete(benchmark.rows_of(each), started))
    if config.budget is None:
        return
    within = budget_config(config)
    title = f"largest batches within {config.budget}"
    if is_done_within_budget(within, results):
        console.print(f"recorded already, skipped: {title}")
        return
    console.print(title)
    started = time.monotonic()
    record.append(results, record.complete(budget_rows(within), started))


@hydra.main(version_base="1.3", config_path="../configs", config_name="table4")
def main(config: DictConfig) -> None:
    """Check, measure, record."""
    with one_sentence():
        check(config)
        record.check_writable(Path(config.paths.results))
        run(config)


if __name__ == "__main__":
    check_overrides(sys.argv[1:], "table4")
    main()
