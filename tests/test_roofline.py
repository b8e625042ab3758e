"""The roofline: what it counts is what is known, and a prediction follows from the count."""

import pandas as pd
import pytest
import torch
from hydra import compose, initialize_config_dir
from omegaconf import DictConfig
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

import division
from division.bits import packed_size
from division.kernels import ops
from experiments import record, roofline, traffic
from experiments.config import FOLDER
from experiments.provenance import ROOT
from experiments.tables import roofline as table
from experiments.traffic import Meter, Work

GPUS = sorted(path.stem for path in (FOLDER / "gpu").glob("*.yaml"))


def config(*overrides: str) -> DictConfig:
    with initialize_config_dir(str(FOLDER), version_base="1.3"):
        return compose("roofline", [*overrides])


def small(*overrides: str) -> DictConfig:
    return config("model=resnet20", "image=32", "batch=4", "classes=10", *overrides)


def test_an_operator_reads_and_writes_what_it_is_given() -> None:
    x, weight = torch.randn(2, 16, 8, 8, requires_grad=True), torch.randn(4, 16, 3, 3)
    with Meter() as meter:
        y = torch.nn.functional.conv2d(x, weight, padding=1)
        y.view(-1)
        y.detach()
        y.mul_(2.0)
    (conv, product) = meter.work
    assert conv == Work(
        "aten::convolution", x.nbytes + weight.nbytes + y.nbytes, 2 * y.numel() * 16 * 9, "float32"
    )
    assert (product.moved, product.flops) == (2 * y.nbytes, 0)


def test_what_compression_adds_is_its_kernels() -> None:
    """One layer: maps are read once and written once more, its codes each once."""
    x = torch.randn(2, 16, 16, 16)
    layer, count = nn.Conv2d(16, 16, 3, padding=1), x.numel()
    with FakeTensorMode(allow_non_fake_inputs=True), Meter() as meter:
        with division.capture("division"):
            y = layer(torch.empty_like(x).requires_grad_().exp().relu())
        y.sum().backward()
    moved = {each.name: each.moved for each in meter.work if each.name.startswith("division::")}
    bits, maps = packed_size(256, 2), 2 * 16
    packed = maps * (bits + 2 * 4 + 4)  # codes, four means, offset and scale
    assert moved["division::split_maps"] == 4 * count + packed
    assert moved["division::merge_maps"] == packed + 4 * count
    assert moved["division::pack_mask"] == 4 * count + count // 8
    assert moved["division::unpack_mask"] == count // 8 + 4 * count


def test_an_unknown_kernel_is_no_silent_zero() -> None:
    refused = pytest.raises(ValueError, match="the published alignment has no kernel")
    with FakeTensorMode(), refused, Meter():
        division.kernels.split_maps(torch.empty(1, 4, 14, 14), 2, 1, 1, 8, 1)


def test_every_operator_of_ours_is_counted_or_refused() -> None:
    assert traffic._KERNELS.keys() == ops._SCHEMAS.keys()
    with Meter() as meter:
        x = torch.randn(2, 64, 32).transpose(1, 2).unsqueeze(2)
        out = torch.empty_like(x)
        parts = division.kernels.split_maps(x, 2, 1, 1, 0, 1)
        division.kernels.merge_maps_into(*parts, 2, out)
    moved = {each.name: each.moved for each in meter.work}
    assert moved["division::merge_maps_into"] == sum(t.nbytes for t in (*parts, out))
    refused = pytest.raises(ValueError, match="Huffman coding has no GPU kernel")
    with refused, Meter():
        division.kernels.pack_huffman(torch.randn(100), 0.01, False, 1)


def test_time_is_the_longer_of_bytes_and_flops() -> None:
    settings = config("launch=0.0", "reached.bandwidth=0.5", "reached.flops=0.5")
    gpu = settings.gpu
    memory_bound = Work("a", int(gpu.bandwidth), 1, "float32")
    compute_bound = Work("b", 1, int(gpu.flops.float32), "float32")
    assert roofline.seconds([memory_bound], settings) == pytest.approx(2.0)
    assert roofline.seconds([compute_bound], settings) == pytest.approx(2.0)
    assert roofline.seconds([memory_bound, compute_bound], settings) == pytest.approx(4.0)
    half = Work("c", 1, int(gpu.flops.float32), "bfloat16")
    assert roofline.seconds([half], settings) < 1.1


@pytest.mark.parametrize("gpu", GPUS)
def test_every_gpu_has_its_rates_and_their_source(gpu: str) -> None:
    found = config(f"gpu={gpu}").gpu
    assert 500e9 < found.bandwidth < 10e12
    assert found.flops.float32 < found.flops.bfloat16
    assert "https://" in (FOLDER / "gpu" / f"{gpu}.yaml").read_text()


def test_every_method_is_predicted_and_laid_out() -> None:
    settings = small()
    rows = record.complete(roofline.rows_of(settings))
    extra = {row.config["label"]: row.value for row in rows if row.metric == "extra"}
    assert extra.keys() == set(settings.methods)
    assert extra["vanilla"] == 0
    assert 0 < extra["division"] < extra["checkpoint"] * 10
    assert extra["actnn"] > extra["division"]
    moved = {row.config["label"]: row.value for row in rows if row.metric == "kernel_moved"}
    assert moved["lossy"] > moved["pooling"] > 0
    assert not any(row.metric == "overhead_of_published" for row in rows)
    paper = pd.read_csv(ROOT / "results" / "paper" / "throughput.csv")
    frame = table.frame(table.select(rows), paper)
    assert list(frame["method"]) == list(settings.methods)
    assert not any(frame["verdict"])
    assert roofline.table_of(rows, settings).row_count == len(settings.methods)


def test_the_published_step_is_the_base_where_there_is_one() -> None:
    published = roofline.published_step(config())
    assert published == pytest.approx(256 / 469.05)
    for other in ("gpu=a100", "dtype=bfloat16", "image=32", "batch=8", "model=resnet20"):
        assert roofline.published_step(config(other)) is None


@pytest.mark.parametrize(("overhead", "verdict"), [(0.09, "reached"), (0.11, "missed")])
def test_the_bar_is_judged(overhead: float, verdict: str) -> None:
    paper = pd.read_csv(ROOT / "results" / "paper" / "throughput.csv")
    values = {"kernel_moved": 1e9, "extra": 0.05, "overhead_of_roofline": 0.2}
    values["overhead_of_published"] = overhead
    line = table._line("RTX 3090", "float32, nchw", "division", values, paper)
    assert line[-1] == verdict
    assert line[-3] == "0.81"


def test_wrong_settings_are_named() -> None:
    with pytest.raises(ValueError, match="layout must be one of"):
        roofline.walks(small("layout=nhwc"))
    with pytest.raises(ValueError, match="methods must contain vanilla"):
        roofline.specs(small("~methods.vanilla"))
