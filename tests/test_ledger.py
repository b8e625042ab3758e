"""The ledger against an independent count, and the numbers the paper's table rests on."""

import pytest
import torch
import torchvision
from conftest import small_net
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode

import division
from division.stored import Slot

GIB = 2**30


def stock_bytes(model: nn.Module, x: Tensor) -> int:
    """Count unique saved storages with torch's own hooks, which know nothing of our tables."""
    owned = {t.untyped_storage()._cdata for t in (*model.parameters(), *model.buffers())}
    held: dict[int, Tensor] = {}

    def pack(tensor: Tensor) -> Tensor:
        if tensor.untyped_storage()._cdata not in owned:
            held[tensor.untyped_storage()._cdata] = tensor.detach()  # alive: no address reuse
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        output = model(x)
    assert output.grad_fn is not None
    return sum(t.untyped_storage().nbytes() for t in held.values())


@pytest.mark.parametrize("name", ["small", "resnet18", "densenet121", "mobilenet_v3_small"])
def test_original_bytes_are_what_stock_holds(name: str) -> None:
    model = small_net() if name == "small" else getattr(torchvision.models, name)()
    x = torch.randn(2, 3, 64, 64)
    expected = stock_bytes(model, x)
    assert division.measure(model, x).original_bytes == expected
    assert division.measure(model, x).saved_bytes == expected
    packed = division.measure(division.compress(model), x)
    assert packed.original_bytes == expected
    assert packed.saved_bytes < expected / 4


def test_saved_bytes_are_what_the_graph_holds() -> None:
    """Walk the live graph and add up what its slots hold; it must be what the ledger says."""
    model = division.compress(small_net())
    x = torch.randn(4, 3, 32, 32)
    ledger = division.measure(model, x)
    owned = {t.untyped_storage()._cdata for t in (*model.parameters(), *model.buffers())}
    storages = {}
    stack, seen = [model(x).grad_fn], set()
    while stack:
        node = stack.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        stack += [following for following, _ in node.next_functions]
        for name in dir(node):
            if name.startswith("_raw_saved_"):
                data = getattr(node, name).data
                tensors = data.stored.packed.tensors.values() if isinstance(data, Slot) else [data]
                for tensor in tensors:
                    if isinstance(tensor, Tensor):
                        storage = tensor.untyped_storage()
                        storages[storage._cdata] = storage
    held = sum(s.nbytes() for key, s in storages.items() if key not in owned)
    assert held == ledger.saved_bytes


@pytest.mark.parametrize(
    ("options", "low", "high"),
    [
        (None, 20.48 * 0.99, 20.48 * 1.01),  # published: 20.48
        ({}, 0, 20.48 / 11.3),
        ({"align": "reference", "share": False}, 1.97 * 0.88, 1.97 * 1.12),  # published: 1.97
    ],
    ids=["vanilla", "division", "as published"],
)
def test_resnet50_needs_what_the_paper_says(options: dict | None, low: float, high: float) -> None:
    with FakeTensorMode():
        model = torchvision.models.resnet50()
        if options is not None:
            division.compress(model, "division", **options)
        ledger = division.measure(model, torch.randn(256, 3, 224, 224))
    assert low <= ledger.saved_bytes / GIB <= high
    assert abs(ledger.original_bytes / GIB - 20.48) < 0.01 * 20.48
    assert options is None or not ledger.left_in_full()


def test_the_table_reads_largest_first_and_explains() -> None:
    model = division.compress(small_net(), masks=False)
    text = str(division.measure(model, torch.randn(16, 3, 32, 32)))
    lines = text.splitlines()
    assert lines[0].split()[0] == "site"
    assert lines[0].split()[-1] == "why"
    assert "16x16x32x32 float32" in lines[1]
    assert "masks=False" in text
    assert lines[-1].startswith("total: ")
    assert "kernels: " in lines[-1]
