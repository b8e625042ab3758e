"""Spectrum of the activations, layer by layer."""

import pandas as pd

from experiments.figures import frames, style
from experiments.spectrum import BANDS

_COLOURS = ("#08306B", "#2171B5", "#6BAED6", "#C6DBEF", "#FDD0A2", "#F16913")
_NAMES = {
    "mean": "mean",
    "1/16": "to 1/16",
    "1/8": "to 1/8",
    "1/4": "to 1/4",
    "1/2": "to 1/2",
    "corner": "above 1/2",
}


def draw(frame: pd.DataFrame) -> style.Drawing:
    """Draw stacked shares of the energy, at the first and the last state.

    Args:
        frame: rows of `experiments.errors` of one network and dataset.
    """
    chosen = frame[frame["metric"].isin(["energy_share", "low_share"]) & frame["layer"].notna()]
    shares = frames.newest(chosen, ["metric", "at", "layer", "band"])
    layers = list(dict.fromkeys(shares["layer"]))
    states = frames.by_step(shares)
    shown = list(dict.fromkeys([states[0], states[-1]]))
    x = range(1, len(layers) + 1)
    with style.look():
        figure = style.figure(style.COLUMN, 1.6 * len(shown) + 0.9)
        panels = figure.subplots(len(shown), 1, sharex=True, sharey=True, squeeze=False)[:, 0]
        for axes, at in zip(panels, shown, strict=True):
            part = shares[shares["at"] == at]
            bottom = pd.Series(0.0, index=layers)
            for band, colour in zip(BANDS, _COLOURS, strict=True):
                height = part[part["band"] == band].set_index("layer")["value"].reindex(layers)
                axes.bar(x, height, bottom=bottom, color=colour, width=0.9, label=_NAMES[band])
                bottom = bottom + height
            low = part[part["metric"] == "low_share"].set_index("layer")["value"].reindex(layers)
            name = "in means of 8 x 8 blocks"
            axes.plot(x, low, "_", color="black", markersize=7, markeredgewidth=1.6, label=name)
            step = int(part["step"].iloc[0])
            axes.set(ylabel="share of energy", ylim=(0, 1), title=f"{at}: step {step}")
            axes.grid(visible=False)
        panels[-1].set_xlabel(f"input of {layers[0]} (1) to {layers[-1]} ({len(layers)})")
        panels[-1].set_xticks(list(x)[:: 2 if len(layers) > 12 else 1])
        marks, *handles = panels[0].get_legend_handles_labels()[0]  # lines come before bars
        figure.legend(
            handles=[*handles, marks],
            loc="outside lower center",
            ncols=3,
            title="cycles a pixel",
            title_fontsize=7,
        )
    caption = (
        "Where the energy of the inputs of convolutions lies, by spatial frequency: "
        f"{frames.of_what(shares)}, one batch of {int(shares['batch'].max())} images, "
        f"{frames.seeds_of(shares)}. Power spectra are averaged over samples and channels; the bar "
        "across each column is the share that the means of 8 x 8 blocks carry, which is what "
        "DIVISION keeps in bf16."
    )
    return style.Drawing(figure, caption)
