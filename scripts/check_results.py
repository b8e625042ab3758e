"""Check the recorded results: every row readable, no table stale; count what was run again.

python scripts/check_results.py            # exit code 1 and a list if something is wrong
"""

import argparse
import shutil
import sys
import tempfile
from collections import Counter
from pathlib import Path

from experiments import grid, record, report


def problems_of_rows(results: Path) -> list[str]:
    """Name files that cannot be read; print what the others hold."""
    found = []
    for path in sorted((results / "runs").glob("*.jsonl")):
        try:
            rows = record.load(results, path.stem)
        except (TypeError, ValueError) as error:
            found.append(str(error))
            continue
        ends = Counter((r.config_hash, r.code) for r in rows if r.metric == "final_top1")
        again = sum(count - 1 for count in ends.values())
        dirty = sum(row.dirty for row in rows)
        print(f"{path}: {len(rows)} rows, {dirty} with uncommitted changes, {again} runs repeated")
    return found


def problems_of_tables(results: Path) -> list[str]:
    """Name tables that are not what the rows give."""
    found = []
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / "results"
        shutil.copytree(results, copy)
        report.write_all(copy)
        for path in sorted((copy / "tables").iterdir()):
            there = results / "tables" / path.name
            if not there.exists() or there.read_bytes() != path.read_bytes():
                found.append(f"{there} is stale; `make report` renews it")
    return found


def main() -> None:
    """Check, and say what is wrong."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--results", type=Path, default=Path("results"), help="folder of the rows")
    results = parser.parse_args().results
    found = problems_of_rows(results)
    found += [] if found else problems_of_tables(results)
    if found:
        sys.exit("\n".join(found))
    print(f"profiles: {', '.join(grid.names())}; all tables are those of the rows")


if __name__ == "__main__":
    main()
