"""Networks as torchvision ships them: exact under the identity method, trainable under division."""

import copy

import pytest
import torch
import torchvision
from conftest import assert_same, gradients
from torch import nn

import division
from division.ledger import LARGE

FAST = ["resnet18", "densenet121", "mobilenet_v3_small", "shufflenet_v2_x1_0", "regnet_y_400mf"]
SLOW = ["resnet50", "wide_resnet50_2", "vgg16_bn", "efficientnet_b0", "googlenet", "fcn_resnet50"]
NETWORKS = [*FAST, *(pytest.param(name, marks=pytest.mark.slow) for name in SLOW)]


def build(name: str) -> nn.Module:
    if name == "fcn_resnet50":
        return torchvision.models.segmentation.fcn_resnet50(
            weights=None, weights_backbone=None, aux_loss=True
        )
    options = {"init_weights": False} if name == "googlenet" else {}
    return torchvision.models.get_model(name, weights=None, **options)


@pytest.mark.parametrize("name", NETWORKS)
def test_identity_is_bit_equal(name: str, layout: torch.memory_format) -> None:
    model = build(name).to(memory_format=layout).train()
    x = torch.randn(2, 3, 64, 64).contiguous(memory_format=layout)
    twin = division.compress(copy.deepcopy(model), "identity")
    assert_same(gradients(model, x), gradients(twin, x))
    assert_same(list(model.buffers()), list(twin.buffers()))


@pytest.mark.parametrize("name", NETWORKS)
def test_division_trains_and_the_ledger_names_what_stays(
    name: str, layout: torch.memory_format
) -> None:
    model = division.compress(build(name).to(memory_format=layout).train())
    x = torch.randn(2, 3, 64, 64).contiguous(memory_format=layout)
    ledger = division.measure(model, x)
    assert ledger.ratio > 6
    kept = [r for r in ledger.rows if not r.compressed and r.bytes_after >= LARGE]
    assert ledger.left_in_full() == sorted(kept, key=lambda r: -r.bytes_after)
    assert all(r.why and r.site for r in kept)
    found = gradients(model, x)
    assert all(g is None or bool(g.isfinite().all()) for g in found)
    optimizer = torch.optim.SGD(model.parameters(), 1e-3)
    before = copy.deepcopy(model.state_dict())
    optimizer.step()
    assert any(not torch.equal(before[k], v) for k, v in model.state_dict().items())
