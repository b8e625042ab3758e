"""Throughput against batch size, for every method."""

import pandas as pd

from experiments.figures import frames, style


def draw(frame: pd.DataFrame) -> style.Drawing:
    """Draw images a second, and the ratio to vanilla below.

    Args:
        frame: rows of one network with the metrics of `experiments.table4`; those of a budget are
            rings, at the largest batch that it allows.
    """
    frame = frame[frame["metric"].isin(["throughput", "throughput_ratio"])]
    within = frames.newest(frame[frame["budget"].notna()], ["method", "label", "metric"])
    rows = frames.newest(frame[frame["budget"].isna()], ["method", "label", "batch", "metric"])
    batches = sorted(rows["batch"].unique())
    with style.look():
        figure = style.figure(style.COLUMN, 4.2)
        panels = figure.subplots(2, 1, sharex=True)
        for axes, metric in zip(panels, ("throughput", "throughput_ratio"), strict=True):
            of_metric = rows[rows["metric"] == metric]
            for method in style.in_order(list(of_metric["method"].unique())):
                # Variants of a method (as published, say) have a label of their own.
                part = of_metric[of_metric["method"] == method]
                for number, (label, line) in enumerate(part.groupby("label", sort=False)):
                    line = line.sort_values("batch")
                    axes.errorbar(
                        line["batch"],
                        line["value"],
                        yerr=[line["value"] - line["p20"], line["p80"] - line["value"]],
                        color=style.colour(method),
                        marker=style.marker(method),
                        linestyle=("-", "--", ":")[number % 3],
                        markerfacecolor="white" if number else None,
                        capsize=1.5,
                        label=label,
                    )
            largest = within[within["metric"] == metric]
            axes.scatter(
                largest["batch"],
                largest["value"],
                s=34,
                facecolors="none",
                edgecolors=[style.colour(method) for method in largest["method"]],
                zorder=3,
            )
            axes.set_xscale("log")
        panels[0].set(ylabel="images/s", ylim=(0, None))
        panels[1].set(ylabel="throughput / vanilla", xlabel="batch, images", ylim=(0, None))
        style.plain_log_ticks(panels[1], "x", batches)
        handles, labels = panels[0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=3)
    machine = rows["machine"].iloc[0]
    caption = (
        f"Throughput of a training step against batch size, {frames.of_what(rows)}: medians of "
        f"{int(rows['n'].max())} alternating rounds in one process, bars from the 20th to the 80th "
        f"percentile, on {machine['cpu']}, {machine['cores']} cores."
    )
    if len(within):
        caption += (
            f" Rings: every method at the largest batch whose step fits into "
            f"{within['budget'].iloc[0]} (up to a limit), its ratio to vanilla at vanilla's own."
        )
    return style.Drawing(figure, caption)
