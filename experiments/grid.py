"""A profile as a list of runs: every registered method x the profile's models x its seeds."""

import functools
import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from omegaconf import DictConfig, OmegaConf

import division
from experiments import benchmark, data, record, train
from experiments.config import FOLDER, compose_train, flatten
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
    rounds: int


def names() -> list[str]:
    """Return the profiles there are."""
    return sorted(path.stem for path in (FOLDER / "profile").glob("*.yaml"))


def load(name: str) -> Profile:
    """Read a profile by name."""
    if name not in names():
        raise ValueError(f"unknown profile {name!r}; choose one of: {', '.join(names())}")
    path = FOLDER / "profile" / f"{name}.yaml"
    return Profile(**OmegaConf.to_container(OmegaConf.load(path)))


def with_models(profile: Profile, models: list[str]) -> Profile:
    """Return a profile with some of its models only."""
    unknown = [model for model in models if model not in profile.models]
    if unknown:
        known = ", ".join(profile.models)
        raise ValueError(f"{profile.name} has no model {unknown[0]!r}; choose from: {known}")
    return replace(profile, models={model: profile.models[model] for model in models})


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
                    *_method_overrides(method),
                    f"model={model}",
                    f"dataset={profile.dataset}",
                    f"seed={seed}",
                    f"name={profile.name}",
                    f"scale={profile.scale}",
                    *overrides,
                    *extra,
                ]


def config_hashes(profile: Profile) -> frozenset[str]:
    """Return the hashes by which the rows of a profile's runs are known."""
    return _config_hashes(json.dumps(asdict(profile)))


@functools.cache  # composing takes a tenth of a second a run
def _config_hashes(profile: str) -> frozenset[str]:
    configs = map(compose_train, runs(Profile(**json.loads(profile)), methods(), []))
    return frozenset(record.config_hash(flatten(config)) for config in configs)


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
            failed.append(f"{' '.join(overrides)}: {rows[-1].status}")
    return failed


def benchmark_all(profile: Profile, chosen: list[str], results: Path) -> None:
    """Measure throughput and memory of all methods, for each model, unless that is recorded."""
    for model, overrides in profile.models.items():
        config = benchmark_config(profile, model, overrides, chosen)
        if benchmark.is_done(config, results):
            print(f"recorded already, skipped: benchmark of {model}")
        else:
            record.append(results, record.complete(benchmark.rows_of(config)))


def benchmark_config(
    profile: Profile, model: str, overrides: list[str], chosen: list[str]
) -> DictConfig:
    """Return the benchmark of the very network, batch and device that the profile trains on."""
    training = compose_train([f"model={model}", f"dataset={profile.dataset}", *overrides])
    specs = {
        name: OmegaConf.to_container(compose_train(_method_overrides(name)).method)
        for name in dict.fromkeys(["vanilla", *chosen])
    }
    config = OmegaConf.load(FOLDER / "benchmark.yaml")
    for replaced in ("hydra", "methods", "network"):
        config.pop(replaced)
    settings = {
        "experiment": f"{profile.name}-benchmark",
        "scale": profile.scale,
        "network": OmegaConf.to_container(training.model),
        "image": training.dataset.image_size,
        "methods": specs,
        "rounds": profile.rounds,
        "batch": training.optim.batch,
        "peak_batch": training.optim.batch,
        "peak_default": False,
    }
    if training.hardware.device != "cpu":
        settings["device"] = training.hardware.device
        settings["amp"] = training.optim.amp
        settings["channels_last"] = training.hardware.channels_last
    merged = OmegaConf.merge(config, settings)
    assert isinstance(merged, DictConfig)
    return merged


def _method_overrides(name: str) -> list[str]:
    """Choose a method's config, or its own defaults where it has none."""
    if (FOLDER / "method" / f"{name}.yaml").exists():
        return [f"method={name}"]
    return ["method=vanilla", f"method.name={name}"]


def describe(profile: Profile, chosen: list[str], extra: list[str]) -> str:
    """Say what would run."""
    lines = [f"# {profile.name}, scale {profile.scale}, commit {commit()[0][:10]}"]
    lines += [f"python -m experiments.train {' '.join(r)}" for r in runs(profile, chosen, extra)]
    lines += [f"# benchmark of {model}: {', '.join(chosen)}" for model in profile.models]
    return "\n".join(lines)
