"""Every method on five scales at once."""

import math

import pandas as pd

from experiments.figures import frames, style
from experiments.figures.pareto import summary

SHOWN = ("vanilla", "division", "actnn", "pooling", "lossy", "checkpoint", "autocast")
LEAST_ERROR = 1e-3  # of the gradient: shown as full marks


def scales(table: pd.DataFrame) -> pd.DataFrame:
    """Return marks from 0 (centre) to 1 (rim) on every scale, a line for every method.

    Accuracy: from 5 points below the best to the best. Saved and peak memory: logarithm of how
    many times less than vanilla, over that of the best. Throughput: ratio to vanilla, over the
    best. Gradients: logarithm of the relative error, from 1 to LEAST_ERROR.
    """
    marks = pd.DataFrame(index=table.index)
    marks["accuracy"] = (1 + (table["top1"] - table["top1"].max()) / 5).clip(0, 1)
    for name, column in (("activations", "bits"), ("peak memory", "peak")):
        gain = (table[column].get("vanilla", table[column].max()) / table[column]).map(math.log)
        marks[name] = (gain / gain.max()).clip(0, 1)
    marks["throughput"] = table["speed"] / table["speed"].max()
    error = table["error"].clip(LEAST_ERROR, 1).map(math.log)
    marks["exact gradients"] = error / math.log(LEAST_ERROR)
    return marks


def draw(trained: pd.DataFrame, benchmarked: pd.DataFrame, errors: pd.DataFrame) -> style.Drawing:
    """Draw a polygon for every method; a method that lacks a measurement is left out.

    Args:
        trained: rows of training runs of one network and dataset.
        benchmarked: rows of the benchmark of the same network.
        errors: rows of `experiments.errors` of the same network and dataset.
    """
    table = summary(trained, benchmarked)
    last = errors[(errors["metric"] == "gradient_error") & (errors["at"] == "end")]
    last = frames.newest(last, ["label"]).set_index("label")["value"]
    table["error"] = last.reindex(table.index)
    table.loc[table.index == "vanilla", "error"] = 0.0
    table = table[table.index.isin(SHOWN)].dropna(subset=["speed", "peak", "error"])
    marks = scales(table)
    angles = [2 * math.pi * i / len(marks.columns) for i in range(len(marks.columns))]
    with style.look():
        figure = style.figure(style.PAGE, 0.5 + 1.9 * math.ceil(len(marks) / 4))
        grid = figure.subplots(
            math.ceil(len(marks) / 4), 4, subplot_kw={"projection": "polar"}, squeeze=False
        )
        for axes in grid.flat[len(marks) :]:
            axes.set_visible(False)
        for axes, (method, row) in zip(grid.flat, marks.iterrows(), strict=False):
            values = row.tolist()
            closed = [*values, values[0]], [*angles, angles[0]]
            axes.plot(closed[1], closed[0], color=style.colour(method))
            axes.fill(closed[1], closed[0], color=style.colour(method), alpha=0.25)
            axes.set_theta_offset(math.pi / 2)
            axes.set_theta_direction(-1)
            axes.set_ylim(0, 1)
            axes.set_yticks([0.25, 0.5, 0.75, 1], labels=[])
            labels = [name.replace(" ", "\n") for name in marks.columns]
            axes.set_xticks(angles, labels=labels, fontsize=6)
            axes.tick_params(axis="x", pad=0)
            for text, angle in zip(axes.get_xticklabels(), angles, strict=True):
                side = round(math.sin(angle), 3)  # labels grow away from the circle
                text.set_horizontalalignment(
                    "left" if side > 0 else "right" if side < 0 else "center"
                )
            axes.set_title(method, color=style.colour(method), fontweight="bold", pad=8)
    caption = (
        f"Every method on five scales, {frames.of_what(trained)} ({trained['scale'].iloc[0]} scale,"
        f" n = {int(table['n'].min())}); the rim is the best. Accuracy: from 5 points below the "
        "best top-1 to the best. Activations and peak memory: logarithm of how many times less "
        "than vanilla, relative to the best. Throughput: ratio to vanilla, relative to the best "
        f"({frames.of_what(benchmarked)}). Exact gradients: logarithm of the relative error at the "
        f"end of a vanilla training, from 1 to {LEAST_ERROR:g} ({frames.of_what(errors)}, 1 seed). "
        "Methods that lack one of the measurements are left out."
    )
    return style.Drawing(figure, caption)
