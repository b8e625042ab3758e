"""checkpoint, offload, autocast: torch's own tools as methods, exact and accounted for."""

import copy

import pytest
import torch
import torchvision
from conftest import IMAGE, assert_same, gradients, small_net
from torch import nn
from torch.multiprocessing.reductions import StorageWeakRef

import baselines
import division
from baselines.offload import NOTHING_SAVED


@pytest.mark.parametrize("method", ["checkpoint", "offload"])
def test_gradients_and_statistics_are_the_stock_ones(method: str) -> None:
    """Dropout draws the same, and what runs twice counts once in the batch statistics."""
    model, x = small_net(), torch.randn(IMAGE)
    twin = division.compress(copy.deepcopy(model), method)
    assert_same(gradients(model, x), gradients(twin, x))
    assert_same(list(model.buffers()), list(twin.buffers()))


def test_checkpoint_holds_the_inputs_of_blocks_only() -> None:
    model, x = small_net(), torch.randn(IMAGE)
    stock = division.measure(model, x)
    ledger = division.measure(division.compress(model, "checkpoint"), x)
    assert ledger.original_bytes == stock.original_bytes
    inputs = [row for row in ledger.rows if row.node == "checkpoint"]
    assert [row.site for row in inputs] == ["4", "6"]
    assert [row.shape for row in inputs] == [(4, 16, 16, 16), (4, 32, 16, 16)]
    assert ledger.saved_bytes < 0.7 * stock.saved_bytes


def test_checkpoint_really_frees_the_maps() -> None:
    model = small_net()
    outputs: list[StorageWeakRef] = []
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.register_forward_hook(
                lambda _m, _x, y: outputs.append(StorageWeakRef(y.untyped_storage()))
            )

    def alive() -> int:
        outputs.clear()
        loss = model(torch.randn(IMAGE)).sum()
        return sum(not ref.expired() for ref in outputs) if loss.requires_grad else -1

    stock = alive()
    division.compress(model, "checkpoint")
    assert (stock, alive()) == (5, 1)  # one before the first block, two in each


def test_blocks_are_found_in_the_usual_networks() -> None:
    for build, count in (
        (torchvision.models.resnet18, 8),
        (torchvision.models.vit_b_16, 12),
        (torchvision.models.densenet121, 58),
    ):
        with torch.device("meta"):
            model = build()
        assert len(baselines.Checkpoint().chosen(model)) == count


def test_blocks_can_be_named() -> None:
    model = torchvision.models.resnet18()
    chosen = baselines.Checkpoint(blocks=("layer[12]",)).chosen(model)
    assert chosen == [model.layer1, model.layer2]


def test_a_codec_on_the_block_boundaries() -> None:
    model, x = small_net(), torch.randn(IMAGE)
    exact = gradients(model, x)
    plain = division.measure(division.compress(copy.deepcopy(model), "checkpoint"), x)
    options = {"boundary": "division", "boundary_options": {"bits": 8}}
    twin = division.compress(copy.deepcopy(model), "checkpoint", **options)
    ledger = division.measure(twin, x)
    kept = [row for row in ledger.rows if row.node == "checkpoint"]
    assert {row.codec for row in kept} == {"division"}
    assert all(row.bytes_after < row.bytes_before / 3 for row in kept)
    assert ledger.saved_bytes < plain.saved_bytes
    found = gradients(twin, x)
    flat = [torch.cat([g.flatten() for g in each]) for each in (exact, found)]
    assert torch.cosine_similarity(*flat, dim=0) > 0.99
    assert not torch.equal(*flat)


def test_offload_says_that_it_saves_nothing_on_a_cpu() -> None:
    model, x = small_net(), torch.randn(IMAGE)
    ledger = division.measure(division.compress(model, "offload"), x)
    assert ledger.ratio == 1.0
    assert NOTHING_SAVED in str(ledger)


def test_offload_notices_an_edit_in_place_as_stock_does() -> None:
    class Edits(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(8, 8), nn.Linear(8, 8)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            h = self.a(x).sigmoid()
            y = self.b(h)
            h.mul_(0)
            return y + h

    for method in ("vanilla", "offload"):
        model = division.compress(Edits(), method)
        with pytest.raises(RuntimeError, match=r"modified.*in.?place"):
            model(torch.randn(4, 8)).sum().backward()


def test_autocast_halves_what_convolutions_save() -> None:
    model, x = small_net(), torch.randn(IMAGE)
    stock = division.measure(model, x)
    ledger = division.measure(division.compress(model, "autocast"), x)
    assert ledger.original_bytes == stock.original_bytes
    types = {r.dtype for r in ledger.rows if r.node == "ConvolutionBackward0" and r.slot == "input"}
    assert types == {"bfloat16"}
    assert 1.6 < ledger.ratio < 2.2
    assert model(x).dtype == torch.float32


def test_without_gradients_nothing_is_wrapped() -> None:
    x = torch.randn(IMAGE)
    for method in ("checkpoint", "offload"):
        model = division.compress(small_net().eval(), method)
        expected = division.restore(copy.deepcopy(model))(x)
        with torch.no_grad():
            assert torch.equal(model(x), expected)


def test_a_forward_that_somebody_replaced_is_given_back() -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU())
    model.forward = lambda x: x.sum()  # their own business, wrapped and given back
    own = model.forward
    division.compress(model, "autocast")
    assert model(torch.ones(1, 3, 4, 4)) == 48
    division.restore(model)
    assert model.forward is own


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: baselines.Autocast(dtype="int8"), "dtype must be one of 'bfloat16', 'float16'"),
        (lambda: baselines.Checkpoint(boundary="zip"), "unknown codec 'zip'"),
        (lambda: baselines.Checkpoint(boundary_options={"bits": 2}), "need a boundary"),
        (
            lambda: baselines.Checkpoint(blocks=("laier*",)).chosen(small_net()),
            "'laier\\*' matches no module",
        ),
        (lambda: division.compress(nn.Linear(3, 3), "checkpoint"), "finds no blocks in Linear"),
    ],
)
def test_bad_options(build, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        build()
