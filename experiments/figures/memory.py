"""What is held for the backward pass, by kind of layer, before and after compression."""

import pandas as pd
from matplotlib.axes import Axes

from experiments.figures import frames, style

GIB = 2**30
_COLOURS = {
    "normalisation": style.BLUE,
    "ReLU": style.ORANGE,
    "convolution": style.VERMILION,
    "pooling": style.GREEN,
    "checkpointed block": style.PURPLE,
    "other": style.GREY,
}
_SMALL = 4.0  # times less than stock: shown again on a scale of their own


def draw(frame: pd.DataFrame) -> style.Drawing:
    """Draw a bar for every method, and the small ones again, enlarged.

    Args:
        frame: rows of `experiments.kinds`.
    """
    rows = frames.newest(frame, ["label", "kind"])
    wide = rows.pivot_table(index="label", columns="kind", values="value", sort=False) / GIB
    wide = wide.fillna(0.0)
    total = wide.sum(axis=1).sort_values(ascending=False)
    wide = wide.loc[total.index]
    small = [label for label in wide.index if total["vanilla"] / total[label] >= _SMALL]
    with style.look():
        figure = style.figure(style.COLUMN, 0.24 * (len(wide) + len(small)) + 2.1)
        ratios = [len(wide), max(1, len(small))]
        panels = figure.subplots(1 + bool(small), 1, squeeze=False, height_ratios=ratios)[:, 0]
        _bars(panels[0], wide)
        if small:
            _bars(panels[1], wide.loc[small])
            panels[1].set_title("the small ones, enlarged")
        for axes in panels:
            axes.set_xlabel("held for the backward pass, GiB")
        handles, labels = panels[0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=3)
    batch = int(rows["batch"].iloc[0])
    caption = (
        f"Memory held for the backward pass of {rows['model'].iloc[0]} at batch {batch}, "
        f"{rows['dataset'].iloc[0].removeprefix('fake-')} pixels, fp32, by the kind of layer that "
        "saves it; counted exactly without data (no seeds). What a ReLU puts out is what the next "
        "convolution takes in: stock PyTorch holds it once, counted under ReLU; compressed, the "
        "ReLU keeps a 1-bit mask and the convolution its own small copy, which recompute rebuilds "
        "from the copy of the norm."
    )
    return style.Drawing(figure, caption)


def _bars(axes: Axes, wide: pd.DataFrame) -> None:
    places = range(len(wide))
    left = pd.Series(0.0, index=wide.index)
    for kind, colour in _COLOURS.items():
        if kind in wide and wide[kind].max() > 0.005 * wide.sum(axis=1).max():
            axes.barh(places, wide[kind], left=left, color=colour, height=0.75, label=kind)
            left = left + wide[kind]
    total = wide.sum(axis=1)
    for place, value in zip(places, total, strict=True):
        axes.text(value, place, f" {value:.2f}", va="center", fontsize=7)
    axes.set_yticks(list(places), labels=list(wide.index))
    axes.invert_yaxis()
    axes.set_xlim(0, total.max() * 1.15)
    axes.grid(visible=False, axis="y")
