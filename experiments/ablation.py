"""Table 5: train DIVISION with options changed, and measure its gradient errors.

What is recorded already, with the same config and code, is skipped.

    python -m experiments.ablation --profile quick --dry-run
"""

import argparse
import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from omegaconf import DictConfig, OmegaConf

from experiments import data, errors, train
from experiments.config import FOLDER, compose_errors, compose_train, one_sentence
from experiments.data.files import DOWNLOADS
from experiments.specs import Spec, specs_of

VANILLA = Spec("vanilla", "vanilla", {})


@dataclass(frozen=True)
class Ablation:
    """What Table 5 is made of; see configs/ablation/."""

    name: str
    scale: str
    seeds: list[int]
    network: list[str]  # settings of everything: model, data, optimizer
    train: list[str]  # further settings of the runs
    errors: list[str]  # further settings of the training whose gradients are compared


def names() -> list[str]:
    """Return the profiles there are."""
    return sorted(path.stem for path in (FOLDER / "ablation").glob("*.yaml"))


def load(name: str) -> Ablation:
    """Read a profile by name."""
    if name not in names():
        raise ValueError(f"unknown profile {name!r}; choose one of: {', '.join(names())}")
    path = FOLDER / "ablation" / f"{name}.yaml"
    return Ablation(**OmegaConf.to_container(OmegaConf.load(path)))


def errors_config(ablation: Ablation, extra: list[str]) -> DictConfig:
    """Compose the measurement of the gradient errors, the rivals' too: figures show both."""
    chosen = [*ablation.network, *ablation.errors, f"scale={ablation.scale}", *extra]
    return compose_errors(chosen)


def specs() -> list[Spec]:
    """Return the lines of the table, vanilla first."""
    return [VANILLA, *specs_of(compose_errors(["specs=[ablation, recompute]", "layers=[]"]))]


def runs(ablation: Ablation, extra: list[str]) -> Iterator[tuple[Spec, list[str]]]:
    """Yield every run and its overrides; seeds turn slowest, so that a part is already a table."""
    for seed in ablation.seeds:
        for spec in specs():
            own = [f"++method.{key}={json.dumps(value)}" for key, value in spec.options.items()]
            rest = [f"seed={seed}", f"name={ablation.name}", f"scale={ablation.scale}"]
            chosen = [f"method={spec.method}", *own, *ablation.network, *ablation.train]
            yield spec, [*chosen, *rest, *extra]


def fetch(ablation: Ablation) -> None:
    """Get the data where they can be had and are not there."""
    name = compose_train(ablation.network).dataset.name
    if name in DOWNLOADS:
        data.download(name)


def train_all(ablation: Ablation, extra: list[str]) -> list[str]:
    """Train every run that is not recorded yet; return what ended badly."""
    failed = []
    for spec, overrides in runs(ablation, extra):
        rows = train.run(compose_train(overrides))
        if rows and rows[-1].status != "ok":
            failed.append(f"{spec.label}: {rows[-1].status}")
    return failed


def main() -> None:
    """Measure the errors, then train."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--profile", default="quick", help=f"{' or '.join(names())}")
    parser.add_argument("--results", type=Path, default=Path("results"), help="folder of the rows")
    parser.add_argument("--dry-run", action="store_true", help="print the runs, run nothing")
    parser.add_argument("overrides", nargs="*", help="settings for every run, as optim.epochs=1")
    arguments = parser.parse_args()
    with one_sentence():
        ablation = load(arguments.profile)
        extra = [*arguments.overrides, f"paths.results={arguments.results}"]
        if arguments.dry_run:
            for _, overrides in runs(ablation, extra):
                print(f"python -m experiments.train {' '.join(overrides)}")
            return
        fetch(ablation)
        errors.run(errors_config(ablation, extra))
        failed = train_all(ablation, extra)
    if failed:
        sys.exit("these runs did not end well, and their rows say so:\n" + "\n".join(failed))


if __name__ == "__main__":
    main()
