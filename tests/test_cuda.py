"""On a machine with a GPU, `make test-gpu`: kernels against definitions, training, memory.

These are the first tests to run there; without a GPU the interpreter and the compiler stand in
(test_gpu_*.py), and fake tensors for the nodes that only a GPU builds (test_fake_cuda.py).
"""

import copy
from collections.abc import Callable

import pytest
import torch
from conftest import assert_same, gradients, small_net
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

import division
from division import kernels
from experiments import models

pytestmark = pytest.mark.gpu
DEVICE = "cuda"
LAST = torch.channels_last

SHAPES = {  # (N, C, H, W), rows and columns of blocks, bits
    "56": ((4, 64, 56, 56), (7, 7), 2),
    "14": ((4, 256, 14, 14), (1, 1), 2),
    "7": ((4, 512, 7, 7), (1, 1), 3),
    "ragged": ((2, 5, 29, 17), (3, 2), 2),
    "112": ((2, 16, 112, 112), (14, 14), 2),
    "images": ((2, 3, 224, 224), (28, 28), 8),
}
TYPES = [torch.float32, torch.bfloat16, torch.float16]


def maps(shape: tuple[int, ...], dtype: torch.dtype, layout: torch.memory_format) -> Tensor:
    return torch.randn(shape).to(DEVICE, dtype).contiguous(memory_format=layout)


def both(operator: Callable[..., object], *arguments: object) -> tuple[list[Tensor], list[Tensor]]:
    """Return what the definition and the kernel make of the same arguments."""
    found = []
    for backend in ("reference", "gpu"):
        with kernels.use(backend):
            made = operator(*arguments)
        found.append(list(made) if isinstance(made, tuple) else [made])
    return found[0], found[1]


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("name", SHAPES)
def test_maps_are_those_of_the_definition(
    name: str, dtype: torch.dtype, layout: torch.memory_format
) -> None:
    shape, blocks, bits = SHAPES[name]
    x = maps(shape, dtype, layout)
    expected, parts = both(kernels.split_maps, x, bits, *blocks, 0, 7)
    assert_same(expected, parts)
    last = layout is LAST
    assert_same(*both(kernels.merge_maps, *parts, bits, *shape[2:], dtype, last))


def test_masks_and_indices_are_those_of_the_definition() -> None:
    x = torch.randn(100_003, device=DEVICE)
    expected, (packed,) = both(kernels.pack_mask, x, 0.0, 1.0)
    assert_same(expected, [packed])
    assert_same(*both(kernels.unpack_mask, packed, x.numel(), 0.0, 1.0, torch.float32))
    _, index = F.max_pool2d(torch.randn(2, 8, 57, 57, device=DEVICE), 3, 2, 1, return_indices=True)
    geometry = ([57, 57], [3, 3], [2, 2], [1, 1], [1, 1])
    expected, (packed,) = both(kernels.pack_window_index, index, *geometry)
    assert_same(expected, [packed])
    assert_same(*both(kernels.unpack_window_index, packed, *geometry))


def test_kernels_make_the_bytes_of_the_cpu() -> None:
    x = torch.randn(4, 64, 28, 28)
    here = kernels.split_maps(x, 2, 3, 3, 0, 7)
    there = kernels.split_maps(x.to(DEVICE), 2, 3, 3, 0, 7)
    assert_same(list(here), [part.cpu() for part in there])


def test_the_kernels_of_a_gpu_are_used_without_being_asked_for() -> None:
    model = division.compress(small_net().to(DEVICE))
    assert division.measure(model, torch.randn(4, 3, 32, 32, device=DEVICE)).kernels == "gpu"


@pytest.fixture
def _deterministic(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.cudnn, "deterministic", True)
    monkeypatch.setattr(torch.backends.cudnn, "benchmark", False)


@pytest.mark.usefixtures("_deterministic")
def test_exact_copies_give_the_stock_gradients(layout: torch.memory_format) -> None:
    model = small_net().to(DEVICE).to(memory_format=layout)
    twin = division.compress(copy.deepcopy(model), "identity")
    x = torch.randn(8, 3, 32, 32, device=DEVICE).contiguous(memory_format=layout)
    assert_same(gradients(model, x), gradients(twin, x))
    nodes = {row.node for row in division.measure(twin, x).rows}
    assert {"CudnnBatchNormBackward0", "NativeDropoutBackward0"} <= nodes


KINDS = {
    "Flash": SDPBackend.FLASH_ATTENTION,
    "Efficient": SDPBackend.EFFICIENT_ATTENTION,
    "Cudnn": SDPBackend.CUDNN_ATTENTION,
}


@pytest.mark.parametrize("kind", KINDS)
def test_attention_is_rebuilt_from_q_k_and_v(kind: str) -> None:
    inputs = [torch.randn(2, 4, 64, 64, device=DEVICE, dtype=torch.bfloat16) for _ in range(3)]
    results, rows = [], {}
    for method in ("vanilla", "identity"):
        leaves = [x.clone().requires_grad_() for x in inputs]
        with sdpa_kernel(KINDS[kind]), division.capture(method) as ledger:
            y = F.scaled_dot_product_attention(*leaves)
        y.float().square().sum().backward()
        results.append([x.grad for x in leaves])
        rows = {row.slot: row for row in ledger.rows if kind in row.node}
    assert rows["output"].codec == "rebuilt"
    # The backward of some kinds adds up in no fixed order.
    for stock, found in zip(*results, strict=True):
        torch.testing.assert_close(found, stock, rtol=2e-2, atol=2e-2)


def steps(method: str, backend: str, amp: bool = False, count: int = 3) -> dict[str, Tensor]:
    """Train a resnet20 for a few steps; return its state."""
    torch.manual_seed(0)
    model = models.build("resnet20").to(DEVICE).to(memory_format=LAST)
    division.compress(model, method)
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    x = maps((16, 3, 32, 32), torch.float32, LAST)
    y = torch.arange(16, device=DEVICE) % 10
    losses = []
    with kernels.use(backend):
        for _ in range(count):
            optimizer.zero_grad()
            with torch.autocast(DEVICE, torch.bfloat16, enabled=amp):
                loss = F.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    assert all(value == value for value in losses)
    assert losses[-1] < losses[0]
    return model.state_dict()


@pytest.mark.usefixtures("_deterministic")
@pytest.mark.parametrize("amp", [False, True])
@pytest.mark.parametrize("method", ["division", "actnn", "lossy", "pooling"])
def test_a_network_trains_alike_with_kernels_and_definitions(method: str, amp: bool) -> None:
    expected, found = (steps(method, backend, amp) for backend in ("reference", "gpu"))
    assert_same(list(expected.values()), list(found.values()))


def step_of(model: nn.Module, x: Tensor) -> None:
    model(x).square().mean().backward()


def peak_of(method: str) -> int:
    """Return how far a step of a resnet18 rises above what is there before it."""
    model = division.compress(models.build("resnet18").to(DEVICE).to(memory_format=LAST), method)
    x = maps((128, 3, 32, 32), torch.float32, LAST)
    step_of(model, x)
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    step_of(model, x)
    return torch.cuda.max_memory_allocated() - before


def test_memory_falls() -> None:
    assert peak_of("division") < peak_of("vanilla") / 2


def test_a_step_never_waits_for_the_gpu() -> None:
    model = division.compress(models.build("resnet20").to(DEVICE).to(memory_format=LAST))
    x = maps((16, 3, 32, 32), torch.float32, LAST)
    step_of(model, x)
    torch.cuda.set_sync_debug_mode("error")
    try:
        step_of(model, x)
    finally:
        torch.cuda.set_sync_debug_mode("default")
