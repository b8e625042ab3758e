"""Execute the notebooks from top to bottom; the files themselves stay without outputs.

python scripts/run_notebooks.py                        # all of them
python scripts/run_notebooks.py 02_frequency_view      # one
"""

import argparse
import sys
import time
from pathlib import Path

import nbformat
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError

from experiments.provenance import ROOT

FOLDER = ROOT / "notebooks"
EXECUTED = ROOT / "outputs" / "notebooks"
SECONDS = 600  # for one cell


def names() -> list[str]:
    """Return the notebooks there are."""
    return sorted(path.stem for path in FOLDER.glob("*.ipynb"))


def execute(name: str, to: Path) -> Path:
    """Run a notebook and write a copy with its outputs."""
    notebook = nbformat.read(FOLDER / f"{name}.ipynb", as_version=4)
    where = {"metadata": {"path": str(FOLDER)}}
    NotebookClient(
        notebook,
        timeout=SECONDS,
        startup_timeout=SECONDS,
        kernel_name="python3",
        resources=where,
        extra_arguments=["--log-level=ERROR"],
    ).execute()
    to.mkdir(parents=True, exist_ok=True)
    nbformat.write(notebook, to / f"{name}.ipynb")
    return to / f"{name}.ipynb"


def main() -> None:
    """Run what was asked for; stop at the first cell that fails."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", help=f"default: {', '.join(names())}")
    parser.add_argument("--to", type=Path, default=EXECUTED, help="where copies with outputs go")
    arguments = parser.parse_args()
    unknown = sorted(set(arguments.names) - set(names()))
    if unknown:
        sys.exit(f"error: no notebook {unknown[0]!r}; choose from: {', '.join(names())}")
    for name in arguments.names or names():
        started = time.monotonic()
        try:
            path = execute(name, arguments.to)
        except CellExecutionError as error:
            sys.exit(f"error: {name} stopped:\n{error}")
        print(f"{name}: {time.monotonic() - started:.0f} s, {path}")


if __name__ == "__main__":
    main()
