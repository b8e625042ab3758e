"""Table 4: throughput against batch size, and within a memory budget, relative to vanilla."""

import pandas as pd

from division.ledger import size_text
from experiments.record import Row

# How the published ratios were measured, as read in the authors' scripts.
HOW_PUBLISHED = (
    "published: ratios of the images/s in results/paper/throughput.csv, an RTX 3090. DIVISION's "
    "speed script runs under autocast with half precision, ActNN's has no autocast, and the logs "
    "do not say how vanilla was run; both read the clock without waiting for the GPU and take the "
    "median of some 16 (ActNN: 5) steps, warm-up and data loading included. Checkpointing takes "
    "about one forward more, and theirs is far slower than that. So these ratios are for reading "
    "beside ours, not for a verdict"
)


def newest(rows: list[Row]) -> list[Row]:
    """Return the newest row of each number, of the network that was measured last."""
    last = max(rows, key=lambda row: row.utc, default=None)
    found: dict[tuple[object, ...], Row] = {}
    for row in sorted(rows, key=lambda r: r.utc):
        if last is not None and (row.model, row.dataset) == (last.model, last.dataset):
            of = ("budget", row.config["budget"]) if "budget" in row.config else row.config["batch"]
            found[row.config["label"], row.metric, of] = row
    return list(found.values())


def frame(rows: list[Row], paper: pd.DataFrame) -> pd.DataFrame:
    """Lay out ratios to vanilla, a column a batch; below ours, what was published."""
    ours = [row for row in _checked(rows) if "budget" not in row.config]
    theirs = [int(batch) for batch in paper[paper["method"] == "vanilla"]["batch_size"]]
    batches = sorted({row.config["batch"] for row in ours} | set(theirs))
    found = {(str(r.config["label"]), r.metric, r.config["batch"]): r for r in ours}
    lines = []
    for label in dict.fromkeys(str(row.config["label"]) for row in ours):
        cells = [_cell(found, label, batch) for batch in batches]
        lines.append([ours[0].model, "ours", label, *cells])
    for model in dict.fromkeys(paper["model"]):
        lines += [[model, "published", *line] for line in _published(paper, model, batches)]
    heads = ["model", "measured by", "method", *(f"batch {batch}" for batch in batches)]
    return pd.DataFrame(lines, columns=heads)


def _checked(rows: list[Row]) -> list[Row]:
    if not rows:
        raise ValueError("Table 4 needs `make reproduce-table4` first")
    scales = sorted({row.scale for row in rows})
    if len(scales) != 1:
        raise ValueError(f"a table never mixes scales; the rows have {', '.join(scales)}")
    return rows


def _cell(found: dict[tuple[str, str, int], Row], label: str, batch: int) -> str:
    ratio = found.get((label, "throughput_ratio", batch))
    if ratio is None:
        return ""
    if label == "vanilla":
        return f"1 = {found[label, 'throughput', batch].value:.1f} images/s"
    return f"{ratio.value:.2f} ({ratio.p20:.2f}-{ratio.p80:.2f})"


def _published(paper: pd.DataFrame, model: str, batches: list[int]) -> list[list[str]]:
    speeds = paper[paper["model"] == model].pivot(
        index="method", columns="batch_size", values="images_per_s"
    )
    lines = []
    for method in sorted(speeds.index, key=lambda name: (name != "vanilla", name)):
        cells = []
        for batch in batches:
            values = speeds[batch] if batch in speeds else pd.Series(dtype=float)
            ours, stock = values.get(method), values.get("vanilla")
            known = pd.notna(ours) and pd.notna(stock)
            text = f"1 = {ours:.1f} images/s" if method == "vanilla" and known else ""
            cells.append(text or (f"{ours / stock:.2f}" if known else ""))
        lines.append([method, *cells])
    return lines


def notes(rows: list[Row]) -> list[str]:
    """Say how it was measured, here and there."""
    ours = [row for row in rows if "budget" not in row.config]
    rounds = max(row.n for row in ours)
    return [
        f"scale: {ours[0].scale}; ours: {ours[0].model} on {ours[0].dataset}, channels_last, fp32, "
        f"SGD with momentum; median ratio to vanilla (p20-p80) of {rounds} alternating rounds, "
        "every method in a process of its own; at other batches vanilla has another speed: compare "
        "within a column",
        HOW_PUBLISHED,
        "there is no ratio where no vanilla was published, as at batch 512",
        "offload moves to the host's memory, which on a CPU is where everything is already",
        *_provenance(ours),
    ]


def budget_frame(rows: list[Row]) -> pd.DataFrame:
    """Lay out every method at its largest batch within the budget."""
    ours = [row for row in _checked(rows) if "budget" in row.config]
    found = {(str(r.config["label"]), r.metric): r for r in ours}
    lines = []
    for label in dict.fromkeys(str(row.config["label"]) for row in ours):
        fits, stock = found[label, "max_batch"], found["vanilla", "max_batch"]
        speed, ratio = found[label, "throughput"], found[label, "throughput_ratio"]
        timed = int(fits.config["batch"])
        lines.append(
            [
                label,
                f"{fits.value:.0f} ({fits.value / stock.value:.1f}x)",
                f"{timed}",
                size_text(found[label, "peak_bytes"].value),
                f"{speed.value:.1f} ({speed.p20:.1f}-{speed.p80:.1f})",
                f"{ratio.value:.2f} ({ratio.p20:.2f}-{ratio.p80:.2f})",
            ]
        )
    heads = ["method", "largest batch", "timed at", "measured peak", "images/s"]
    return pd.DataFrame(lines, columns=[*heads, "throughput / vanilla"])


def budget_notes(rows: list[Row]) -> list[str]:
    """Say what the budget is of."""
    ours = [row for row in rows if "budget" in row.config]
    one = ours[0]
    return [
        f"scale: {one.scale}; {one.model} on {one.dataset}, channels_last, fp32; largest batch "
        f"whose whole training step (weights, gradients, momentum, what is needed for a moment) "
        f"peaks within {one.config['budget']} as the planner counts it, and how many times "
        "vanilla's",
        "throughput / vanilla: images a second at a method's own batch over vanilla's at its own, "
        "median (p20-p80) of alternating rounds, every method in a process of its own",
        f"timed at: no batch beyond {one.config['most']} is timed",
        "measured peak: resident memory of forward and backward in a process of its own, above "
        "what it held before: without weights and momentum, with the scratch space of "
        "convolutions, which the planner does not see",
        "the sizes of lossy depend on the data: its batch is planned with the ratio measured on "
        "the same network and noise",
        *_provenance(ours),
    ]


def _provenance(rows: list[Row]) -> list[str]:
    machines = sorted({f"{r.machine['cpu']}, {r.machine['cores']} cores" for r in rows})
    commits = sorted({r.commit[:10] + ("+" if r.dirty else "") for r in rows})
    return [
        f"hardware: {'; '.join(machines)}",
        f"commits: {', '.join(commits)} (+: with uncommitted changes)",
    ]
