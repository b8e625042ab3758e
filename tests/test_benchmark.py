"""The benchmark: measures what it is asked for, and says what it was asked wrongly."""

from pathlib import Path

import pytest
from omegaconf import OmegaConf

from experiments import benchmark, record
from experiments.config import FOLDER


def config(**changes: object):
    loaded = OmegaConf.load(FOLDER / "benchmark.yaml")
    loaded.pop("hydra")
    settings = {"network": {"name": "resnet20"}, "image": 16, "batch": 4, "peak_batch": 0}
    return OmegaConf.merge(loaded, settings, {"rounds": 2, "warmup": 0}, changes)


def test_every_method_is_measured_in_every_round_and_recorded_once(tmp_path: Path) -> None:
    settings = config()
    assert {"vanilla", "division", "actnn", "pooling", "lossy"} <= set(settings.methods)
    rows = record.complete(benchmark.rows_of(settings))
    assert {r.config["label"] for r in rows} == set(settings.methods)
    ratios = {r.config["label"]: r for r in rows if r.metric == "throughput_ratio"}
    assert ratios["vanilla"].value == 1.0
    assert ratios["division"].value > 0
    assert ratios["division-published"].options == {
        "bits": 2,
        "align": "reference",
        "share": False,
        "fine_bits": 2,
    }
    assert not benchmark.is_done(settings, tmp_path)
    record.append(tmp_path, rows)
    assert benchmark.is_done(settings, tmp_path)
    assert not benchmark.is_done(config(batch=8), tmp_path)
    assert benchmark.table_of(rows, settings).row_count == len(settings.methods)


def test_a_ratio_needs_its_base() -> None:
    settings = config()
    settings.methods.pop("vanilla")
    with pytest.raises(ValueError, match="methods must contain vanilla"):
        benchmark.rows_of(settings)


def test_an_unknown_method_is_named() -> None:
    with pytest.raises(ValueError, match="unknown method 'divison'"):
        benchmark.rows_of(config(methods={"divison": {}}))
