"""Gradient error layer by layer: of the low frequencies alone, the high ones alone, and both."""

import pandas as pd

from experiments.figures import frames, style

PARTS = {
    "division-low": ("low frequencies only", style.BLUE, "v"),
    "division-high": ("high frequencies only", style.ORANGE, "^"),
    "division": ("both (DIVISION)", style.VERMILION, "s"),
}


def draw(frame: pd.DataFrame) -> style.Drawing:
    """Draw the first and the last state above each other.

    Args:
        frame: rows of `experiments.errors` of one network and dataset.
    """
    chosen = frame[(frame["metric"] == "layer_error") & frame["label"].isin(PARTS)]
    errors = frames.newest(chosen, ["label", "at", "layer"])
    # The classifier's input is small and stored finely: its error would stretch the axis.
    classifier = errors["layer"] == errors["layer"].iloc[-1]
    last = errors[classifier & (errors["label"] == "division")].iloc[-1]
    errors = errors[~classifier]
    layers = list(dict.fromkeys(errors["layer"]))
    states = frames.by_step(errors)
    shown = list(dict.fromkeys([states[0], states[-1]]))
    with style.look():
        figure = style.figure(style.COLUMN, 1.75 * len(shown) + 0.9)
        panels = figure.subplots(len(shown), 1, sharex=True, sharey=True, squeeze=False)[:, 0]
        for axes, at in zip(panels, shown, strict=True):
            for label, (name, colour, marker) in PARTS.items():
                part = errors[(errors["at"] == at) & (errors["label"] == label)]
                part = part.set_index("layer").reindex(layers)
                x = range(1, len(layers) + 1)
                axes.plot(x, part["value"], color=colour, marker=marker, label=name, markersize=3)
                axes.fill_between(x, part["p20"], part["p80"], color=colour, alpha=0.2, linewidth=0)
            step = int(errors.loc[errors["at"] == at, "step"].iloc[0])
            axes.set(yscale="log", ylabel="error of the gradient")
            axes.set_title(f"{at}: step {step}")
            axes.axhline(1, color="black", linewidth=0.6)
        least, most = errors["value"].min(), errors["value"].max()
        ticks = [t for t in (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5) if least <= t <= most]
        style.plain_log_ticks(panels[0], "y", ticks)
        panels[-1].set_xlabel(f"layer: {layers[0]} (1) to {layers[-1]} ({len(layers)})")
        panels[-1].set_xticks(range(1, len(layers) + 1, 2 if len(layers) > 12 else 1))
        handles, labels = panels[0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=1)
    caption = (
        "Error of each layer's weight gradient when the backward pass sees only the block means "
        "(low frequencies), only the quantized residual (high frequencies), or both; "
        f"{frames.of_what(errors)}, {frames.seeds_of(errors)}, median over {int(errors['n'].max())}"
        " batches, bands from the 20th to the 80th percentile. Layers are convolutions in the "
        "order of the network; errors are |g - g0| / |g0| of a layer, 1 (line) is as large as the "
        "gradient itself. Not shown: the "
        f"classifier ({last['layer']}), whose input has more bits (both: {last['value']:.2g} at "
        f"step {int(last['step'])})."
    )
    return style.Drawing(figure, caption)
