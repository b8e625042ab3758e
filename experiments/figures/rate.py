"""Rate and distortion: gradient error against bits an element, for every method."""

from collections.abc import Mapping

import pandas as pd
from matplotlib.axes import Axes

from experiments.figures import families, frames, style

EXACT = 1e-6  # a smaller error is rounding alone
# One option of DIVISION changed at a time would be a cloud; Table 5 has them.
ABLATED = {"keep", "block", "align", "rounding", "fine_bits"}
# What a line runs along, and what does not make it another.
RATES = {"bits", "block", "target", "error_bound", "interval"}
_SCOPES = {"conv": "convolutions only", "all": "everything"}


def draw(frame: pd.DataFrame) -> style.Drawing:
    """Draw a panel for every state of the training.

    Args:
        frame: rows of `experiments.errors` of one network and dataset.
    """
    points = frames.newest(frame, ["label", "at", "metric", "seed"])
    states = frames.by_step(points[points["metric"] == "gradient_error"])
    values = points.loc[points["metric"] == "gradient_error", "value"]
    floor = values[values > EXACT].min() / 3  # where methods without error stand
    with style.look():
        figure = style.figure(style.PAGE, 3.3)
        panels = figure.subplots(1, len(states), sharey=True, squeeze=False)[0]
        for axes, at in zip(panels, states, strict=True):
            _panel(axes, points[points["at"] == at], at, floor)
        panels[0].set_ylabel("gradient error |g - g0| / |g0|")
        style.legend(figure, list(panels), ncols=4)
    errors = points[points["metric"] == "gradient_error"]
    caption = (
        f"Gradient error against what is stored, {frames.of_what(errors)}: |g - g0| / |g0| over "
        "all parameters (root mean square over draws of the rounding noise; median over "
        f"{_batches(errors)} batches of {_images(errors)} images, bars from the 20th to the 80th "
        f"percentile) at {errors['at'].nunique()} states of one vanilla training "
        f"({frames.seeds_of(errors)}). Bits an element: all that is held for the backward pass, "
        "masks and metadata included, for every fp32 value that stock PyTorch holds. Methods "
        "without error stand on the lowest line. Along a line the bits a code, the block or the "
        "error bound change. Recompute (not in the paper) rebuilds what a cheap layer can, deep "
        "also residual sums. Dotted: how far the gradient of one batch is from "
        "the mean over many, the noise that SGD has anyway."
    )
    return style.Drawing(figure, caption)


def _panel(axes: Axes, points: pd.DataFrame, at: str, floor: float) -> None:
    errors, bits = (
        points[points["metric"] == metric].set_index("label")
        for metric in ("gradient_error", "bits_per_element")
    )
    lines: dict[tuple[str, str], list[str]] = {}
    for label, row in errors.iterrows():
        if is_ablation(row["method"], row["options"]):
            continue
        lines.setdefault((row["method"], variant(row["method"], row["options"])), []).append(label)
    order = style.in_order([method for method, _ in lines])
    for key in sorted(lines, key=lambda key: (order.index(key[0]), key[1])):
        _line(axes, *key, errors.loc[lines[key]], bits.loc[lines[key]], floor)
    if (errors["value"] <= EXACT).any():
        axes.axhline(floor, color="#AAAAAA", linewidth=0.6, zorder=1)
        axes.text(0.85, floor, "no error", fontsize=6, va="bottom")
    noise = points[points["metric"] == "batch_noise"]["value"]
    if len(noise):
        axes.axhline(noise.iloc[0], color="black", linestyle=":", linewidth=0.9, zorder=1)
    step = int(errors["step"].iloc[0])
    axes.set(
        xscale="log", yscale="log", xlabel="stored, bits an element", title=f"{at}: step {step}"
    )
    style.plain_log_ticks(axes, "x", [1, 2, 4, 8, 16, 32])
    axes.set_xlim(0.8, 40)


def is_ablation(method: str, options: Mapping[str, object]) -> bool:
    """Tell whether a spec is DIVISION with something else changed than what it stores."""
    published = families.family(options) == "as published"
    return method == "division" and not published and bool(set(options) & ABLATED)


def variant(method: str, options: Mapping[str, object]) -> str:
    """Name the line of a method that a spec belongs to: its options but for the rates.

    >>> variant("division", {"bits": 3, "recompute": True})
    'recompute'
    """
    if method == "division":
        return families.family(options)
    if method in ("pooling", "lossy"):
        options = {"scope": "conv", **options}
    kept = {key: value for key, value in options.items() if key not in RATES}
    return ", ".join(
        _SCOPES.get(value, value) if isinstance(value, str) else key for key, value in kept.items()
    )


def _line(
    axes: Axes, method: str, name: str, errors: pd.DataFrame, bits: pd.DataFrame, floor: float
) -> None:
    order = bits["value"].sort_values().index
    errors, bits = errors.loc[order], bits.loc[order]
    exact = errors["value"] <= EXACT
    y = errors["value"].where(~exact, floor)
    low, high = (y - errors["p20"]).clip(lower=0), (errors["p80"] - y).clip(lower=0)
    colour, marker, filled = families.look(method, name)
    filled = filled and name != _SCOPES["conv"]
    axes.errorbar(
        bits["value"],
        y,
        yerr=[low.where(~exact, 0), high.where(~exact, 0)],
        color=colour,
        marker=marker,
        # The plain method, and the one that compresses everything, are filled and solid.
        markerfacecolor=colour if filled else "white",
        linestyle="-" if filled else "--",
        markersize=4,
        label=f"{method}, {name}" if name else method,
        capsize=1.5,
        elinewidth=0.8,
        clip_on=False,
    )


def _batches(errors: pd.DataFrame) -> int:
    return int(errors["n"].max())


def _images(errors: pd.DataFrame) -> int:
    return int(errors["batch"].max())
