"""What runs on a GPU, as far as it can be tested without one."""

import json
from collections.abc import Iterator

import pytest
import torch
from omegaconf import OmegaConf
from test_benchmark import config as benchmark_config
from torch import Tensor

from experiments import benchmark, device, peak, train
from experiments.config import FOLDER, compose_train


class Card:
    """Stands for a GPU: notes what it is asked for, in order."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.now = 0.0

    def note(self, name: str, value: object = None):
        def call(*arguments: object, **options: object) -> object:
            self.calls.append(name)
            return value

        return call


@pytest.fixture
def card(monkeypatch: pytest.MonkeyPatch) -> Card:
    card = Card()

    class Event:
        def __init__(self, enable_timing: bool) -> None:
            assert enable_timing

        def record(self) -> None:
            card.calls.append("record")
            self.at = card.now

        def elapsed_time(self, end: "Event") -> float:
            return end.at - self.at  # milliseconds

    monkeypatch.setattr(torch.cuda, "Event", Event)
    for name, value in {
        "synchronize": None,
        "empty_cache": None,
        "reset_peak_memory_stats": None,
        "memory_allocated": 1000,
        "max_memory_allocated": 5000,
        "max_memory_reserved": 8000,
    }.items():
        monkeypatch.setattr(torch.cuda, name, card.note(name, value))
    return card


def test_time_is_that_of_events_around_the_task(card: Card) -> None:
    def task() -> None:
        card.calls.append("task")
        card.now += 250.0

    assert device.gpu_seconds(task) == 0.25
    assert card.calls == ["synchronize", "record", "task", "record", "synchronize"]


def test_memory_is_that_of_the_counters(card: Card) -> None:
    assert device.peaks("cuda") == {"gpu_allocated_bytes": 5000, "gpu_reserved_bytes": 8000}
    assert device.peaks("cpu") == {}
    card.calls.clear()
    found = peak._gpu_peaks(lambda: card.calls.append("step"))
    assert found == {"peak": 4000, "gpu_allocated": 5000, "gpu_reserved": 8000}
    order = [name for name in card.calls if name in ("reset_peak_memory_stats", "step")]
    assert order == ["reset_peak_memory_stats", "step"]
    assert card.calls.index("memory_allocated") < card.calls.index("step")
    assert card.calls.index("step") < card.calls.index("max_memory_allocated")


def test_a_batch_is_under_way_before_the_last_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    events: list[str] = []

    def to_device(x: Tensor, kind: str, channels_last: bool = False) -> Tensor:
        if x.dim() == 4:
            events.append(f"copy {int(x.sum())}")
        return x

    def made() -> Iterator[tuple[Tensor, Tensor]]:
        for number in range(3):
            yield torch.full((1, 1, 1, 1), float(number)), torch.tensor([number])

    monkeypatch.setattr(device, "to_device", to_device)
    labels = []
    for x, y in device.on_device(made(), "cuda", True):
        assert int(x.sum()) == int(y)
        labels.append(int(y))
        events.append(f"use {int(y)}")
    assert labels == [0, 1, 2]
    assert events == ["copy 0", "copy 1", "use 0", "copy 2", "use 1", "use 2"]
    assert list(device.on_device([], "cuda", True)) == []


def test_a_copy_to_a_gpu_is_pinned_and_does_not_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[object] = []
    real = Tensor.to

    def to(self: Tensor, kind: str, non_blocking: bool = False) -> Tensor:
        asked.append((kind, non_blocking))
        return real(self, "cpu")

    monkeypatch.setattr(Tensor, "to", to)
    monkeypatch.setattr(Tensor, "pin_memory", lambda self: asked.append("pin") or self)
    x = device.to_device(torch.randn(2, 3, 4, 4), "cuda", channels_last=True)
    assert x.is_contiguous(memory_format=torch.channels_last)
    assert asked == ["pin", ("cuda", True)]
    asked.clear()
    device.to_device(torch.randn(2, 3, 4, 4), "cpu")
    assert asked == [("cpu", False)]


def test_a_gpu_that_is_not_there_is_named_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    loaded = OmegaConf.load(FOLDER / "benchmark_gpu.yaml")
    with pytest.raises(ValueError, match="device is cuda, but torch finds no GPU here"):
        benchmark.rows_of(loaded)
    with pytest.raises(ValueError, match=r"hardware.device is cuda, but torch finds no GPU here"):
        train.run(compose_train(["hardware=gpu"]))
    with pytest.raises(ValueError, match="device must be cpu or cuda; got 'tpu'"):
        device.check_device("device", "tpu")


def test_a_step_in_another_precision_and_layout_is_measured() -> None:
    """What a GPU is asked for, on the CPU: only the device differs."""
    settings = benchmark_config(
        amp="bfloat16", channels_last=False, peak_batch=4, peak_default=False, rounds=1
    )
    settings.methods = {"vanilla": {}, "division": {}}
    rows = benchmark.rows_of(settings)
    metrics = {row.metric for row in rows}
    assert {"throughput", "throughput_ratio", "peak_bytes", "saved_bytes"} <= metrics
    assert all(row.config["amp"] == "bfloat16" for row in rows)
    title = str(benchmark.table_of(rows, settings).title)
    assert "nchw, bfloat16" in title
    full = peak.measure_step({"name": "resnet20"}, {"name": "vanilla"}, 4, 16)
    stock = next(r.value for r in rows if r.metric == "original_bytes" and r.method == "vanilla")
    assert full["original"] / 2 <= stock < full["original"]


def test_the_place_is_handed_to_the_process_of_a_step(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[list[str]] = []

    class Done:
        returncode, stdout, stderr = 0, '{"peak": 1}', ""

    monkeypatch.setattr(peak.subprocess, "run", lambda line, **_: seen.append(line) or Done())
    peak.measure_step({"name": "a"}, {"name": "b"}, 2, 8, {"device": "cuda", "amp": "float16"})
    assert json.loads(seen[0][-1]) == {"device": "cuda", "amp": "float16"}
