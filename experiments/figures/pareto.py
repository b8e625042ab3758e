"""Accuracy, memory and throughput of every method, and which of them no other beats."""

import pandas as pd
from matplotlib.axes import Axes

from experiments.figures import families, frames, style


def summary(trained: pd.DataFrame, benchmarked: pd.DataFrame) -> pd.DataFrame:
    """Return a line for every setting: top-1 (mean, sd, n), bits an element, throughput ratio.

    Args:
        trained: rows of training runs of one network and dataset.
        benchmarked: rows of the benchmark of the same network; may be empty.
    """
    lines, benchmarked = {}, named(benchmarked)
    for name, part in named(trained).groupby("name"):
        final = part[(part["metric"] == "final_top1") & (part["status"] == "ok")]["value"]
        if not len(final):
            continue
        line = {"top1": final.mean(), "sd": final.std(), "n": len(final), **_held(part)}
        lines[name] = line | _speed(benchmarked[benchmarked["name"] == name])
    return _in_order(lines)


def steps(benchmarked: pd.DataFrame) -> pd.DataFrame:
    """Return bits an element and throughput ratio of every setting of one benchmark."""
    lines = {name: _held(part) | _speed(part) for name, part in named(benchmarked).groupby("name")}
    return _in_order(lines)


def named(frame: pd.DataFrame) -> pd.DataFrame:
    """Add the name of the setting: the method, and the family of DIVISION's variants."""
    pairs = zip(frame["method"], frame["options"], strict=True)
    return frame.assign(name=[families.name_of(method, options) for method, options in pairs])


def front(table: pd.DataFrame, less: str, more: str) -> list[str]:
    """Return the settings that no other beats in both columns: little of `less`, much of `more`."""
    found = []
    for name, row in table.dropna(subset=[less, more]).iterrows():
        better = (table[less] <= row[less]) & (table[more] >= row[more])
        strictly = (table[less] < row[less]) | (table[more] > row[more])
        if not (better & strictly).any():
            found.append(name)
    return sorted(found, key=lambda name: table.loc[name, less])


def draw(trained: pd.DataFrame, benchmarked: pd.DataFrame) -> style.Drawing:
    """Draw top-1 and throughput against what is held, with the front of each.

    Args:
        trained: rows of training runs of one network and dataset.
        benchmarked: rows of a benchmark with what is held; may be empty.
    """
    table = summary(trained, benchmarked[:0])
    has_speed = bool(len(benchmarked))
    with style.look():
        figure = style.figure(style.PAGE if has_speed else style.COLUMN, 2.9)
        panels = figure.subplots(1, 1 + has_speed, squeeze=False)[0]
        _points(panels[0], table, "top1", [table["sd"], table["sd"]])
        panels[0].set_ylabel("top-1 on the test set, %")
        panels[0].set_title(frames.of_what(trained))
        if has_speed:
            speed = steps(benchmarked)
            around = [speed["speed"] - speed["speed_p20"], speed["speed_p80"] - speed["speed"]]
            _points(panels[1], speed, "speed", around)
            panels[1].set_ylabel("throughput / vanilla")
            panels[1].set_title(frames.of_what(benchmarked))
        style.legend(figure, list(panels), ncols=4 if has_speed else 2)
    seeds = f"n = {int(table['n'].min())}"
    if table["n"].min() != table["n"].max():
        seeds += f" to {int(table['n'].max())}"
    caption = (
        f"Accuracy and throughput against memory. Left: {frames.of_what(trained)} "
        f"({trained['scale'].iloc[0]} scale), top-1 after the last epoch, mean over seeds "
        f"({seeds}; bars are one sample standard deviation where n > 1). Bits an element: what "
        "autograd holds for one training batch, for every fp32 value that stock PyTorch holds."
    )
    if has_speed:
        caption += (
            f" Right: {frames.of_what(benchmarked)}, batch {int(benchmarked['batch'].iloc[0])}: "
            "training steps in alternating rounds of one process, median ratio to vanilla of "
            f"{int(benchmarked['n'].max())} rounds with p20-p80, on "
            f"{benchmarked['machine'].iloc[0]['cpu']}."
        )
    caption += " The grey line joins the settings that no other beats in both."
    return style.Drawing(figure, caption)


def _held(part: pd.DataFrame) -> dict[str, object]:
    """Return what a setting is and holds, from its rows."""
    method, options = part["method"].iloc[0], part["options"].iloc[-1]
    own = {"method": method, "family": families.family(options) if method == "division" else ""}
    found = [
        part[part["metric"] == metric]["value"] for metric in ("saved_bytes", "original_bytes")
    ]
    if not all(map(len, found)):
        return own
    saved, stock = (values.iloc[-1] for values in found)
    return own | {"saved": saved, "bits": 32 * saved / stock, "compression": stock / saved}


def _speed(rows: pd.DataFrame) -> dict[str, float]:
    """Return throughput and peak of a setting, NaN where they were not measured."""
    speed = rows[rows["metric"] == "throughput_ratio"]
    peak = rows[rows["metric"] == "peak_bytes"]
    found = {}
    for name, part, column in (
        ("speed", speed, "value"),
        ("speed_p20", speed, "p20"),
        ("speed_p80", speed, "p80"),
        ("peak", peak, "value"),
    ):
        found[name] = part[column].iloc[-1] if len(part) else float("nan")
    return found


def _in_order(lines: dict[str, dict[str, object]]) -> pd.DataFrame:
    """Lay lines out as all figures do: by method, then by family."""
    methods = style.in_order([str(line["method"]) for line in lines.values()])
    looks = list(families.LOOKS)
    order = sorted(
        lines,
        key=lambda name: (
            methods.index(str(lines[name]["method"])),
            looks.index(str(lines[name]["family"])),
            name,
        ),
    )
    return pd.DataFrame.from_dict(lines, orient="index").loc[order]


def _points(axes: Axes, table: pd.DataFrame, column: str, around: list[pd.Series]) -> None:
    best = table.loc[front(table, "bits", column)]
    axes.plot(best["bits"], best[column], color="#AAAAAA", linewidth=3, zorder=1, alpha=0.6)
    for name, row in table.iterrows():
        low, high = (part[name] if part[name] == part[name] else 0.0 for part in around)
        colour, marker, filled = families.look(row["method"], row["family"])
        vanilla = name == "vanilla"
        axes.errorbar(
            row["bits"],
            row[column],
            yerr=[[low], [high]],
            color=colour,
            marker=marker,
            linestyle="none",
            # The ring of vanilla shows what lies on it.
            markersize=9 if vanilla else 6,
            markerfacecolor="none" if vanilla else colour if filled else "white",
            capsize=2,
            label=name,
        )
    axes.set(xscale="log", xlabel="stored, bits an element (less is better)")
    style.plain_log_ticks(axes, "x", [2, 4, 8, 16, 32])
    axes.set_xlim(1.7, 40)
