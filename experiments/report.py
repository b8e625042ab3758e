"""Tables from rows: `python -m experiments.report --profile quick`."""

import argparse
import sys
from pathlib import Path

from rich.console import Console
from rich.markdown import Markdown

from experiments import grid, record
from experiments.tables import render, table1


def write_table1(profile: grid.Profile, results: Path) -> str:
    """Write Table 1 of a profile from its rows; return it as Markdown."""
    trained = record.load(results, profile.name)
    benchmarked = record.load(results, f"{profile.name}-benchmark")
    shown = [r for r in trained if r.method in grid.methods()]
    frame = table1.frame(shown, benchmarked)
    stem = "table1" if profile.name == "table1-quick" else profile.name
    title = f"Table 1 ({profile.name.removeprefix('table1-')} profile)"
    return render.write(results / "tables", stem, frame, title, table1.notes(shown, benchmarked))


def main() -> None:
    """Write the table and print it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--profile", default="quick", help="quick, cifar or paper")
    parser.add_argument("--results", type=Path, default=Path("results"), help="folder of the rows")
    arguments = parser.parse_args()
    try:
        text = write_table1(grid.load(arguments.profile), arguments.results)
    except ValueError as error:
        sys.exit(str(error))
    Console(width=160).print(Markdown(text))


if __name__ == "__main__":
    main()
