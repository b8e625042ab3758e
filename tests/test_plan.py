"""The planner's command: any model by its name, a table, files on request, errors in a sentence."""

import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest
from rich.console import Console

import division
from experiments import plan
from experiments.config import check_overrides, compose_plan
from experiments.provenance import ROOT

SMALL = ["model=resnet20", "image=32", "classes=10", "batch=8", "budget=200MiB"]
FEW = "only=[vanilla,division,lossy]"


def test_every_method_and_the_published_division_are_in_the_plan() -> None:
    names = {name for _, name, _ in plan.specs(compose_plan([]))}
    assert names == {*division.methods()} - {"identity"}
    found = {label: options for label, _, options in plan.specs(compose_plan([]))}
    assert found["division-published"]["align"] == "reference"
    assert found["lossy"] == {}  # a ratio that is not given is no option


def test_the_plan_is_the_library_s(tmp_path: Path) -> None:
    config = compose_plan([*SMALL, FEW, "dtype=bfloat16", "optimizer=adam"])
    found = plan.plan_of(config)
    assert list(found) == ["vanilla", "division", "lossy"]
    text = Console(width=120)
    with text.capture() as captured:
        text.print(plan.table_of(found))
    shown = captured.get()
    assert "CifarResNet, batch 8 of 3x32x32, bfloat16, adam" in shown
    assert str(found["division"].max_batch) in shown
    assert "lossy: the sizes of codec 'lossy' depend on the data" in shown
    frame = plan.frame_of(found, config)
    frame.to_csv(tmp_path / "plan.csv", index=False)
    again = pd.read_csv(tmp_path / "plan.csv", dtype=str).set_index("label")
    assert again["saved"]["division"] == str(found["division"].saved_bytes)
    assert again["max_batch"]["vanilla"] == str(found["vanilla"].max_batch)
    assert pd.isna(again["saved"]["lossy"])


def test_a_measured_ratio_is_taken() -> None:
    config = compose_plan([*SMALL, "only=[lossy]", "methods.lossy.assumed_ratio=4"])
    assert plan.plan_of(config)["lossy"].note == "sizes depend on the data: assumed_ratio=4"


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["budget=24"], "a size is a number with B, KiB.*got '24'"),
        (["budget=1MiB"], "no batch of resnet20 fits under any of these methods: weights, grad"),
        (["dtype=int8"], "dtype must be one of float32, bfloat16, float16, float64; got 'int8'"),
        (["optimizer=lion"], "optimizer must be one of 'sgd', 'momentum', 'adam'; got 'lion'"),
        (["batch=0"], "batch must be a whole number >= 1; got 0"),
        (["batch=many"], "batch must be a whole number >= 1; got 'many'"),
        (["image=0"], "image must be a whole number >= 1; got 0"),
        (["only=[vanila]"], "only=vanila is none of the methods: vanilla, division"),
        (["+methods.x={name: divison}", "only=[x]"], "unknown method 'divison'"),
        (["~model", "+model.name=resnet51"], "unknown model 'resnet51'; did you mean resnet51q"),
    ],
)
def test_bad_input_is_one_sentence(overrides: list[str], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        plan.plan_of(compose_plan([*SMALL, FEW, *overrides]))


@pytest.mark.parametrize(
    ("setting", "message"),
    [("csv=nowhere/plan.csv", "no folder nowhere"), ("plot=plan.gif", r"ends in \.png, \.pdf")],
)
def test_files_that_cannot_be_written_are_told_first(setting: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        plan.check_paths(compose_plan([setting]))


def test_names_without_a_config_are_taken_too() -> None:
    assert plan.with_any_model(["model=resnet50", "image=64"]) == ["model=resnet50", "image=64"]
    assert plan.with_any_model(["model=convnext_tiny"]) == ["~model", "+model.name=convnext_tiny"]


def test_a_typo_names_the_nearest_setting() -> None:
    with pytest.raises(SystemExit, match="there is no setting 'budgets'; did you mean 'budget'"):
        check_overrides(["budgets=3GiB"], "plan")
    check_overrides(["model=vit_tiny", "model.patch=16", "image=224"], "plan")


def test_the_command(tmp_path: Path) -> None:
    settings = ["model=mobilenetv3_small_050", "image=32", "budget=100MiB", "batch=4"]
    files = [f"csv={tmp_path / 'plan.csv'}", f"plot={tmp_path / 'plan.png'}"]
    command = [sys.executable, "-m", "experiments.plan", *settings, *files, FEW]
    done = subprocess.run(
        [*command, f"hydra.run.dir={tmp_path}"], cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert "largest batch in" in done.stdout
    assert len(pd.read_csv(tmp_path / "plan.csv")) == 3
    assert (tmp_path / "plan.png").stat().st_size > 10_000


def test_help_shows_how() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "experiments.plan", "--help"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    assert "python -m experiments.plan model=resnet50 image=224 budget=24GiB" in done.stdout
    assert "assumed_ratio" in done.stdout
