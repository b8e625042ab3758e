"""Training curves, and the epochs that each method needs for an accuracy."""

import math

import pandas as pd
from matplotlib.axes import Axes

from experiments.figures import frames, style


def epochs_to(curve: pd.Series, target: float) -> float:
    """Return the first epoch (the index) at which a curve reaches a target, interpolated; or NaN.

    >>> epochs_to(pd.Series([40.0, 60.0], index=[1, 2]), 50.0)
    1.5
    """
    reached = curve[curve >= target]
    if not len(reached):
        return math.nan
    epoch, value = reached.index[0], reached.iloc[0]
    earlier = curve[curve.index < epoch]
    if not len(earlier):
        return float(epoch)
    before, start = earlier.index[-1], earlier.iloc[-1]
    return float(before + (epoch - before) * (target - start) / (value - start))


def draw(frame: pd.DataFrame, share: float = 0.95) -> style.Drawing:
    """Draw top-1 against epochs, and the epochs to `share` of vanilla's final accuracy.

    Args:
        frame: rows of training runs of one network and dataset.
        share: of the accuracy of vanilla, for the second panel.
    """
    runs = frame[frame["metric"] == "top1"].dropna(subset=["epoch"])
    methods = style.in_order(list(runs["method"].unique()))
    curves = {
        method: runs[runs["method"] == method].pivot_table(
            index="epoch", columns="seed", values="value"
        )
        for method in methods
    }
    target = share * curves[methods[0]].iloc[-1].mean()
    with style.look():
        figure = style.figure(style.PAGE, 2.6)
        left, right = figure.subplots(1, 2, width_ratios=[3, 2])
        for method, table in curves.items():
            mean, sd = table.mean(axis=1), table.std(axis=1)
            style_of = {"color": style.colour(method), "marker": style.marker(method)}
            left.plot(mean.index, mean, label=method, markersize=3.5, **style_of)
            if table.shape[1] > 1:
                left.fill_between(
                    mean.index, mean - sd, mean + sd, color=style.colour(method), alpha=0.15
                )
        left.axhline(target, color="black", linewidth=0.8, linestyle=":")
        left.set(xlabel="epoch", ylabel="top-1 on the test set, %")
        left.set_xticks(sorted(runs["epoch"].unique())[:: max(1, runs["epoch"].nunique() // 8)])
        _bars(right, curves, target)
        handles, labels = left.get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=4)
    seeds = {method: table.shape[1] for method, table in curves.items()}
    counts = f"n = {min(seeds.values())}"
    if len(set(seeds.values())) > 1:
        counts += f" to {max(seeds.values())}"
    caption = (
        f"Training curves, {frames.of_what(runs)} ({runs['scale'].iloc[0]} scale, seeds: {counts}; "
        "bands and bars are one sample standard deviation where n > 1). Right: epochs until top-1 "
        f"reaches {target:.1f} %, {share:.0%} of vanilla's last value (dotted on the left), "
        "interpolated between epochs. All runs have the same schedule. "
        "Methods with exact gradients (offload, checkpoint) hide each other."
    )
    return style.Drawing(figure, caption)


def _bars(axes: Axes, curves: dict[str, pd.DataFrame], target: float) -> None:
    for place, (method, table) in enumerate(curves.items()):
        needed = pd.Series([epochs_to(table[seed].dropna(), target) for seed in table])
        if needed.isna().any():
            text = f"not reached by {int(needed.isna().sum())} of {len(needed)}"
            axes.text(0.05, place, text, va="center", fontsize=7)
            continue
        spread = needed.std() if len(needed) > 1 else None
        axes.barh(place, needed.mean(), xerr=spread, color=style.colour(method), height=0.7)
    axes.set_yticks(range(len(curves)), labels=list(curves))
    axes.invert_yaxis()
    axes.grid(visible=False, axis="y")
    axes.set_xlabel(f"epochs to {target:.1f} % top-1")
