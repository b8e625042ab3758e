"""gradient_error: zero for exact methods, honest about noise and bias."""

import copy

import pytest
import torch
from conftest import small_net
from torch.nn import functional as F

import division


@pytest.fixture
def batch() -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(16, 3, 32, 32), torch.arange(16) % 10


def test_identity_has_no_error(batch) -> None:
    error = division.gradient_error(small_net(), "identity", batch, F.cross_entropy, draws=2)
    assert (error.relative, error.bias) == (0.0, 0.0)
    assert error.cosine == pytest.approx(1.0)


def test_more_bits_are_closer_and_the_model_is_left_alone(batch) -> None:
    model = division.compress(small_net(), bits=3)
    before = copy.deepcopy(model.state_dict())
    rng = torch.get_rng_state()
    errors = [
        division.gradient_error(model, "division", batch, F.cross_entropy, bits=bits, draws=3)
        for bits in (1, 2, 4, 8)
    ]
    relative = [error.relative for error in errors]
    assert relative == sorted(relative, reverse=True)
    assert relative[-1] < 0.05
    assert errors[-1].cosine > 0.99
    assert all(torch.equal(v, before[k]) for k, v in model.state_dict().items())
    assert torch.equal(rng, torch.get_rng_state())
    assert {layer.name for layer in errors[0].layers} == dict(model.named_parameters()).keys()
    assert "9.weight" in str(errors[0])


def test_noise_averages_out_but_a_bias_stays(batch) -> None:
    model = small_net()
    options = {"draws": 16, "batch": batch, "loss_fn": F.cross_entropy}
    noisy = division.gradient_error(model, "division", bits=4, **options)
    biased = division.gradient_error(model, "division", keep="low", **options)
    assert noisy.bias < 0.6 * noisy.relative
    assert biased.bias > 0.99 * biased.relative


def test_draws_must_be_positive(batch) -> None:
    with pytest.raises(ValueError, match="draws must be a whole number from 1"):
        division.gradient_error(small_net(), "division", batch, F.cross_entropy, draws=0)


def test_buffers_do_not_drift_between_draws(batch) -> None:
    model = torch.nn.Sequential(
        torch.nn.utils.spectral_norm(torch.nn.Conv2d(3, 8, 3)),
        torch.nn.AdaptiveAvgPool2d(1),
        torch.nn.Flatten(),
        torch.nn.Linear(8, 10),
    )
    assert division.gradient_error(model, "identity", batch, F.cross_entropy, draws=2).relative == 0


def test_a_frozen_model_has_no_gradient_to_compare(batch) -> None:
    with pytest.raises(ValueError, match="no parameter that requires a gradient"):
        division.gradient_error(
            small_net().requires_grad_(False), "division", batch, F.cross_entropy
        )
