"""Gradient errors: rows of every spec at every state, resumable, extensible."""

from pathlib import Path

import pytest
import torch

import division
from experiments import ablation, errors, record, spectrum, states
from experiments.config import check_overrides, compose_errors, compose_train, flatten
from experiments.states import settings as training_settings

SMALL = [
    "specs=[]",
    "+specs={division: {}, division-low: {name: division, keep: low}, actnn: {}}",
    "layers=[division]",
    "optim.epochs=1",
    "optim.batch=256",
    "at.early=1",
    "draws=2",
    "batches=2",
    "batch=8",
    "warmup=2",
    "progress=false",
]


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[str], Path]:
    folder = tmp_path_factory.mktemp("errors")
    overrides = [*SMALL, f"paths.results={folder}", f"paths.checkpoints={folder}"]
    assert errors.run(compose_errors(overrides)) == 3 * (3 + 2)
    return overrides, folder


def test_every_spec_is_measured_at_every_state(measured: tuple[list[str], Path]) -> None:
    rows = record.load(measured[1], "errors")
    totals = {(r.config["label"], r.config["at"]): r for r in rows if r.metric == "gradient_error"}
    assert len(totals) == 9
    assert {r.config["step"] for r in totals.values()} == {0, 1, 5}
    assert all(0.05 < r.value < 2 and r.n == 2 for r in totals.values())
    bits = {r.config["label"]: r.value for r in rows if r.metric == "bits_per_element"}
    assert bits["division-low"] < bits["division"] < 4
    layers = [r for r in rows if r.metric == "layer_error"]
    assert {r.config["label"] for r in layers} == {"division"}
    assert {"conv1", "fc"} < {r.config["layer"] for r in layers}
    assert len({r.config["layer"] for r in layers}) == 20


def test_the_states_have_noise_and_a_spectrum(measured: tuple[list[str], Path]) -> None:
    rows = record.load(measured[1], "errors")
    noise = [r.value for r in rows if r.metric == "batch_noise"]
    assert len(noise) == 3
    assert all(0 < value < 1.5 for value in noise)
    shares: dict[tuple[object, object], float] = {}
    for r in rows:
        if r.metric == "energy_share":
            key = r.config["at"], r.config["layer"]
            shares[key] = shares.get(key, 0.0) + r.value
    assert len(shares) == 3 * 19
    assert all(total == pytest.approx(1) for total in shares.values())


def test_what_is_recorded_is_skipped_and_a_new_spec_is_not(
    measured: tuple[list[str], Path], capsys: pytest.CaptureFixture[str]
) -> None:
    overrides, folder = measured
    assert errors.run(compose_errors(overrides)) == 0
    assert "recorded already, skipped" in capsys.readouterr().out
    before = [path.stat().st_mtime_ns for path in sorted((folder / "errors").iterdir())]
    assert errors.run(compose_errors([*overrides, "+specs.eight={name: division, bits: 8}"])) == 3
    after = [path.stat().st_mtime_ns for path in sorted((folder / "errors").iterdir())]
    assert before == after  # the trained states served again


def test_a_wrong_spec_or_state_is_one_sentence(tmp_path: Path) -> None:
    common = [*SMALL, f"paths.results={tmp_path}"]
    with pytest.raises(ValueError, match="unknown method 'nonsense'"):
        errors.run(compose_errors([*common, "+specs.nonsense={}"]))
    with pytest.raises(ValueError, match=r"at.early must be a step from 0 to 5, or -1; got 9"):
        errors.run(compose_errors([*common, "at.early=9"]))
    with pytest.raises(ValueError, match="layers names 'offload', which is no spec"):
        errors.run(compose_errors([*common, "layers=[offload]"]))
    with pytest.raises(SystemExit, match="there is no setting 'draw'; did you mean 'draws'"):
        check_overrides(["draw=3"], "errors")


def test_what_is_measured_at_a_state_does_not_change_the_training() -> None:
    plain, other = compose_errors([]), compose_errors(["draws=1", "batch=7", "at.early=3"])
    assert training_settings(plain) == training_settings(other)
    assert training_settings(plain) != training_settings(compose_errors(["optim.lr=0.2"]))
    assert states.steps(plain, errors.build.dataset(plain)) == {"start": 0, "early": 50, "end": 120}


def test_the_spectrum_of_known_patterns() -> None:
    columns = torch.arange(32)
    flat = torch.ones(1, 1, 32, 32)
    wave = torch.cos(2 * torch.pi * columns / 8).expand(1, 1, 32, 32)  # 1/8 cycles a pixel
    chess = ((columns[:, None] + columns) % 2 * 2.0 - 1).view(1, 1, 32, 32)
    for maps, band in ((flat, "mean"), (wave, "1/8"), (chess, "corner")):
        assert spectrum.shares(maps)[band] == pytest.approx(1)
    assert spectrum.low_share(flat, 8) == pytest.approx(1)
    assert spectrum.low_share(chess, 8) == pytest.approx(0)
    both = spectrum.low_share(flat + chess, 8)
    assert both == pytest.approx(0.5)


def test_every_run_of_every_ablation_composes_as_its_own() -> None:
    assert ablation.names() == ["cifar", "quick"]
    for name in ablation.names():
        chosen = ablation.load(name)
        configs = [compose_train(overrides) for _, overrides in ablation.runs(chosen, [])]
        assert len(configs) == len(chosen.seeds) * len(ablation.specs())
        hashes = {record.config_hash(flatten(config)) for config in configs}
        assert len(hashes) == len(configs)
        for config, (spec, _) in zip(configs, ablation.runs(chosen, []), strict=True):
            _, options = errors.build.options(config.method)
            division.method.resolve(config.method.name, **options)
            assert spec.options.items() <= options.items()
        assert {"division", "actnn", "lossy-all"} < set(ablation.errors_config(chosen, []).specs)
