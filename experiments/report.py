"""Tables from rows, and the README's copies of them: `python -m experiments.report`."""

import argparse
import re
import sys
from pathlib import Path

import pandas as pd
from rich.console import Console
from rich.markdown import Markdown

from experiments import grid, record
from experiments.provenance import ROOT
from experiments.tables import core, render, table1


def write_core(results: Path) -> str:
    """Write the table of the core: kernels, training step, saved bytes."""
    parts = [core.newest(record.load(results, name)) for name in ("kernels", "benchmark", "sizes")]
    if not all(parts):
        raise ValueError(
            "the table of the core needs `make benchmark-kernels benchmark benchmark-sizes` first"
        )
    paper = [pd.read_csv(results / "paper" / f"{name}.csv") for name in ("memory", "throughput")]
    frame = core.frame(*parts, *paper)
    notes = core.notes(row for part in parts for row in part)
    return render.write(results / "tables", "core", frame, "The core against its bars", notes)


def write_table1(profile: grid.Profile, results: Path) -> str:
    """Write Table 1 of a profile from its rows; return it as Markdown."""
    trained = record.load(results, profile.name)
    benchmarked = record.load(results, f"{profile.name}-benchmark")
    shown = [r for r in trained if r.method in grid.methods()]
    frame = table1.frame(shown, benchmarked)
    stem = "table1" if profile.name == "table1-quick" else profile.name
    title = f"Table 1 ({profile.name.removeprefix('table1-')} profile)"
    return render.write(results / "tables", stem, frame, title, table1.notes(shown, benchmarked))


def write_all(results: Path) -> list[str]:
    """Write every table that has rows."""
    profiles = [grid.load(name) for name in grid.names()]
    recorded = [p for p in profiles if (results / "runs" / f"{p.name}.jsonl").exists()]
    return [write_core(results), *(write_table1(profile, results) for profile in recorded)]


def with_tables(readme: str, results: Path) -> str:
    """Return the README with the blocks between its markers renewed from the tables."""

    def renewed(block: re.Match[str]) -> str:
        name = block.group(1)
        table = (results / "tables" / f"{name}.md").read_text()
        return f"<!-- table {name} -->\n{table}<!-- end {name} -->"

    return re.sub(r"<!-- table (\S+) -->\n.*?<!-- end \1 -->", renewed, readme, flags=re.DOTALL)


def main() -> None:
    """Write what was asked for and print it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--profile", help="Table 1 of this profile only: quick, cifar or paper")
    parser.add_argument("--results", type=Path, default=Path("results"), help="folder of the rows")
    arguments = parser.parse_args()
    results = arguments.results
    try:
        if arguments.profile:
            texts = [write_table1(grid.load(arguments.profile), results)]
        else:
            texts = write_all(results)
            readme = ROOT / "README.md"
            readme.write_text(with_tables(readme.read_text(), results))
    except ValueError as error:
        sys.exit(str(error))
    for text in texts:
        Console(width=170).print(Markdown(text))


if __name__ == "__main__":
    main()
