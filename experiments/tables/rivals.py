"""The rivals beside their bars: throughput of a step, and what each holds for the backward pass."""

import pandas as pd

from experiments.record import Row
from experiments.tables.core import GIB, is_ours, published_memory, published_speed, verdict

COLUMNS = [
    "what",
    "measured",
    "against plain PyTorch",
    "against the paper's baseline",
    "bar",
    "published",
    "verdict",
]
SPEED_BARS = {"actnn": 0.85, "pooling": 0.95, "lossy": 0.75}
PUBLISHED_SPEED = ("actnn", "checkpoint")
# The paper's own baseline: at a block of one the release copies every input of a convolution.
POOLING_BASELINE = "pooling-published-1"


def frame(
    benchmark: list[Row],
    sizes: list[Row],
    memory: pd.DataFrame,
    speed: pd.DataFrame,
    claims: pd.DataFrame,
) -> pd.DataFrame:
    """Lay out every rival that was measured."""
    lines = [*_speed_lines(benchmark, speed), *_size_lines(sizes, memory, claims)]
    return pd.DataFrame(lines, columns=COLUMNS)


def notes(benchmark: list[Row], sizes: list[Row]) -> list[str]:
    """Say where the numbers come from."""
    rows = [*benchmark, *sizes]
    machines = sorted({f"{r.machine['cpu']}, {r.machine['cores']} cores" for r in rows})
    commits = sorted({r.commit[:10] + ("+" if r.dirty else "") for r in rows})
    return [
        "step: resnet18 with a CIFAR stem, channels_last, fp32; median ratio to vanilla (p20-p80) "
        "of alternating rounds, every method in a process of its own; published ratios are of "
        "ResNet-50 at batch 256 on an RTX 3090",
        "saved bytes are counted under FakeTensorMode, 224 pixels; the published values are "
        "allocated bytes",
        "pooling-published-N is the release at a block of N (no masks, nothing shared); the paper "
        "agrees with its own block-1 baseline and not with plain PyTorch",
        "lossy has no line of bytes: its sizes depend on the data (Table 1 has them, measured)",
        f"hardware: {'; '.join(machines)}",
        f"commits: {', '.join(commits)} (+: with uncommitted changes)",
    ]


def _speed_lines(rows: list[Row], paper: pd.DataFrame) -> list[list[str]]:
    lines = []
    for row in rows:
        label = str(row.config["label"])
        if row.metric != "throughput_ratio" or is_ours(label):
            continue
        bar = SPEED_BARS.get(label)
        published = f"{published_speed(paper, label):.2f}" if label in PUBLISHED_SPEED else ""
        lines.append(
            [
                f"step, batch {row.config['batch']}: {label}",
                f"{row.value:.3f} ({row.p20:.3f}-{row.p80:.3f})",
                "",
                "",
                f">= {bar}" if bar else "",
                published,
                verdict(row.value >= bar) if bar else "",
            ]
        )
    return lines


def _size_lines(rows: list[Row], paper: pd.DataFrame, claims: pd.DataFrame) -> list[list[str]]:
    found = {(r.model, str(r.config["label"])): r.value / GIB for r in rows}
    claimed = int(claims.set_index("id")["published"]["pooling-memory-own"])
    lines = []
    for (model, label), value in found.items():
        if is_ours(label):
            continue
        stock, own = found[model, "vanilla"], found[model, POOLING_BASELINE]
        published = published_memory(paper, model, label)
        shown = f"{published:.2f} GiB" if published else ""
        bar, ending, against_own = "", "", ""
        if label.startswith("pooling-published"):
            against_own = _percent(value / own)
            shown = f"{claimed:+d} % (peak)" if label != POOLING_BASELINE else ""
        if label == "actnn" and model == "resnet50":
            bar, ending = ">= 11x less", verdict(stock / value >= 11)
        against = f"{stock / value:.1f}x less" if value < stock / 2 else _percent(value / stock)
        what, measured = f"{model}, batch 256: {label}", f"{value:.2f} GiB"
        lines.append([what, measured, against, against_own, bar, shown, ending])
    return lines


def _percent(ratio: float) -> str:
    return f"{100 * (ratio - 1):+.0f} %"
