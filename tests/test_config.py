"""Configs: everything composes, typos name the nearest setting, sweeps have readable paths."""

import subprocess
import sys
from pathlib import Path

import pytest

import division
from experiments import data, grid, models
from experiments.config import FOLDER, check_overrides, compose_train, flatten
from experiments.provenance import ROOT
from experiments.record import config_hash

GROUPS = ("method", "model", "dataset", "optim", "hardware", "logger")
CHOICES = [
    (group, path.stem) for group in GROUPS for path in sorted((FOLDER / group).glob("*.yaml"))
]


def test_all_groups_were_found() -> None:
    assert len(CHOICES) >= 30
    assert {group for group, _ in CHOICES} == set(GROUPS)


@pytest.mark.parametrize(("group", "choice"), CHOICES)
def test_every_choice_composes(group: str, choice: str) -> None:
    config = compose_train([f"{group}={choice}"])
    if group in ("method", "model", "dataset"):
        assert config[group].name == choice


def test_every_method_model_and_dataset_has_a_config() -> None:
    stems = {group: {choice for g, choice in CHOICES if g == group} for group in GROUPS}
    assert stems["method"] == set(division.methods())
    assert stems["model"] == set(models.names())
    assert stems["dataset"] == set(data.names())


@pytest.mark.parametrize("method", division.methods())
def test_method_configs_name_real_options(method: str) -> None:
    options = {k: v for k, v in compose_train([f"method={method}"]).method.items() if k != "name"}
    resolved = division.method.resolve(method, **options)
    for name, value in options.items():
        assert getattr(resolved, name) == value


@pytest.mark.parametrize("name", [p.stem for p in (FOLDER / "profile").glob("*.yaml")])
def test_every_run_of_every_profile_composes(name: str) -> None:
    profile = grid.load(name)
    runs = list(grid.runs(profile, grid.methods(), []))
    assert len(runs) == len(profile.seeds) * len(profile.models) * len(grid.methods())
    hashes = {config_hash(flatten(compose_train(run))) for run in runs}
    assert len(hashes) == len(runs)


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("optim.epoch=3", "there is no setting 'optim.epoch'; did you mean 'optim.epochs'?"),
        ("metod=division", "there is no setting 'metod'; did you mean 'method'?"),
        ("method.bit=3", "there is no setting 'method.bit'; did you mean 'method.bits'?"),
    ],
)
def test_a_typo_names_the_nearest_setting(override: str, message: str) -> None:
    with pytest.raises(SystemExit) as stop:
        check_overrides([override])
    assert str(stop.value) == message


def test_a_typo_in_a_benchmark_is_named_too() -> None:
    with pytest.raises(SystemExit, match=r"no setting 'batchs'; did you mean '.*batch'"):
        check_overrides(["batchs=3"], "benchmark")
    check_overrides(["network.name=resnet50", "image=224", "batch=16"], "benchmark")


def test_the_benchmark_of_a_profile_is_of_the_network_that_it_trains() -> None:
    profile = grid.load("quick")
    config = grid.benchmark_config(profile, "vit_micro", profile.models["vit_micro"], ["division"])
    assert config.network == {"name": "vit_micro", "patch": 8, "global_pool": "avg"}
    assert config.batch == config.peak_batch == 32
    assert set(config.methods) == {"vanilla", "division"}
    paper = grid.load("paper")
    config = grid.benchmark_config(paper, "resnet18", paper.models["resnet18"], ["division"])
    assert (config.device, config.amp, config.channels_last) == ("cuda", "none", True)


def test_settings_of_the_benchmark_on_a_gpu() -> None:
    check_overrides(["batch=256", "amp=bfloat16"], "benchmark_gpu")
    with pytest.raises(SystemExit, match="no setting 'amps'; did you mean 'amp'"):
        check_overrides(["amps=bfloat16"], "benchmark_gpu")


def test_experiments_compose() -> None:
    config = compose_train(["experiment=division_published"])
    assert (config.method.align, config.method.share, config.method.bits) == ("reference", False, 2)


def test_right_settings_pass() -> None:
    check_overrides(["-m", "method=division,vanilla", "seed=0,1", "optim.lr=0.1", "method.bits=2"])


def test_what_does_not_change_a_result_is_not_in_the_hash() -> None:
    usual = flatten(compose_train([]))
    moved = flatten(compose_train(["paths.results=x", "progress=false", "logger=wandb"]))
    assert usual == moved
    assert usual != flatten(compose_train(["seed=1"]))


@pytest.mark.slow
def test_a_multirun_leaves_readable_folders_and_no_double_rows(tmp_path: Path) -> None:
    command = [
        sys.executable,
        "-m",
        "experiments.train",
        "-m",
        "method=division,vanilla",
        "model=resnet20,vit_micro",
        "seed=0,1",
        "dataset=synthetic",
        "dataset.train_images=32",
        "dataset.test_images=16",
        "optim=adamw",
        "optim.batch=16",
        "optim.epochs=1",
        f"paths.results={tmp_path}/results",
        f"paths.checkpoints={tmp_path}/checkpoints",
        f"hydra.sweep.dir={tmp_path}/sweep",
    ]
    for _ in range(2):
        subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    rows = (tmp_path / "results" / "runs" / "train.jsonl").read_text().splitlines()
    assert sum('"final_top1"' in row for row in rows) == 8
    folders = {
        str(p.parent.relative_to(tmp_path / "sweep")) for p in tmp_path.glob("sweep/**/*.log")
    }
    wanted = {
        f"{method}/{model}/synthetic/seed={seed}"
        for method in ("division", "vanilla")
        for model in ("resnet20", "vit_micro")
        for seed in (0, 1)
    }
    assert folders == wanted


def test_a_profile_with_some_of_its_models() -> None:
    profile = grid.load("cifar")
    assert list(grid.with_models(profile, ["vit_micro"]).models) == ["vit_micro"]
    with pytest.raises(ValueError, match="table1-cifar has no model 'vit'; choose from: resnet20"):
        grid.with_models(profile, ["vit"])
