"""Table 1: accuracy, activation compression, peak memory and throughput of every method."""

from collections.abc import Collection, Iterable
from dataclasses import fields

import pandas as pd

from division.ledger import size_text
from experiments.record import Row

COLUMNS = [
    "dataset",
    "model",
    "method",
    "top-1 %",
    "activations",
    "compression",
    "peak of a step",
    "throughput / vanilla",
]


def select(rows: Iterable[Row], wanted: Collection[str]) -> list[Row]:
    """Return the newest row of each number whose config is one of those wanted (by hash)."""
    found: dict[tuple[object, ...], Row] = {}
    for row in sorted(rows, key=lambda r: r.utc):
        if row.config_hash in wanted:
            found[row.config_hash, row.metric, row.epoch] = row
    return list(found.values())


def frame(trained: list[Row], benchmarked: list[Row]) -> pd.DataFrame:
    """Lay selected rows out, a line per dataset, model and method."""
    if not trained:
        raise ValueError("there is no recorded run to make Table 1 of")
    scales = sorted({row.scale for row in [*trained, *benchmarked]})
    if len(scales) != 1:
        raise ValueError(f"a table never mixes scales; the rows have {', '.join(scales)}")
    runs, speeds = _table(trained), _table(benchmarked)
    lines = []
    for (dataset, model), part in runs.groupby(["dataset", "model"], sort=False):
        names = sorted(part["method"].unique(), key=lambda name: (name != "vanilla", name))
        for method in names:
            of_method = part[part["method"] == method]
            bench = speeds[(speeds["method"] == method) & (speeds["model"] == model)]
            lines.append([dataset, model, method, *_cells(of_method, bench)])
    return pd.DataFrame(lines, columns=COLUMNS)


def notes(trained: list[Row], benchmarked: list[Row]) -> list[str]:
    """Say what the numbers are, where they come from and what they are not."""
    rows = [*trained, *benchmarked]
    machines = sorted({f"{r.machine['cpu']}, {r.machine['cores']} cores" for r in rows})
    commits = sorted({r.commit[:10] + ("+" if r.dirty else "") for r in rows})
    seeds = sorted({r.seed for r in trained})
    batches = {r.model: r.config.get("optim.batch") for r in trained}
    sizes = ", ".join(f"{model} {batch}" for model, batch in batches.items())
    return [
        f"scale: {rows[0].scale}; top-1 is mean ± sample sd over n seeds ({seeds})",
        "activations: what autograd holds for one training batch, by the ledger; compression is "
        "against stock PyTorch",
        "peak of a step: resident memory of one training step in its own process, above what the "
        "process held before, with an allocator that gives freed blocks back at once",
        "throughput: training steps in alternating rounds, every method in a process of its own; "
        "median ratio to vanilla (p20-p80)",
        f"batch, of runs and measurements alike: {sizes}",
        f"hardware: {'; '.join(machines)}",
        f"commits: {', '.join(commits)} (+: with uncommitted changes)",
    ]


def _table(rows: list[Row]) -> pd.DataFrame:
    columns = [field.name for field in fields(Row)]
    return pd.DataFrame([vars(row) for row in rows], columns=columns)


def _cells(runs: pd.DataFrame, bench: pd.DataFrame) -> list[str]:
    final = runs[runs["metric"] == "final_top1"]
    sizes = {m: _value(runs, m) for m in ("saved_bytes", "original_bytes")}
    saved, original = sizes["saved_bytes"], sizes["original_bytes"]
    known = saved is not None and original is not None
    peak = _value(bench, "peak_bytes")
    return [
        accuracy_text(final),
        size_text(saved) if known else "",
        f"{original / saved:.2f}x" if known else "",
        size_text(peak) if peak is not None else "",
        _speed(bench),
    ]


def accuracy_text(final: pd.DataFrame) -> str:
    """Write the accuracies of some runs: mean, deviation and count, and the runs that failed."""
    good = final[final["status"] == "ok"]["value"]
    bad = final[final["status"] != "ok"]["status"]
    text = []
    if len(good) == 1:
        text.append(f"{good.iloc[0]:.2f} (n=1)")
    elif len(good):
        text.append(f"{good.mean():.2f} ± {good.std():.2f} (n={len(good)})")
    text += [f"{status} (n={count})" for status, count in bad.value_counts().items()]
    return ", ".join(text)


def _value(rows: pd.DataFrame, metric: str) -> float | None:
    values = rows[rows["metric"] == metric]["value"] if len(rows) else []
    return float(values.iloc[-1]) if len(values) else None


def _speed(bench: pd.DataFrame) -> str:
    rows = bench[bench["metric"] == "throughput_ratio"] if len(bench) else bench
    if not len(rows):
        return ""
    row = rows.iloc[-1]
    return f"{row['value']:.2f} ({row['p20']:.2f}-{row['p80']:.2f})"
