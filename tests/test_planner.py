"""The planner: the bytes of real steps, without data; the largest batch, by count."""

import re
import time

import pytest
import torch
from conftest import IMAGE, small_net
from torch import Tensor, nn

import division
from division.dryrun import OPTIMIZERS, DryRun, usual_loss
from division.forecast import Forecast, about, largest
from division.walk import Live, Walk, ready, walk
from experiments import models, peak

MIB = 2**20
LARGE = (64, 3, 224, 224)
COUNTED = sorted({*division.methods()} - {"lossy"})  # no size depends on the data
# Beside what it stores, ActNN keeps what it learns from gradients, which takes data; batch norm
# without data has its statistics in 16 bits under autocast, with data in 32.
LEFT_OUT = {"actnn": 0.02, "autocast": 0.005}


def vit() -> nn.Module:
    return models.build("vit_micro", classes=10, image_size=32)


class WrittenOut(nn.Module):
    """Attention without torch's fused operator."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(64, 192), nn.Linear(64, 10)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x.flatten(2).transpose(1, 2)[..., :64]).chunk(3, dim=-1)
        weights = torch.softmax(q @ k.transpose(1, 2) * 64**-0.5, dim=-1)
        return self.out((weights @ v).mean(1))


NETS = {
    "convolutions": (small_net, IMAGE),
    "transformer": (vit, (8, 3, 32, 32)),
    "written-out attention": (WrittenOut, (8, 64, 8, 8)),
}


def dry(build=small_net, shape=IMAGE, optimizer="momentum", **options) -> DryRun:
    settings = {"dtype": torch.float32, "input_dtype": None, "loss": None, **options}
    return DryRun(build(), shape[1:], optimizer=OPTIMIZERS[optimizer], **settings)


def real_walk(model: nn.Module, shape: tuple[int, ...]) -> Walk:
    optimizer = ready(OPTIMIZERS["momentum"](list(model.parameters())))
    return walk(model, [torch.randn(shape)], usual_loss, optimizer)


@pytest.mark.parametrize("method", COUNTED)
@pytest.mark.parametrize("net", NETS)
def test_saved_bytes_are_those_of_a_real_forward(net: str, method: str) -> None:
    build, shape = NETS[net]
    planned = division.plan(build, shape, [method])[method]
    if net == "written-out attention" and method == "checkpoint":
        assert planned.note.startswith("not possible here: checkpoint finds no blocks")
        return
    ledger = division.measure(division.compress(build(), method), torch.randn(shape))
    missing = 0
    if method == "autocast":  # two statistics of a channel, two bytes each
        norms = (m for m in build().modules() if isinstance(m, nn.BatchNorm2d))
        missing = sum(4 * norm.num_features for norm in norms)
    assert planned.saved_bytes == ledger.saved_bytes - missing
    assert planned.ledger.original_bytes == ledger.original_bytes


@pytest.mark.parametrize("method", COUNTED)
@pytest.mark.parametrize("net", ["convolutions", "transformer"])
def test_the_peak_is_that_of_a_real_step(net: str, method: str) -> None:
    """The same walk with and without data."""
    build, shape = NETS[net]
    model = division.compress(build(), method)
    real = real_walk(model, shape)
    planned = division.plan(build, shape, [method])[method].step
    near = {"rel": LEFT_OUT.get(method, 0), "abs": 0}
    assert planned.peak == pytest.approx(real.peak, **near)
    assert planned.held == pytest.approx(real.held, **near)
    for part in ("weights", "optimizer", "inputs", "output", "gradients", "peak_in"):
        assert getattr(planned, part) == getattr(real, part)


@pytest.mark.slow
@pytest.mark.parametrize("method", ["vanilla", "division", "pooling", "checkpoint", "autocast"])
@pytest.mark.parametrize("net", ["resnet18", "vit_micro"])
def test_the_peak_is_that_of_the_resident_memory(net: str, method: str) -> None:
    """What operators allocate inside themselves is not planned: so much it is."""
    real = peak.measure_step({"name": net}, {"name": method}, batch=64, image=32)
    run = dry(lambda: models.build(net, 10, 32), (64, 3, 32, 32), "sgd")
    for parameter in run._model.parameters():  # the measured step finds gradients to add to
        with run._mode:
            parameter.grad = torch.zeros_like(parameter)
    with run.under(division.method.resolve(method)):
        step = run.walk(64)
    there = step.weights + step.inputs + step.gradients
    assert real["peak"] == pytest.approx(step.peak - there, rel=0.2)


@pytest.mark.slow
@pytest.mark.parametrize("method", COUNTED)
def test_a_plan_of_resnet50_takes_seconds(method: str) -> None:
    division.plan(small_net, IMAGE, [method])  # what is loaded once does not count
    started = time.process_time()
    found = division.plan(lambda: models.build("resnet50", 1000, 224), LARGE, [method], "24GiB")
    assert time.process_time() - started < 5
    assert found[method].max_batch > 290


def test_a_walk_sees_what_is_alive_and_nothing_else() -> None:
    live = Live()
    a = torch.zeros(1000)
    assert live.add([a, a.view(10, 100)]) == 4000
    with live:
        b = a + 1
        c = b[10:]
        assert live.now == 8000
        del b
        assert live.now == 8000  # c is a view of it
        del c
        assert live.now == 4000
        (a * 2).sum()
    assert live.now == 4000
    assert max(live.levels) == 8004
    torch.zeros(1000)
    assert live.now == 4000


def test_the_parts_of_a_step() -> None:
    weights = 4 * sum(p.numel() for p in small_net().parameters())
    for name, copies in (("sgd", 0), ("momentum", 1), ("adam", 2)):
        step = division.plan(small_net, IMAGE, ["vanilla"], optimizer=name)["vanilla"].step
        scalars = 4 * len(list(small_net().parameters())) * (name == "adam")
        assert step.optimizer == copies * weights + scalars
        assert step.gradients == weights
        assert step.inputs == 4 * 4 * 3 * 32 * 32 + 4 * 8
        assert step.output == 4 * 4 * 10 + 4
    small = nn.Linear(2000, 2000)
    step = division.plan(lambda: small, (2, 2000), ["vanilla"], optimizer="adam")["vanilla"].step
    assert step.peak_in == "optimizer"
    assert step.peak == pytest.approx(5 * step.weights, rel=0.02)  # itself, gradient, state, root


@pytest.mark.parametrize("method", COUNTED)
def test_every_size_is_a_line_in_the_batch(method: str) -> None:
    run = dry()
    with run.under(division.method.resolve(method)):
        forecast = Forecast(run.walk(32), run.walk(64))  # all of its tensors are worth packing
        for batch in (96, 256):
            assert forecast.peak(batch) == run.walk(batch).peak
        assert forecast.peak(101) == pytest.approx(run.walk(101).peak, rel=1e-3)
        saved = {batch: run.measure(batch).saved_bytes for batch in (32, 64, 256)}
        assert forecast.line(saved[32], saved[64], 256) == saved[256]


@pytest.mark.parametrize("method", ["vanilla", "division", "actnn", "checkpoint"])
def test_the_largest_batch_fits_and_one_more_does_not(method: str) -> None:
    budget = 12 * MIB
    entry = division.plan(small_net, IMAGE, [method], "12MiB")[method]

    def needed(batch: int) -> int:
        return real_walk(division.compress(small_net(), method), (batch, *IMAGE[1:])).peak

    assert needed(entry.max_batch) <= budget < needed(entry.max_batch + 1)
    assert entry.forecast.largest(budget) == pytest.approx(entry.max_batch, abs=1)


def test_compression_buys_a_larger_batch() -> None:
    found = division.plan(small_net, IMAGE, ["vanilla", "division"], "200MiB")
    assert found["division"].max_batch > 1.8 * found["vanilla"].max_batch


@pytest.mark.parametrize("guess", [0, 1, 36, 37, 38, 50, 1000])
def test_the_search_ends_at_the_same_batch_from_any_guess(guess: int) -> None:
    counted: list[int] = []

    def peak_of(batch: int) -> int:
        counted.append(batch)
        return 1000 + 27 * batch

    assert largest(peak_of, 2000, guess) == 37
    assert {37, 38} <= set(counted)
    assert len(counted) == len(set(counted)) <= (2 if guess in (37, 38) else 20)


def test_the_second_batch_is_near_the_largest() -> None:
    """Whatever the first was: one far from it would tell little."""
    found = division.plan(small_net, IMAGE, ["division"], "200MiB")["division"].max_batch
    run = dry()
    with run.under(division.method.resolve("division")):
        for batch in (2, 64, 5000):
            assert about(run.walk(batch), 200 * MIB) == pytest.approx(found, rel=0.1)
        step = run.walk(4)
        assert about(step, step.peak) == about(step, 1000) == 8  # never the same, never none


def test_a_budget_that_no_batch_fits() -> None:
    assert division.plan(small_net, IMAGE, ["vanilla"], 1000)["vanilla"].max_batch == 0


def test_steps_that_differ_in_their_allocations_are_still_bracketed() -> None:
    small = Walk(8, 0, 0, 0, 0, 0, 0, (100, 180), (1, 2))
    large = Walk(16, 0, 0, 0, 0, 0, 0, (100, 150, 260), (1, 2))
    forecast = Forecast(small, large)
    assert forecast.peak(24) == 340
    assert forecast.largest(345) == 24


def test_sizes_that_depend_on_the_data_need_a_measured_ratio() -> None:
    found = division.plan(
        small_net,
        IMAGE,
        [
            "lossy",
            ("measured", "lossy", {"assumed_ratio": 4}),
            ("less", "lossy", {"assumed_ratio": 8.0}),
            ("boundary", "checkpoint", {"boundary": "lossy"}),
            ("told", "checkpoint", {"boundary": "lossy", "boundary_options": {"assumed_ratio": 4}}),
        ],
        "50MiB",
    )
    for label in ("lossy", "boundary"):
        entry = found[label]
        assert entry.saved_bytes is entry.peak_bytes is entry.max_batch is None
        assert "depend on the data: give assumed_ratio" in entry.note
    assert found["measured"].note == "sizes depend on the data: assumed_ratio=4"
    assert found["less"].saved_bytes < found["measured"].saved_bytes
    assert found["told"].saved_bytes is not None


def test_a_method_that_saves_nothing_says_so() -> None:
    plain = ("plain", "division", {"masks": False})
    found = division.plan(small_net, IMAGE, ["offload", plain], dtype=torch.float64)
    assert found["offload"].note.startswith("saves nothing: it is in host memory already")
    assert found["plain"].note == "saves nothing: torch.float64 is not compressed"


def test_types() -> None:
    wide, narrow = (
        division.plan(small_net, IMAGE, ["vanilla", "division"], dtype=dtype)
        for dtype in (torch.float32, torch.bfloat16)
    )
    assert narrow["vanilla"].step.gradients == wide["vanilla"].step.gradients / 2
    ratio = narrow["vanilla"].saved_bytes / wide["vanilla"].saved_bytes
    assert 0.5 <= ratio < 0.6  # the indices of pooling keep their size
    assert narrow["division"].saved_bytes < wide["division"].saved_bytes * 1.1


class Tagger(nn.Module):
    """Tokens in, a dictionary out, the embedding tied to the last layer."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.mix = nn.Embedding(500, 64), nn.Linear(64, 64)
        self.last = nn.Linear(64, 500, bias=False)
        self.last.weight = self.embed.weight

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        return {"logits": self.last(self.mix(self.embed(x)).relu())}


def test_tokens_ties_and_outputs_of_any_form() -> None:
    found = division.plan(Tagger, (4, 128), ["division"], input_dtype=torch.int64)
    step = found["division"].step
    assert step.inputs == 4 * 128 * 8 + 4 * 8
    assert step.weights == 4 * (500 * 64 + 64 * 64 + 64)  # the tied weight once

    def own(output: dict[str, Tensor], labels: Tensor) -> Tensor:
        return nn.functional.cross_entropy(output["logits"][:, 0], labels)

    other = division.plan(Tagger, (4, 128), ["division"], input_dtype=torch.int64, loss=own)
    assert other["division"].saved_bytes == found["division"].saved_bytes


def test_a_model_on_the_meta_device_needs_no_memory_at_all() -> None:
    def large() -> nn.Module:
        with torch.device("meta"):
            return nn.Linear(10**5, 10**5)

    step = division.plan(large, (2, 10**5), ["vanilla"])["vanilla"].step
    assert step.weights == 4 * (10**10 + 10**5)


def test_the_plan_is_a_mapping_and_a_table() -> None:
    published = ("as published", "division", {"align": "reference", "share": False})
    found = division.plan(small_net, IMAGE, ["vanilla", published, "lossy"], "64MiB")
    assert list(found) == ["vanilla", "as published", "lossy"]
    with pytest.raises(KeyError, match=r"'divisoin' is not in the plan, which has vanilla, as"):
        found["divisoin"]
    head, columns, *lines = str(found).splitlines()
    assert head == "Sequential, batch 4 of 3x32x32, float32, momentum"
    assert re.split(r"\s{2,}", columns) == [
        "method",
        "saved",
        "times less",
        "peak of a step",
        "peak in",
        "largest batch in 64.00 MiB",
        "note",
    ]
    assert lines[0].startswith("vanilla ")
    assert f" {found['as published'].max_batch} " in lines[1] + " "
    assert "give assumed_ratio" in lines[2]


def test_all_registered_methods_are_planned_unless_told() -> None:
    assert sorted(division.plan(small_net, IMAGE)) == division.methods()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"budget": "24"}, "a size is a number with B, KiB"),
        ({"budget": 0}, "budget must be more than nothing; got 0"),
        ({"budget": "0GiB"}, "budget must be more than nothing; got '0GiB'"),
        ({"input_shape": (3,)}, r"the batch first, as \(64, 3, 224, 224\); got \(3,\)"),
        ({"input_shape": (0, 3, 32, 32)}, r"whole numbers >= 1.*got \(0, 3, 32, 32\)"),
        ({"input_shape": (4, 5, 32, 32)}, r"Sequential cannot run on .* \(4, 5, 32, 32\): .*chan"),
        ({"methods": ["divisoin"]}, "unknown method 'divisoin'; choose one of: actnn"),
        ({"methods": [("a", "division", {"bit": 3})]}, "has no option 'bit'; its options: "),
        ({"methods": ["vanilla", "vanilla"]}, "'vanilla' is there twice"),
        ({"methods": []}, "methods is empty"),
        ({"optimizer": "lion"}, "optimizer must be one of 'sgd', 'momentum', 'adam'"),
        ({"dtype": torch.int8}, "dtype must be a floating type.*got torch.int8"),
        ({"build_model": lambda: small_net().requires_grad_(False)}, "nothing to compress"),
    ],
)
def test_bad_input(arguments: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        division.plan(**{"build_model": small_net, "input_shape": IMAGE, **arguments})


@pytest.mark.parametrize("thing", [small_net(), lambda: 3])
def test_what_is_no_builder_is_a_type_error(thing: object) -> None:
    with pytest.raises(TypeError, match="a function that returns a torch"):
        division.plan(thing, IMAGE)
    with pytest.raises(TypeError, match="methods must be a list"):
        division.plan(small_net, IMAGE, "division")
