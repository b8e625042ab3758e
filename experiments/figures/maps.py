"""What a compressed activation map looks like."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from experiments.figures import style


@dataclass(frozen=True)
class Picture:
    """One map as the backward pass sees it."""

    values: np.ndarray
    bits: float  # an element, of the whole tensor


def draw(rows: Mapping[str, Mapping[str, Picture]], of_what: str) -> style.Drawing:
    """Draw a grid: a row for every map, the original first, all of a row on one scale.

    Args:
        rows: for each map, by its name, the pictures by theirs; the first is the original.
        of_what: where the maps come from.
    """
    names = list(next(iter(rows.values())))
    with style.look():
        figure = style.figure(style.PAGE, 1.12 * len(rows) + 0.35)
        grid = figure.subplots(len(rows), len(names), squeeze=False)
        for line, (row, pictures) in zip(grid, rows.items(), strict=True):
            original = pictures[names[0]].values
            span = float(original.max() - original.min()) or 1.0
            for axes, name in zip(line, names, strict=True):
                _panel(axes, pictures[name], original, name, span)
                if axes not in grid[0]:
                    axes.set_title("")
            line[0].set_ylabel(row, fontsize=6.5)
    caption = (
        f"Activation maps as the backward pass sees them, {of_what}: the original, the block means "
        "and the residual that DIVISION stores, their sum, and what each rival gives back. Maps of "
        "a row share one grey scale, but for the residual, whose scale is centred on zero. Below "
        "each: bits an element of the whole tensor, and the error relative to the standard "
        "deviation of the map."
    )
    return style.Drawing(figure, caption)


def _panel(axes, picture: Picture, original: np.ndarray, name: str, span: float) -> None:
    low, high = float(original.min()), float(original.max())
    if name == "residual":
        low, high = -span / 2, span / 2
    axes.imshow(picture.values, cmap="gray", vmin=low, vmax=high, interpolation="nearest")
    axes.set_xticks([])
    axes.set_yticks([])
    axes.grid(visible=False)
    for spine in axes.spines.values():
        spine.set_visible(True)
    axes.set_title(name, fontsize=7, pad=2)
    below = f"{picture.bits:.1f} bit"
    if name not in ("original", "residual"):
        error = np.sqrt(((picture.values - original) ** 2).mean()) / (original.std() or 1.0)
        below += f", {error:.2f}"
    axes.set_xlabel(below, fontsize=6, labelpad=1.5)
