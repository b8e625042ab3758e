"""A budget instead of a bit-width: within its bytes, better than one width, never in the way."""

import copy
import io
import math
import pickle
import warnings
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from conftest import small_net
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel

import division
from division.choice import Choice
from experiments import build, models
from experiments.config import compose_train

BATCH = 8


def data(step: int = 0, size: int = BATCH) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(100 + step)
    y = torch.arange(size) % 10
    return torch.randn(size, 3, 32, 32, generator=generator) + y.view(-1, 1, 1, 1) / 5, y


def train(model: nn.Module, steps: int, first: int = 0) -> list[float]:
    """Plain steps on batches of their own; returns the losses."""
    losses = []
    for step in range(first, first + steps):
        torch.manual_seed(step)
        x, y = data(step)
        loss = F.cross_entropy(model(x), y)
        model.zero_grad()
        loss.backward()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter -= 0.05 * parameter.grad
        losses.append(loss.item())
    return losses


def compressed(model: nn.Module | None = None, **options: object) -> nn.Module:
    return division.compress(
        small_net() if model is None else model, "division", **{"warmup": 0, **options}
    )


def choice_of(model: nn.Module) -> Choice:
    choice = division.method_of(model).choice
    assert choice is not None
    return choice


def bits_of(model: nn.Module) -> dict[str, int]:
    return {line.site: line.bits for line in choice_of(model).lines}


@settings(max_examples=8, deadline=None)
@given(st.sampled_from(["resnet20", "vit_micro"]), st.floats(2, 20), st.sampled_from([False, True]))
def test_bytes_are_never_above_the_budget(name: str, ratio: float, recompute: bool) -> None:
    torch.manual_seed(0)
    x, _ = data(size=2)
    network = models.build(name, classes=10, image_size=32)
    least = compressed(copy.deepcopy(network), bits=1, recompute=recompute)
    most = division.measure(least, x).ratio
    model = compressed(network, ratio=ratio, recompute=recompute, calibration=1)
    if ratio > most:
        with pytest.raises(ValueError, match=f"ratio must be at most {most:.2f}"):
            model(x)
        return
    before = division.measure(model, x)
    model(x).sum().backward()
    model(x)
    assert choice_of(model).is_final
    after = division.measure(model, x)
    assert min(before.ratio, after.ratio) >= ratio
    assert after.saved_bytes == choice_of(model).nbytes
    assert before.original_bytes == after.original_bytes == choice_of(model).stock


@pytest.mark.parametrize("recompute", [False, True, "deep"])
def test_at_equal_bytes_the_gradient_is_better_than_with_one_width(recompute: bool | str) -> None:
    model = small_net()
    train(model, 6)
    x, y = data(50)
    for bits in (2, 3):
        twin = compressed(copy.deepcopy(model), bits=bits, recompute=recompute)
        size = division.measure(twin, x).saved_bytes
        with_one, with_budget = (
            division.gradient_error(
                model, "division", (x, y), F.cross_entropy, 4, recompute=recompute, **options
            )
            for options in ({"bits": bits}, {"budget": size})
        )
        assert with_budget.relative < 0.9 * with_one.relative


def test_what_the_table_expects_is_what_comes() -> None:
    model = small_net()
    train(model, 6)
    x, y = data(50)
    twin = compressed(copy.deepcopy(model), ratio=10, seed=3)
    for _ in range(3):
        with division.state.unchanged(twin):
            twin.zero_grad()
            F.cross_entropy(twin(x), y).backward()
    choice = choice_of(twin)
    expected = math.sqrt(sum(line.error or 0 for line in choice.lines))
    method = division.method_of(twin)
    found = division.gradient_error(model, method, (x, y), F.cross_entropy, 8).relative
    assert 0.6 * expected < found < 1.6 * expected
    assert expected**2 <= choice.before


def test_the_same_run_chooses_the_same() -> None:
    found = []
    for _ in range(2):
        torch.manual_seed(0)
        model = compressed(ratio=10)
        found.append((train(model, 4), str(choice_of(model)), bits_of(model)))
    assert found[0] == found[1]
    assert len(set(found[0][2].values())) > 2


@pytest.mark.parametrize("recompute", [False, True])
def test_calibration_leaves_no_trace(recompute: bool) -> None:
    """Under bits that are the same for all, the run is that of a plain method, bit for bit."""
    model = small_net()
    x, _ = data()
    size = division.measure(compressed(copy.deepcopy(model), bits=8), x).saved_bytes
    options = {"recompute": recompute, "fine_bits": 8}
    plain = compressed(copy.deepcopy(model), bits=8, **options)
    budgeted = compressed(copy.deepcopy(model), budget=size, **options)
    torch.manual_seed(5)
    assert train(plain, 5) == train(budgeted, 5)
    assert choice_of(budgeted).is_final
    assert set(bits_of(budgeted).values()) == {8}
    for one, other in zip(plain.state_dict().values(), budgeted.state_dict().values(), strict=True):
        assert torch.equal(one, other)
    states = [division.method_of(m).state_dict()["drawn"] for m in (plain, budgeted)]
    assert states[0] == states[1]


def test_dropout_of_the_training_stays_in_order() -> None:
    """A forward that looks back draws no number of the global generator."""
    model = compressed(ratio=10)
    x, y = data()
    for _ in range(3):
        before = torch.get_rng_state()
        loss = F.cross_entropy(model(x), y)
        after = torch.get_rng_state()
        torch.set_rng_state(before)
        division.restore(copy.deepcopy(model))(x)
        assert torch.equal(torch.get_rng_state(), after)
        loss.backward()


@pytest.mark.parametrize("at", [0, 1, 2, 4])
def test_a_resumed_run_goes_on_bit_for_bit(at: int) -> None:
    """Before, amid and after the calibration; through the bytes of a checkpoint."""
    torch.manual_seed(0)
    model = small_net()
    fresh = copy.deepcopy(model)
    compressed(model, ratio=10)
    train(model, at)
    file = io.BytesIO()
    state = {"model": model.state_dict(), "method": division.method_of(model).state_dict()}
    torch.save(state, file)
    file.seek(0)
    expected = train(model, 5, first=at)
    saved = torch.load(file, weights_only=True)
    resumed = compressed(fresh, ratio=10)
    resumed.load_state_dict(saved["model"])
    division.method_of(resumed).load_state_dict(saved["method"])
    assert train(resumed, 5, first=at) == expected
    assert str(choice_of(resumed)) == str(choice_of(model))


def test_a_resumed_run_does_not_calibrate_again(monkeypatch: pytest.MonkeyPatch) -> None:
    model = compressed(ratio=10)
    train(model, 3)
    state = division.method_of(model).state_dict()
    resumed = compressed(ratio=10)
    division.method_of(resumed).load_state_dict(state)
    monkeypatch.setattr(division.calibrate, "trace", None)
    monkeypatch.setattr(division.calibrate, "gradient_errors", None)
    train(resumed, 3)
    assert bits_of(resumed) == bits_of(model)


def test_copies_and_pickles_keep_the_bits() -> None:
    model = compressed(ratio=10)
    train(model, 2)
    amid = pickle.loads(pickle.dumps(model))  # the third forward settles
    assert train(amid, 2, first=2) == train(copy.deepcopy(model), 2, first=2)
    train(model, 2, first=2)
    assert bits_of(copy.deepcopy(model)) == bits_of(amid) == bits_of(model)


def test_overrides_and_fine_bits_stand() -> None:
    overrides = {"4.conv1": {"bits": 7}, "4.shortcut": {"bits": 7}, "6": {"block": 4}, "1": None}
    model = compressed(ratio=4, overrides=overrides, fine_bits=6)
    train(model, 3)
    bits = bits_of(model)
    assert not any(site.startswith(("4.conv1", "4.shortcut", "1 ")) for site in bits)
    assert bits["0 ConvolutionBackward0.input (data)"] >= 6
    assert any(site.startswith("6.") for site in bits)
    ledger = division.measure(model, data()[0])
    assert ledger.ratio >= 4
    notes = {row.site: row.why for row in ledger.rows if row.node == "ConvolutionBackward0"}
    assert notes["4.conv1"] == "7 bits"
    assert notes["6.conv2"] == f"{bits['6.conv2 ConvolutionBackward0.input']} bits"


def test_measure_leaves_no_trace() -> None:
    x, _ = data()
    torch.manual_seed(0)
    model = compressed(ratio=10)
    left_alone = copy.deepcopy(model)
    found = []
    for step in range(4):
        division.measure(model, x)
        found.append((train(model, 1, step), train(left_alone, 1, step)))
    assert all(one == other for one, other in found)
    assert bits_of(model) == bits_of(left_alone)


def test_it_waits_for_gradients() -> None:
    """Evaluation, forwards that nothing comes back from, and two forwards before one backward."""
    model = compressed(ratio=10, calibration=1)
    x, y = data()
    with torch.no_grad():
        model(x)
    assert division.method_of(model).choice is None
    for _ in range(3):
        model(x)
    assert not choice_of(model).is_final
    (model(x).square().mean() + model(x + 1).square().mean()).backward()
    assert not choice_of(model).is_final
    F.cross_entropy(model(x), y)
    assert choice_of(model).is_final


def test_gradients_that_are_not_finite_are_no_gradients() -> None:
    model = compressed(ratio=10, calibration=1)
    x, y = data()
    (model(x).sum() * float("inf")).backward()
    model(x).sum()
    assert not choice_of(model).is_final
    F.cross_entropy(model(x), y).backward()
    model(x)
    assert choice_of(model).is_final


def test_the_first_steps_are_let_pass() -> None:
    model = compressed(ratio=10, warmup=3, calibration=1)
    train(model, 4)
    assert division.method_of(model).spent.tried == 0
    train(model, 1, first=4)
    assert choice_of(model).is_final


class Nested(nn.Module):
    """Takes a dictionary, returns one; one output is unused."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Conv2d(3, 16, 3, padding=1), nn.Conv2d(16, 8, 3, padding=1)

    def forward(self, batch: dict[str, Tensor], *, twice: bool) -> dict[str, list[Tensor]]:
        hidden = self.first(batch["x"]).relu()
        return {"outputs": [self.last(hidden), hidden] * (1 + twice)}


def test_nested_inputs_and_outputs() -> None:
    model = compressed(Nested(), ratio=6)
    for _ in range(3):
        model({"x": data()[0]}, twice=False)["outputs"][0].square().mean().backward()
    assert choice_of(model).is_final


def test_a_batch_above_the_budget_is_told_once() -> None:
    x, _ = data()
    size = division.measure(compressed(bits=3), x).saved_bytes
    model = compressed(budget=size)
    train(model, 3)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model(x[:4])
    with pytest.warns(UserWarning, match=rf"budget={size}: a batch takes .* for smaller ones"):
        model(x.repeat(3, 1, 1, 1))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model(x.repeat(4, 1, 1, 1))


def test_a_larger_batch_before_the_choice_is_counted_anew() -> None:
    x, y = data(size=16)
    size = division.measure(compressed(bits=2), x).saved_bytes
    model = compressed(budget=size)
    F.cross_entropy(model(x[:4]), y[:4]).backward()
    assert choice_of(model).uniform > 2
    for _ in range(3):
        F.cross_entropy(model(x), y).backward()
    assert division.measure(model, x).saved_bytes <= size


def test_a_part_that_runs_first_is_an_error() -> None:
    model = compressed(ratio=10)
    with pytest.raises(ValueError, match=r"ratio: '4\.conv1' ran before the whole model"):
        model[4](torch.randn(2, 16, 16, 16, requires_grad=True))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"budget": "1GiB", "ratio": 10}, "budget and ratio say the same .* ratio=10"),
        ({"budget": "1GiB", "bits": 2}, "budget chooses the bits .* got bits=2"),
        ({"ratio": 10, "bits": 2}, "ratio chooses the bits .* got bits=2"),
        ({"ratio": 10, "keep": "low"}, "leave keep out; got keep='low'"),
        ({"ratio": 10, "rounding": "nearest"}, "leave rounding out"),
        ({"budget": "lots"}, "budget: a size is a number with B, KiB.*got 'lots'"),
        ({"budget": 0}, "budget must be more than nothing; got 0"),
        ({"budget": "0GiB"}, "budget must be more than nothing; got '0GiB'"),
        ({"budget": -5}, "budget must be more than nothing; got -5"),
        ({"budget": 1.5}, "budget must be a number of bytes.*got 1.5"),
        ({"budget": True}, "budget must be a number of bytes.*got True"),
        ({"ratio": 0}, "ratio must be a number above zero.*got 0"),
        ({"ratio": -3.0}, "ratio must be a number above zero"),
        ({"ratio": math.nan}, "ratio must be a number above zero"),
        ({"ratio": math.inf}, "ratio must be a number above zero"),
        ({"ratio": "14"}, "ratio must be a number above zero.*got '14'"),
        ({"ratio": 10, "calibration": 0}, "calibration must be a whole number from 1"),
        ({"ratio": 10, "warmup": -1}, "warmup must be a whole number from 0"),
    ],
)
def test_wrong_options(options: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        compressed(**options)


def test_a_budget_that_nothing_fits_into() -> None:
    x, _ = data()
    least = division.measure(compressed(bits=1), x).saved_bytes
    with pytest.raises(ValueError, match=rf"budget must be at least {least} bytes"):
        compressed(budget=least - 1)(x)
    compressed(budget=least)(x)
    with pytest.raises(ValueError, match=r"ratio must be at most \d+\.\d\d here.*got 99"):
        compressed(ratio=99)(x)


def test_states_of_other_budgets_are_refused() -> None:
    x, _ = data()
    one, other, none = compressed(ratio=10), compressed(ratio=8), compressed(bits=2)
    for model in (one, other, none):
        model(x)
    states = [division.method_of(model).state_dict() for model in (one, other, none)]
    with pytest.raises(ValueError, match="chosen for ratio=8, and this run has ratio=10"):
        division.method_of(one).load_state_dict(states[1])
    with pytest.raises(ValueError, match="of a run without a budget"):
        division.method_of(one).load_state_dict(states[2])
    with pytest.raises(ValueError, match="of a run with ratio=10"):
        division.method_of(none).load_state_dict(states[0])


def test_capture_has_no_model_to_look_at() -> None:
    with pytest.raises(ValueError, match="a budget is shared out over a model"):  # noqa: SIM117
        with division.capture("division", ratio=10):
            pass


def test_restore_takes_the_hooks_off() -> None:
    model = small_net()
    stock = {name: dict(vars(module)) for name, module in model.named_modules()}
    train(compressed(model, ratio=10), 1)
    division.restore(model)
    for name, module in model.named_modules():
        for table, hooks in vars(module).items():
            if "hooks" in table:
                assert not hooks, (name, table)
        assert stock[name].keys() == vars(module).keys()


def test_a_plan_has_the_width_that_fits_and_says_so() -> None:
    shape = (BATCH, 3, 32, 32)
    specs = [
        ("two", "division", {"bits": 2}),
        ("ratio", "division", {"ratio": 10}),
        ("tight", "division", {"budget": 1000}),
    ]
    plan = division.plan(small_net, shape, specs, budget="64MiB")
    model = compressed(ratio=10)
    model(data()[0])
    uniform = choice_of(model).uniform
    assert plan["ratio"].saved_bytes == choice_of(model).nbytes
    assert f"with bits={uniform} everywhere" in plan["ratio"].note
    assert plan["ratio"].max_batch > 0
    assert "not possible here: budget must be at least" in plan["tight"].note


def test_the_table_tells_everything() -> None:
    model = compressed(ratio=10)
    train(model, 1)
    assert "until gradients have been looked at" in str(choice_of(model))
    train(model, 2, first=1)
    text = str(choice_of(model))
    lines = text.splitlines()
    assert lines[0].split()[:4] == ["site", "elements", "bits", "bytes"]
    shared = "4.conv1 ConvolutionBackward0.input, shared by 1 more"
    assert any(line.startswith(shared) for line in lines)
    assert lines[-1].startswith("ratio=10: ")
    assert "against" in lines[-1]


def test_a_config_with_a_budget() -> None:
    small = ["model=resnet20", "dataset=digits", "method=division"]
    config = compose_train([*small, "+method.ratio=12"])
    loaded = build.dataset(config)
    method = division.method_of(build.model(config, loaded))
    assert (method.ratio, method.bits) == (12, None)
    with pytest.raises(ValueError, match="got bits=3"):
        build.model(compose_train([*small, "method.bits=3", "+method.ratio=12"]), loaded)


RANKS = 2


def rank_main(rank: int, folder: str) -> None:
    torch.set_num_threads(1)
    store = dist.FileStore(f"{folder}/store", RANKS)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=RANKS)
    torch.manual_seed(0)
    model = DistributedDataParallel(compressed(ratio=10))
    for step in range(4):
        x, y = data(10 * step + rank)  # each rank its own
        model.zero_grad()
        F.cross_entropy(model(x), y).backward()
    method = division.method_of(model)
    torch.save({"text": str(method.choice), "final": method.is_settled}, f"{folder}/{rank}.pt")
    dist.barrier()
    dist.destroy_process_group()


@pytest.mark.slow
def test_ranks_choose_alike(tmp_path: Path) -> None:
    torch.multiprocessing.spawn(rank_main, (str(tmp_path),), RANKS)
    found = [torch.load(tmp_path / f"{rank}.pt", weights_only=True) for rank in range(RANKS)]
    assert found[0] == found[1]
    assert found[0]["final"]
