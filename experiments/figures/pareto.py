"""Accuracy, memory and throughput of every method, and which of them no other beats."""

import pandas as pd
from matplotlib.axes import Axes

from experiments.figures import frames, style


def summary(trained: pd.DataFrame, benchmarked: pd.DataFrame) -> pd.DataFrame:
    """Return a line for every method: top-1 (mean, sd, n), bits an element, throughput ratio.

    Args:
        trained: rows of training runs of one network and dataset.
        benchmarked: rows of the benchmark of the same network; may be empty.
    """
    lines = {}
    for method, part in trained.groupby("method"):
        final = part[(part["metric"] == "final_top1") & (part["status"] == "ok")]["value"]
        if not len(final):
            continue
        saved, stock = (
            part[part["metric"] == metric]["value"].iloc[-1]
            for metric in ("saved_bytes", "original_bytes")
        )
        line = {"top1": final.mean(), "sd": final.std(), "n": len(final)}
        line |= {"saved": saved, "bits": 32 * saved / stock, "compression": stock / saved}
        speed = benchmarked[
            (benchmarked["method"] == method) & (benchmarked["metric"] == "throughput_ratio")
        ]
        peak = benchmarked[
            (benchmarked["method"] == method) & (benchmarked["metric"] == "peak_bytes")
        ]
        for name, rows, column in (
            ("speed", speed, "value"),
            ("speed_p20", speed, "p20"),
            ("speed_p80", speed, "p80"),
            ("peak", peak, "value"),
        ):
            line[name] = rows[column].iloc[-1] if len(rows) else float("nan")
        lines[method] = line
    return pd.DataFrame.from_dict(lines, orient="index").loc[style.in_order(list(lines))]


def front(table: pd.DataFrame, less: str, more: str) -> list[str]:
    """Return the methods that no other beats in both columns: little of `less`, much of `more`."""
    found = []
    for method, row in table.dropna(subset=[less, more]).iterrows():
        better = (table[less] <= row[less]) & (table[more] >= row[more])
        strictly = (table[less] < row[less]) | (table[more] > row[more])
        if not (better & strictly).any():
            found.append(method)
    return sorted(found, key=lambda method: table.loc[method, less])


def draw(trained: pd.DataFrame, benchmarked: pd.DataFrame) -> style.Drawing:
    """Draw top-1 and throughput against what is held, with the front of each.

    Args:
        trained: rows of training runs of one network and dataset.
        benchmarked: rows of the benchmark of the same network; may be empty.
    """
    table = summary(trained, benchmarked)
    has_speed = bool(table["speed"].notna().any())
    with style.look():
        figure = style.figure(style.PAGE if has_speed else style.COLUMN, 2.7)
        panels = figure.subplots(1, 1 + has_speed, squeeze=False)[0]
        _points(panels[0], table, "top1", [table["sd"], table["sd"]])
        panels[0].set_ylabel("top-1 on the test set, %")
        if has_speed:
            around = [table["speed"] - table["speed_p20"], table["speed_p80"] - table["speed"]]
            _points(panels[1], table, "speed", around)
            panels[1].set_ylabel("throughput / vanilla")
        handles, labels = panels[0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=4 if has_speed else 3)
    seeds = f"n = {int(table['n'].min())}"
    if table["n"].min() != table["n"].max():
        seeds += f" to {int(table['n'].max())}"
    caption = (
        f"Accuracy and throughput against memory, {frames.of_what(trained)} "
        f"({trained['scale'].iloc[0]} scale): top-1 after the last epoch, mean over seeds "
        f"({seeds}; bars are one sample standard deviation where n > 1). Bits an element: what "
        "autograd holds for one training batch, for every fp32 value that stock PyTorch holds."
    )
    if has_speed:
        caption += (
            " Throughput: training steps in alternating rounds of one process, median ratio to "
            f"vanilla with p20-p80, {frames.of_what(benchmarked)}, batch "
            f"{int(benchmarked['batch'].iloc[0])}, on "
            f"{benchmarked['machine'].iloc[0]['cpu']}."
        )
    caption += " The grey line joins the methods that no other beats in both."
    return style.Drawing(figure, caption)


def _points(axes: Axes, table: pd.DataFrame, column: str, around: list[pd.Series]) -> None:
    best = table.loc[front(table, "bits", column)]
    axes.plot(best["bits"], best[column], color="#AAAAAA", linewidth=3, zorder=1, alpha=0.6)
    for method, row in table.iterrows():
        low, high = (part[method] if part[method] == part[method] else 0.0 for part in around)
        axes.errorbar(
            row["bits"],
            row[column],
            yerr=[[low], [high]],
            color=style.colour(method),
            marker=style.marker(method),
            linestyle="none",
            # The ring of vanilla shows what lies on it.
            markersize=9 if method == "vanilla" else 6,
            markerfacecolor="none" if method == "vanilla" else None,
            capsize=2,
            label=method,
        )
    axes.set(xscale="log", xlabel="bits an element (less is better)")
    style.plain_log_ticks(axes, "x", [2, 4, 8, 16, 32])
    axes.set_xlim(1.7, 40)
