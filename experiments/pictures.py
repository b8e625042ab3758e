"""Activation maps as each method gives them back: a small seeded computation, for a figure."""

from omegaconf import DictConfig
from torch import Tensor

import division
from experiments import build, spectrum
from experiments.figures.maps import Picture
from experiments.states import at_state, states

STEP = 100  # of the vanilla training: enough for filters to take shape
SAMPLE = 1  # of the batch
CODECS = {  # as the columns of the figure, after the original
    "block means": ("division", {"keep": "low"}),
    "residual": ("division", {"keep": "high"}),
    "division": ("division", {}),
    "actnn": ("actnn", {}),
    "pooling": ("pooling", {}),
    "lossy": ("lossy", {"error_bound": 0.1}),
}


def pictures(config: DictConfig) -> dict[str, dict[str, Picture]]:
    """Return pictures of maps from the start, the middle and the end of a network.

    Args:
        config: of `experiments.errors`; its training runs up to `STEP`.
    """
    config = config.copy()
    config.at = {"shown": STEP}
    data = build.dataset(config)
    model = at_state(config, data, states(config, data)["shown"])
    x, _ = next(iter(data.train.batches(config.batch, 0, config.seed, train=False)))
    inputs = spectrum.inputs_of_convolutions(model, x)
    layers = list(inputs)
    chosen = [layers[0], layers[len(layers) // 4], layers[len(layers) // 2]]
    return {layer: of_map(inputs[layer], SAMPLE) for layer in chosen}


def of_map(maps: Tensor, sample: int) -> dict[str, Picture]:
    """Return the liveliest channel of a sample, as it is and as each codec gives it back."""
    channel = int(maps[sample].flatten(1).std(1).argmax())
    found = {"original": Picture(maps[sample, channel].numpy(), 32.0)}
    for name, (codec_name, options) in CODECS.items():
        codec = division.codecs.get(codec_name, **options)
        packed = codec.compress(maps, seed=0)
        back = codec.decompress(packed)[sample, channel].float()
        found[name] = Picture(back.numpy(), 8 * packed.nbytes / maps.numel())
    return found
