"""A profile as a list of runs: every registered method x the profile's models x its seeds."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

import division
from experiments import benchmark, data, record, train
from experiments.config import FOLDER, compose_train
from experiments.data.files import DOWNLOADS
from experiments.provenance import commit

NOT_IN_TABLE = ("identity",)  # a check of the capture, no method of its own


@dataclass(frozen=True)
class Profile:
    """What a table is made of; see configs/profile/."""

    name: str
    scale: str
    dataset: str
    seeds: list[int]
    models: dict[str, list[str]]
    benchmark: dict[str, Any]


def names() -> list[str]:
    """Return the profiles there are."""
    return sorted(path.stem for path in (FOLDER / "profile").glob("*.yaml"))


def load(name: str) -> Profile:
    """Read a profile by name."""
    if name not in names():
        raise ValueError(f"unknown profile {name!r}; choose one of: {', '.join(names())}")
    path = FOLDER / "profile" / f"{name}.yaml"
    return Profile(**OmegaConf.to_container(OmegaConf.load(path)))


def methods() -> list[str]:
    """Return the methods of a table, vanilla first."""
    names = [name for name in division.methods() if name not in NOT_IN_TABLE]
    return sorted(names, key=lambda name: (name != "vanilla", name))


def runs(profile: Profile, chosen: list[str], extra: list[str]) -> Iterator[list[str]]:
    """Yield the overrides of every run; seeds turn slowest, so that a part is already a table."""
    for seed in profile.seeds:
        for model, overrides in profile.models.items():
            for method in chosen:
                yield [
                    f"method={method}",
                    f"model={model}",
                    f"dataset={profile.dataset}",
                    f"seed={seed}",
                    f"name={profile.name}",
                    f"scale={profile.scale}",
                    *overrides,
                    *extra,
                ]


def fetch(profile: Profile) -> None:
    """Get the profile's data where they can be had and are not there."""
    if profile.dataset in DOWNLOADS:
        data.download(profile.dataset)


def train_all(profile: Profile, chosen: list[str], extra: list[str]) -> list[str]:
    """Train every run that is not recorded yet; return what ended badly."""
    failed = []
    for overrides in runs(profile, chosen, extra):
        rows = train.run(compose_train(overrides))
        if rows and rows[-1].status != "ok":
            failed.append(f"{' '.join(overrides[:4])}: {rows[-1].status}")
    return failed


def benchmark_all(profile: Profile, chosen: list[str], results: Path) -> None:
    """Measure throughput and memory of all methods, for each model, unless that is recorded."""
    specs = {name: _method_options(name) for name in dict.fromkeys(["vanilla", *chosen])}
    for model in profile.models:
        settings: dict[str, Any] = {
            "experiment": f"{profile.name}-benchmark",
            "scale": profile.scale,
            "model": model,
            "methods": specs,
            **profile.benchmark,
        }
        config = OmegaConf.merge(OmegaConf.load(FOLDER / "benchmark.yaml"), {"methods": None})
        config = OmegaConf.merge(config, settings)
        config.pop("hydra")
        if benchmark.is_done(config, results):
            print(f"recorded already, skipped: benchmark of {model}")
            continue
        record.append(results, record.complete(benchmark.rows_of(config)))


def _method_options(name: str) -> dict[str, Any]:
    options = OmegaConf.to_container(compose_train([f"method={name}"]).method)
    return dict(options)


def describe(profile: Profile, chosen: list[str], extra: list[str]) -> str:
    """Say what would run."""
    lines = [f"# {profile.name}, scale {profile.scale}, commit {commit()[0][:10]}"]
    lines += [f"python -m experiments.train {' '.join(r)}" for r in runs(profile, chosen, extra)]
    lines += [f"# benchmark of {model}: {', '.join(chosen)}" for model in profile.models]
    return "\n".join(lines)
