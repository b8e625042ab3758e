"""Tables from rows, and the README's copies of them: `python -m experiments.report`."""

import argparse
import re
import tempfile
from pathlib import Path
from typing import Any

import pandas as pd
from rich.console import Console
from rich.markdown import Markdown

from experiments import ablation, errors, grid, page, record, reproduction
from experiments.config import compose_train, flatten, one_sentence
from experiments.measures import SIZES, STEP
from experiments.provenance import ROOT
from experiments.stale import stale
from experiments.tables import (
    core,
    render,
    rivals,
    roofline,
    table1,
    table3,
    table4,
    table5,
    transformers,
)

README = ROOT / "README.md"


def write_core(results: Path) -> str:
    """Write the table of the core: kernels, training step, saved bytes."""
    settings: dict[str, dict[str, Any]] = {"kernels": {}, "benchmark": STEP, "sizes": SIZES}
    parts = [core.newest(record.load(results, name), **each) for name, each in settings.items()]
    if not all(parts):
        raise ValueError(
            "the table of the core needs `make benchmark-kernels benchmark benchmark-sizes` first"
        )
    frame = core.frame(*parts, *_published(results))
    notes = core.notes(row for part in parts for row in part)
    return render.write(results / "tables", "core", frame, "The core against its bars", notes)


def write_rivals(results: Path) -> str:
    """Write the table of the rivals from the same measurements as that of the core."""
    benchmark = core.newest(record.load(results, "benchmark"), **STEP)
    sizes = core.newest(record.load(results, "sizes"), **SIZES)
    frame = rivals.frame(
        benchmark, sizes, *_published(results), pd.read_csv(results / "paper" / "claims.csv")
    )
    notes = rivals.notes(benchmark, sizes)
    return render.write(results / "tables", "rivals", frame, "The rivals", notes)


def _published(results: Path) -> list[pd.DataFrame]:
    return [pd.read_csv(results / "paper" / f"{name}.csv") for name in ("memory", "throughput")]


def rows_of_table1(
    profile: grid.Profile, results: Path
) -> tuple[list[record.Row], list[record.Row]]:
    """Return the rows of a profile's own runs, and of their benchmark."""
    trained = table1.select(record.load(results, profile.name), grid.config_hashes(profile))
    benchmarked = []
    for model, overrides in profile.models.items():
        config = grid.benchmark_config(profile, model, overrides, grid.methods())
        rows = record.load(results, f"{profile.name}-benchmark")
        benchmarked += core.newest(rows, **flatten(config))
    return trained, benchmarked


def write_table1(profile: grid.Profile, results: Path) -> str:
    """Write Table 1 of a profile from the rows of its own runs; return it as Markdown."""
    trained, benchmarked = rows_of_table1(profile, results)
    frame = table1.frame(trained, benchmarked)
    stem = "table1" if profile.name == "table1-quick" else profile.name
    title = f"Table 1 ({profile.name.removeprefix('table1-')} profile)"
    return render.write(results / "tables", stem, frame, title, table1.notes(trained, benchmarked))


def rows_of_table5(
    profile: ablation.Ablation, results: Path
) -> tuple[list[record.Row], list[record.Row]]:
    """Return the rows of an ablation's own runs, and of its gradient errors."""
    configs = (compose_train(overrides) for _, overrides in ablation.runs(profile, []))
    wanted = {record.config_hash(flatten(config)) for config in configs}
    trained = table1.select(record.load(results, profile.name), wanted)
    return trained, errors.rows_for(ablation.errors_config(profile, []), results)


def write_table5(name: str, results: Path) -> str:
    """Write Table 5 of an ablation profile from the rows of its own runs; return it as Markdown."""
    profile = ablation.load(name)
    trained, measured = rows_of_table5(profile, results)
    frame = table5.frame(ablation.specs(), trained, measured)
    stem = "table5" if name == "cifar" else profile.name
    title = f"Table 5: DIVISION with options changed ({name} profile)"
    return render.write(results / "tables", stem, frame, title, table5.notes(trained, measured))


def write_table3(results: Path) -> list[str]:
    """Write Table 3, and the largest batches beside it, from the latest count."""
    rows = core.newest(record.load(results, "table3"))
    memory, logs, batches = (
        pd.read_csv(results / "paper" / f"{name}.csv")
        for name in ("memory", "memory_actnn", "batch")
    )
    tables = {
        "table3": (
            "Table 3: memory of a training step, GiB",
            table3.frame(rows, memory),
            table3.notes(rows, memory, logs),
        ),
        "table3-batches": (
            "Table 3, continued: the largest batch within a memory budget",
            table3.batch_frame(rows),
            table3.batch_notes(rows, batches),
        ),
    }
    return [
        render.write(results / "tables", stem, frame, title, notes)
        for stem, (title, frame, notes) in tables.items()
    ]


def write_transformers(results: Path) -> str:
    """Write the table of the transformers from the latest rows."""
    rows = core.newest(record.load(results, "transformers"))
    title = "Transformers: saved bytes and gradient error"
    frame, notes = transformers.frame(rows), transformers.notes(rows)
    return render.write(results / "tables", "transformers", frame, title, notes)


def write_roofline(results: Path) -> str:
    """Write what the roofline predicts for each GPU."""
    rows = roofline.select(record.load(results, "roofline"))
    _, paper = _published(results)
    frame, notes = roofline.frame(rows, paper), roofline.notes(rows, paper)
    title = "Predicted cost of the methods on GPUs, ResNet-50"
    return render.write(results / "tables", "roofline", frame, title, notes)


def write_table4(results: Path) -> list[str]:
    """Write Table 4, and throughput within the budget where that was measured."""
    rows = table4.newest(record.load(results, "table4"))
    paper = pd.read_csv(results / "paper" / "throughput.csv")
    frame, notes = table4.frame(rows, paper), table4.notes(rows)
    title = "Table 4: throughput against batch size, relative to vanilla"
    texts = [render.write(results / "tables", "table4", frame, title, notes)]
    if any("budget" in row.config for row in rows):
        frame, notes = table4.budget_frame(rows), table4.budget_notes(rows)
        title = "Table 4, continued: throughput at the largest batch within a memory budget"
        texts.append(render.write(results / "tables", "table4-budget", frame, title, notes))
    return texts


def write_all(results: Path) -> list[str]:
    """Write every table that has rows."""

    def recorded(name: str) -> bool:
        return (results / "runs" / f"{name}.jsonl").exists()

    texts = [write_core(results), write_rivals(results)] if recorded("kernels") else []
    texts += write_table3(results) if recorded("table3") else []
    texts += [write_transformers(results)] if recorded("transformers") else []
    texts += [write_roofline(results)] if recorded("roofline") else []
    texts += write_table4(results) if recorded("table4") else []
    profiles = (grid.load(name) for name in grid.names())
    texts += [write_table1(each, results) for each in profiles if recorded(each.name)]
    ablations = ablation.names() if recorded("errors") else []
    has_rows = [name for name in ablations if any(rows_of_table5(ablation.load(name), results))]
    return texts + [write_table5(name, results) for name in has_rows]


def with_tables(readme: str, results: Path) -> str:
    """Return the README with the blocks between its markers renewed from the tables."""

    def renewed(block: re.Match[str]) -> str:
        name = block.group(1)
        table = (results / "tables" / f"{name}.md").read_text()
        return f"<!-- table {name} -->\n{table}<!-- end {name} -->"

    return re.sub(r"<!-- table (\S+) -->\n.*?<!-- end \1 -->", renewed, readme, flags=re.DOTALL)


def write_everything(results: Path) -> list[str]:
    """Write all tables, REPRODUCTION.md and report.html."""
    texts = [*write_all(results), reproduction.write(results)]
    page.write(results)
    return texts


def stale_files(results: Path, readme: Path) -> list[Path]:
    """Return what `make report` would change, without changing it."""
    with tempfile.TemporaryDirectory() as folder:
        fresh = Path(folder)
        for part in ("runs", "paper", "figures"):
            (fresh / part).symlink_to((results / part).resolve())
        write_everything(fresh)
        found = stale(results, fresh)
        text = readme.read_text()
        return found + ([readme] if with_tables(text, fresh) != text else [])


def check(results: Path, readme: Path) -> None:
    """Leave with an error that names the stale files, if there are any."""
    found = stale_files(results, readme)
    if found:
        names = ", ".join(str(path) for path in found)
        raise ValueError(f"not what the rows give: {names}; `make report` writes them anew")


def main() -> None:
    """Write what was asked for and print it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--profile", help="Table 1 of this profile only: quick, cifar or paper")
    parser.add_argument("--ablation", help="Table 5 of this profile only: quick or cifar")
    parser.add_argument("--table3", action="store_true", help="Table 3 only")
    parser.add_argument("--table4", action="store_true", help="Table 4 only")
    parser.add_argument("--check", action="store_true", help="write nothing, fail if any is stale")
    parser.add_argument("--results", type=Path, default=Path("results"), help="folder of the rows")
    arguments = parser.parse_args()
    results = arguments.results
    texts: list[str] = []
    with one_sentence():
        if arguments.check:
            check(results, README)
        elif arguments.table3:
            texts = write_table3(results)
        elif arguments.table4:
            texts = write_table4(results)
        elif arguments.profile:
            texts = [write_table1(grid.load(arguments.profile), results)]
        elif arguments.ablation:
            texts = [write_table5(arguments.ablation, results)]
        else:
            texts = write_everything(results)
            if results.resolve() == ROOT / "results":
                README.write_text(with_tables(README.read_text(), results))
    for text in texts:
        Console(width=170).print(Markdown(text))


if __name__ == "__main__":
    main()
