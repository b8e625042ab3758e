"""Where the energy of activations lies: per layer, by spatial frequency."""

import torch
from torch import Tensor, nn

from division.frequency import block_means
from division.state import unchanged

# Upper ends of the bands, in cycles a pixel; means of 8 x 8 blocks can follow up to 1/16.
BANDS = {"mean": 0.0, "1/16": 1 / 16, "1/8": 1 / 8, "1/4": 1 / 4, "1/2": 1 / 2, "corner": 1.0}
SMALLEST = 4  # pixels: a smaller map has no spectrum to speak of


def shares(maps: Tensor) -> dict[str, float]:
    """Return the share of the energy of maps (N, C, H, W) in every band.

    A band holds the frequencies above the band before, up to its own end; "corner" are those that
    only diagonal patterns have.
    """
    height, width = maps.shape[2:]
    power = torch.fft.fft2(maps.double()).abs().square().mean((0, 1))
    across, down = torch.fft.fftfreq(width).double(), torch.fft.fftfreq(height).double()
    radius = (down[:, None].square() + across.square()).sqrt()
    total = float(power.sum()) or 1.0
    found, below = {}, -1.0
    for band, end in BANDS.items():
        inside = (radius > below) & (radius <= end + 1e-9)
        found[band] = float(power[inside].sum()) / total
        below = end + 1e-9
    return found


def low_share(maps: Tensor, block: int) -> float:
    """Return the share of the energy that the means of block x block blocks carry."""
    rows, cols = (max(1, size // block) for size in maps.shape[2:])
    low = block_means(maps.float(), rows, cols, 0).double()
    size = maps.shape[2] * maps.shape[3] / (rows * cols)
    total = float(maps.double().square().sum()) or 1.0
    return float(low.square().sum()) * size / total


def inputs_of_convolutions(model: nn.Module, x: Tensor) -> dict[str, Tensor]:
    """Return what every convolution of a model sees, in the order in which they run."""
    found: dict[str, Tensor] = {}

    def look(path: str) -> object:
        def hook(module: nn.Module, inputs: tuple[Tensor, ...]) -> None:
            found[path] = inputs[0].detach()

        return hook

    named = [(path, m) for path, m in model.named_modules() if isinstance(m, nn.Conv2d)]
    handles = [module.register_forward_pre_hook(look(path)) for path, module in named]
    try:
        with torch.no_grad(), unchanged(model):
            model(x)
    finally:
        for handle in handles:
            handle.remove()
    return {path: maps for path, maps in found.items() if min(maps.shape[2:]) >= SMALLEST}
