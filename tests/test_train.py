"""Training: resumable bit for bit, honest about bad ends, skipped when done."""

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from experiments import build, checkpoint, record, train
from experiments.config import compose_train
from experiments.loop import Trainer
from experiments.provenance import ROOT

SMALL = [
    "dataset=synthetic",
    "dataset.image_size=16",
    "dataset.train_images=96",
    "dataset.test_images=32",
    "optim.batch=16",
    "optim.epochs=3",
    "progress=false",
]


def settings(folder: Path, *overrides: str) -> list[str]:
    paths = [f"paths.results={folder}/results", f"paths.checkpoints={folder}/checkpoints"]
    return [*SMALL, *paths, *overrides]


def final_state(folder: Path) -> dict:
    (path,) = (folder / "checkpoints" / "train").glob("*.pt")
    return checkpoint.load(path)


def assert_same_state(one: dict, other: dict) -> None:
    assert one["epoch"] == other["epoch"]
    assert one["method"] == other["method"]
    for name, value in one["model"].items():
        assert torch.equal(value, other["model"][name]), name
    for a, b in zip(
        one["optimizer"]["state"].values(), other["optimizer"]["state"].values(), strict=True
    ):
        assert torch.equal(a["momentum_buffer"], b["momentum_buffer"])


@pytest.mark.parametrize("method", ["vanilla", "division"])
def test_an_interrupted_run_ends_with_the_same_weights(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    extra = (f"method={method}", "optim.ema=0.9", "optim.accumulate=2")
    train.run(compose_train(settings(tmp_path / "whole", *extra)))
    steps = 0
    real = Trainer._step

    def failing(self: Trainer, *arguments: object) -> float:
        nonlocal steps
        steps += 1
        if steps == 9:  # in the middle of the second epoch
            raise KeyboardInterrupt
        return real(self, *arguments)

    monkeypatch.setattr(Trainer, "_step", failing)
    config = compose_train(settings(tmp_path / "cut", *extra))
    with pytest.raises(KeyboardInterrupt):
        train.run(config)
    torch.manual_seed(99)  # whatever happened in between must not matter
    train.run(config)
    assert steps == 6 + 3 + 12
    assert_same_state(final_state(tmp_path / "whole"), final_state(tmp_path / "cut"))


@pytest.mark.slow
def test_a_killed_process_ends_with_the_same_weights(tmp_path: Path) -> None:
    def start(folder: Path) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "experiments.train", *settings(folder, "optim.epochs=6")]
        return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL)

    assert start(tmp_path / "whole").wait() == 0
    process = start(tmp_path / "cut")
    folder = tmp_path / "cut" / "checkpoints" / "train"
    while not list(folder.glob("*.pt")):
        assert process.poll() is None
        time.sleep(0.01)
    time.sleep(random.uniform(0, 0.5))
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    assert start(tmp_path / "cut").wait() == 0
    assert_same_state(final_state(tmp_path / "whole"), final_state(tmp_path / "cut"))


def test_rows_of_a_run_and_skipping(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = compose_train(settings(tmp_path, "optim.epochs=2"))
    rows = train.run(config)
    stored = record.load(tmp_path / "results", "train")
    assert stored == rows
    by_metric = {row.metric: row for row in rows}
    assert by_metric["original_bytes"].value > 4 * by_metric["saved_bytes"].value
    assert [row.epoch for row in rows if row.metric == "top1"] == [1, 2]
    assert by_metric["final_top1"].value == by_metric["top1"].value
    assert by_metric["final_top1"].options["block"] == 8
    assert 0 < by_metric["loading_share"].value < 1
    assert train.run(config) == []
    assert "recorded already" in capsys.readouterr().out
    config.force = True
    config.resume = "never"
    assert len(train.run(config)) == len(rows)
    config.optim.lr = 0.3
    assert train.run(config) != []


def test_divergence_is_a_row_and_an_error(tmp_path: Path) -> None:
    rows = train.run(compose_train(settings(tmp_path, "method=vanilla", "optim.lr=1e30")))
    assert rows[-1].status == "diverged"
    assert rows[-1].value is None
    assert record.load(tmp_path / "results", "train")[-1].status == "diverged"


@pytest.mark.parametrize("where", ["_step", "to_device"])  # in the loop, and before it
@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("no memory left"),
        MemoryError(),
        RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate"),
    ],
    ids=["gpu", "python", "cpu"],
)
def test_out_of_memory_is_a_row(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: BaseException, where: str
) -> None:
    def full(self: Trainer, *arguments: object) -> float:
        raise error

    monkeypatch.setattr(Trainer, where, full)
    rows = train.run(compose_train(settings(tmp_path)))
    assert rows[-1].status == "oom"
    assert rows[-1].value is None


def test_an_incomplete_group_of_batches_counts_as_a_whole_step(tmp_path: Path) -> None:
    """Six batches in groups of four: the last two are averaged over two, not over four."""
    config = compose_train(settings(tmp_path, "optim.accumulate=4", "method=vanilla"))
    data = build.dataset(config)
    trainer = train._trainer(config, build.model(config, data), data, {}, config.optim.batch)
    groups: list[int] = []
    trainer._step = lambda x, y, group, update: groups.append(group) or 0.0
    trainer._train_epoch(lambda loss: None)
    assert groups == [4, 4, 4, 4, 2, 2]


def test_mixed_precision_is_accounted_as_such(tmp_path: Path) -> None:
    sizes = []
    for amp in ("none", "bfloat16"):
        config = compose_train(settings(tmp_path, "optim.epochs=1", f"optim.amp={amp}"))
        rows = {row.metric: row.value for row in train.run(config)}
        sizes.append(rows["original_bytes"])
    assert sizes[1] < 0.7 * sizes[0]


@pytest.mark.parametrize("amp", ["bfloat16", "float16"])
def test_mixed_precision_trains(tmp_path: Path, amp: str) -> None:
    rows = train.run(compose_train(settings(tmp_path, f"optim.amp={amp}", "optim.lr=0.05")))
    losses = [row.value for row in rows if row.metric == "loss"]
    assert rows[-1].status == "ok"
    assert all(loss < 5 for loss in losses)
    assert rows[-1].config["optim.amp"] == amp


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("optim.batch=1000", "optim.batch 1000 is larger than the training set of synthetic"),
        ("optim.epochs=0", "optim.epochs must be at least 1; got 0"),
        ("optim.accumulate=0", "optim.accumulate must be at least 1; got 0"),
        ("optim.warmup=-1", "optim.warmup must be in"),
        ("hardware.device=foo", "hardware.device must be cpu or cuda; got 'foo'"),
        ("optim.name=lion", "optim.name must be one of sgd, adamw; got 'lion'"),
        ("optim.schedule=step", "optim.schedule must be one of .*; got 'step'"),
        ("optim.amp=int8", "optim.amp must be one of .*; got 'int8'"),
        ("method.bits=9", "bits must be a whole number from 1 to 8; got 9"),
        ("resume=maybe", "resume must be auto or never; got 'maybe'"),
        ("logger.mode=loud", "logger.mode must be one of .*; got 'loud'"),
    ],
)
def test_bad_settings_are_named(tmp_path: Path, override: str, message: str) -> None:
    config = compose_train(settings(tmp_path, override))
    with pytest.raises(ValueError, match=message):
        train.run(config)


def test_a_damaged_checkpoint_is_refused_before_it_is_read(tmp_path: Path) -> None:
    path = tmp_path / "state.pt"
    checkpoint.save(path, {"weights": torch.arange(5)})
    assert torch.equal(checkpoint.load(path)["weights"], torch.arange(5))
    content = path.read_bytes()
    for damaged in (content[:-7], content[:40], b"", content[:200] + b"x" + content[201:]):
        path.write_bytes(damaged)
        with pytest.raises(ValueError, match=r"state\.pt is damaged .* delete it"):
            checkpoint.load(path)


def test_a_checkpoint_cannot_carry_code(tmp_path: Path) -> None:
    path = tmp_path / "state.pt"
    checkpoint.save(path, {"attack": Path("x")})
    with pytest.raises(Exception, match="weights_only"):
        checkpoint.load(path)
