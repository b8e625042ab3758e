"""Gradient error and stored bytes of recompute, both relative to DIVISION as published."""

from itertools import groupby

from matplotlib.axes import Axes
from matplotlib.lines import Line2D

from experiments.equal import BAR, PUBLISHED, Point, State
from experiments.figures import families, rate, style

_DASHES = ("-", "--", ":", "-.")  # the last state first
SHOWN = ("division", "actnn")  # methods
_LEAST, _MOST = 0.45, 1.45  # of the published bytes


def draw(states: list[State]) -> style.Drawing:
    """Draw a panel for every network, with a line for every family of settings and every state.

    Args:
        states: as `experiments.equal.states_of` finds them.
    """
    networks = {name: list(of) for name, of in groupby(states, key=lambda state: state.network)}
    longest = max(networks.values(), key=len)
    names = dict.fromkeys(state.at for state in [*reversed(longest), *states])
    dashes = {at: _DASHES[place % len(_DASHES)] for place, at in enumerate(names)}
    ratios = [point.over(s.points[PUBLISHED]) for s in states for point in _shown(s)]
    with style.look():
        figure = style.figure(style.PAGE, 3.1)
        panels = figure.subplots(1, len(networks), sharey=True, squeeze=False)[0]
        for axes, (name, of) in zip(panels, networks.items(), strict=True):
            for state in of:
                _state(axes, state, dashes[state.at])
            axes.fill_between([_LEAST, 1], 1e-3, BAR, color="#E4E4E4", linewidth=0, zorder=0)
            axes.axvline(1, color="black", linewidth=0.6, zorder=1)
            axes.set(yscale="log", title=name, xlabel="stored bytes / as published")
            axes.set_xlim(_LEAST, _MOST)
        panels[0].set_ylabel("gradient error / as published")
        panels[0].set_ylim(0.8 * min(ratios), 1.25 * max(ratios))
        ticks = [t for t in (0.05, 0.1, 0.2, 0.4, BAR, 1, 2, 4) if min(ratios) <= t <= max(ratios)]
        style.plain_log_ticks(panels[0], "y", ticks)
        lines = [
            Line2D([], [], color="black", linestyle=dash, label=at) for at, dash in dashes.items()
        ]
        style.legend(figure, list(panels), ncols=5, more=lines)
    row = states[0].row
    caption = (
        "Gradient error against what is stored, both relative to DIVISION as published (2 bits, "
        "nothing shared or recomputed): |g - g0| / |g0| over all parameters, root mean square "
        f"over {row.config['draws']} draws of the rounding noise, median over {row.n} batches, at "
        f"states of one reduced vanilla training of each network (1 seed; {_steps(networks)}). "
        "Along a line the bits a code change. Grey: no more bytes, and at "
        f"most {BAR} of the error. ActNN at its default stands beside them."
    )
    return style.Drawing(figure, caption)


def _shown(state: State) -> list[Point]:
    most = _MOST * state.points[PUBLISHED].saved
    found = [p for p in state.points.values() if p.error.method in SHOWN and p.saved <= most]
    return [p for p in found if not rate.is_ablation(p.error.method, p.options)]


def _state(axes: Axes, state: State, dashes: str) -> None:
    base = state.points[PUBLISHED]
    lines: dict[tuple[str, str], list[Point]] = {}
    for point in _shown(state):
        method = point.error.method
        lines.setdefault((method, rate.variant(method, point.options)), []).append(point)
    order = list(families.LOOKS)
    for method, name in sorted(lines, key=lambda key: (key[0] == "actnn", order.index(key[1]))):
        points = sorted(lines[method, name], key=lambda point: point.saved)
        colour, marker, filled = families.look(method, name)
        axes.plot(
            [point.saved / base.saved for point in points],
            [point.over(base) for point in points],
            color=colour,
            marker=marker,
            markerfacecolor=colour if filled else "white",
            linestyle=dashes,
            label=f"{method}, {name}" if name else method,
        )


def _steps(networks: dict[str, list[State]]) -> str:
    return "; ".join(
        f"{name}: " + ", ".join(f"{s.at} {s.row.config['step']}" for s in of)
        for name, of in networks.items()
    )
