"""The table of the core: kernels, training step and saved bytes beside their bars."""

from collections.abc import Iterable

import pandas as pd

from experiments.record import Row

GIB = 2**30
MIB = 2**20
COLUMNS = ["what", "measured", "bar", "published", "verdict"]
# What the paper's authors measured (results/paper/memory.csv), in GiB at batch 256.
PAPER_NAMES = {"vanilla": "vanilla", "division-published": "division"}
SPEED_BARS = {"division": 0.90, "division-recompute": 0.92}
# Of ResNet-50 at batch 256: at least so many times less than vanilla, or at most so many GiB.
RATIO_BARS = {"division": 11.3, "division-recompute": 13.3}
SIZE_BARS = {"division-recompute-3": 2.05}


def is_ours(label: str) -> bool:
    """Tell whether a line belongs to this table; the rivals have one of their own."""
    return label == "vanilla" or label.startswith("division")


def frame(
    kernels: list[Row],
    benchmark: list[Row],
    sizes: list[Row],
    paper_memory: pd.DataFrame,
    paper_speed: pd.DataFrame,
) -> pd.DataFrame:
    """Lay out everything that has a bar, beside what was published."""
    lines = [
        *_kernel_lines(kernels),
        *_step_lines(benchmark, paper_speed),
        *_size_lines(sizes, paper_memory),
    ]
    return pd.DataFrame(lines, columns=COLUMNS)


def notes(rows: Iterable[Row]) -> list[str]:
    """Say where the numbers come from."""
    rows = list(rows)
    machines = sorted({f"{r.machine['cpu']}, {r.machine['cores']} cores" for r in rows})
    commits = sorted({r.commit[:10] + ("+" if r.dirty else "") for r in rows})
    return [
        "times are medians of alternating rounds (p20-p80), fp32, 2 bits",
        "peak: resident memory of one training step in its own process, above what the process "
        "held before; beyond the ledger's bytes a step needs for a moment the map being computed, "
        "its gradient, a decompressed copy and the convolution's scratch space",
        "the peak is measured with an allocator that gives freed blocks back at once; the C "
        "library's default keeps them, and small packed tensors between them pin its heap",
        "saved bytes are counted without data, batch 256, 224 pixels; the published values include "
        "the batch of images (Table 3 counts as their authors did)",
        f"hardware: {'; '.join(machines)}",
        f"commits: {', '.join(commits)} (+: with uncommitted changes)",
    ]


def newest(rows: Iterable[Row], **settings: object) -> list[Row]:
    """Return the rows of the latest run with these settings in its config."""
    chosen = [
        row for row in rows if all(row.config.get(key) == value for key, value in settings.items())
    ]
    last = max((row.utc for row in chosen), default="")
    return [row for row in chosen if row.utc == last]


def _kernel_lines(rows: list[Row]) -> list[list[str]]:
    lines = []
    for row in rows:
        bar = row.config["bar"]
        if bar is None:
            continue
        what = f"{row.model} {row.dataset} {row.config['layout']}"
        what += f", {row.config['threads']} thread{'s' * (row.config['threads'] > 1)}: {row.metric}"
        measured = f"{row.value:.2f} ({row.p20:.2f}-{row.p80:.2f}) {row.unit}"
        lines.append([what, measured, f"<= {bar}", "", verdict(row.value <= bar)])
    return lines


def _step_lines(rows: list[Row], paper: pd.DataFrame) -> list[list[str]]:
    found = {(str(r.config["label"]), r.metric): r for r in rows}
    if ("division", "throughput_ratio") not in found:
        return []
    lines = []
    for label, bar in SPEED_BARS.items():
        ratio = found.get((label, "throughput_ratio"))
        if ratio is None:
            continue
        published = f"{published_speed(paper, 'division'):.2f} (ResNet-50, batch 256, RTX 3090)"
        step = f"{ratio.model} (CIFAR stem) step, batch {ratio.config['batch']}"
        lines.append(
            [
                f"{step}: throughput of {label} / vanilla",
                f"{ratio.value:.3f} ({ratio.p20:.3f}-{ratio.p80:.3f})",
                f">= {bar:.2f}",
                published if label == "division" else "",
                verdict(ratio.value >= bar),
            ]
        )
    ratio = found["division", "throughput_ratio"]
    of = f"{ratio.model} (CIFAR stem)"
    metrics = {
        "saved": "saved bytes (ledger)",
        "peak": "peak of a step",
        "peak_default": "peak of a step, default allocator",
    }
    stock, packed = (
        {m: found[label, f"{m}_bytes"].value for m in metrics} for label in ("vanilla", "division")
    )
    for metric, name in metrics.items():
        text = f"{stock[metric] / MIB:.0f} -> {packed[metric] / MIB:.0f} MiB"
        text += f" ({stock[metric] / packed[metric]:.1f}x)"
        lines.append([f"{of}, batch {ratio.config['peak_batch']}: {name}", text, "", "", ""])
    return lines


def _size_lines(rows: list[Row], paper: pd.DataFrame) -> list[list[str]]:
    found = {(r.model, str(r.config["label"])): r.value / GIB for r in rows}
    lines = []
    for (model, label), value in found.items():
        if not is_ours(label):
            continue
        text = f"{value:.2f} GiB"
        stock = found[model, "vanilla"]
        if label != "vanilla":
            text += f" ({stock / value:.1f}x)"
        published = published_memory(paper, model, PAPER_NAMES.get(label))
        bar, good = "", None
        if label == "vanilla" and published:
            bar, good = "within 1 %", abs(value / published - 1) <= 0.01
        elif label == "division-published" and published:
            bar, good = "within 12 %", abs(value / published - 1) <= 0.12
        elif label in RATIO_BARS and model == "resnet50":
            bar, good = f">= {RATIO_BARS[label]}x", stock / value >= RATIO_BARS[label]
        elif label in SIZE_BARS and model == "resnet50":
            bar, good = f"<= {SIZE_BARS[label]} GiB", value <= SIZE_BARS[label]
        shown = f"{published:.2f} GiB" if published else ""
        ending = "" if good is None else verdict(good)
        lines.append([f"{model}, batch 256: {label}", text, bar, shown, ending])
    return lines


def published_speed(paper: pd.DataFrame, method: str) -> float:
    """Return the published throughput of a method relative to vanilla, ResNet-50, batch 256."""
    chosen = paper[(paper["model"] == "resnet50") & (paper["batch_size"] == 256)]
    speed = chosen.set_index("method")["images_per_s"]
    return float(speed[method] / speed["vanilla"])


def published_memory(paper: pd.DataFrame, model: str, method: str | None) -> float | None:
    """Return the published GiB of activations at batch 256, where there are any."""
    chosen = paper[
        (paper["model"] == model) & (paper["method"] == method) & (paper["batch_size"] == 256)
    ]
    return float(chosen["activation_gib"].iloc[0]) if len(chosen) else None


def verdict(good: bool) -> str:
    """Say whether a bar was reached."""
    return "reached" if good else "missed"
