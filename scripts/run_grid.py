"""Run a profile: every registered method x its models x its seeds, then the benchmarks.

What is recorded already with the same config and code is skipped, so that an interrupted grid
continues where it stopped.

    python scripts/run_grid.py --profile quick --dry-run
    python scripts/run_grid.py --profile cifar --methods vanilla division --models resnet20
    python scripts/run_grid.py --profile cifar --only benchmarks
"""

import argparse
import sys
from dataclasses import replace
from pathlib import Path

from experiments import grid
from experiments.config import one_sentence


def main() -> None:
    """Parse, check, run."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--profile", default="quick", help="quick, cifar or paper")
    parser.add_argument("--methods", nargs="+", help="default: all that are registered")
    parser.add_argument("--models", nargs="+", help="default: those of the profile")
    parser.add_argument("--seeds", nargs="+", type=int, help="default: those of the profile")
    parser.add_argument("--results", default="results", help="folder of the rows")
    parser.add_argument("--dry-run", action="store_true", help="print the runs, run nothing")
    parser.add_argument("--only", choices=("runs", "benchmarks"), help="default: both")
    parser.add_argument("overrides", nargs="*", help="settings for every run, as optim.epochs=1")
    arguments = parser.parse_args()
    with one_sentence():
        run(arguments)


def run(arguments: argparse.Namespace) -> None:
    """Run what was asked for."""
    profile = grid.load(arguments.profile)
    profile = replace(profile, seeds=arguments.seeds or profile.seeds)
    profile = grid.with_models(profile, arguments.models or list(profile.models))
    chosen = arguments.methods or grid.methods()
    unknown = sorted(set(chosen) - set(grid.methods()))
    if unknown:
        raise ValueError(f"unknown method {unknown[0]!r}; choose from: {', '.join(grid.methods())}")
    extra = [*arguments.overrides, f"paths.results={arguments.results}"]
    if arguments.dry_run:
        print(grid.describe(profile, chosen, extra))
        return
    grid.fetch(profile)
    failed = grid.train_all(profile, chosen, extra) if arguments.only != "benchmarks" else []
    if arguments.only != "runs":
        grid.benchmark_all(profile, chosen, Path(arguments.results))
    if failed:
        sys.exit("these runs did not end well, and their rows say so:\n" + "\n".join(failed))


if __name__ == "__main__":
    main()
