"""The table of the roofline: what methods cost on GPUs, predicted, beside what was published."""

import pandas as pd

from experiments.record import Row
from experiments.tables.core import newest, published_speed, verdict

BAR = 0.10  # of the vanilla step: division on the GPU of the paper
COLUMNS = [
    "GPU", "precision", "method", "our kernels move", "extra time", "of the roofline's step",
    "of the published step", "throughput / vanilla", "published", "bar", "verdict",
]  # fmt: skip
PUBLISHED = ("division", "actnn", "checkpoint")


def select(rows: list[Row]) -> list[Row]:
    """Return the rows of the latest prediction for every GPU and precision."""
    keys = ("gpu.name", "dtype", "layout", "batch", "image", "model.name")
    settings = dict.fromkeys(tuple((key, row.config[key]) for key in keys) for row in rows)
    return [row for each in settings for row in newest(rows, **dict(each))]


def frame(rows: list[Row], paper: pd.DataFrame) -> pd.DataFrame:
    """Lay out one line a GPU, precision and method."""
    found: dict[tuple[str, str, str], dict[str, float]] = {}
    for row in rows:
        precision = f"{row.config['dtype']}, {row.config['layout']}"
        key = (str(row.config["gpu.name"]), precision, str(row.config["label"]))
        found.setdefault(key, {})[row.metric] = row.value
    return pd.DataFrame([_line(*key, values, paper) for key, values in found.items()],
                        columns=COLUMNS)  # fmt: skip


def _line(
    gpu: str, precision: str, label: str, values: dict[str, float], paper: pd.DataFrame
) -> list[str]:
    of_published = values.get("overhead_of_published")
    overhead = values["overhead_of_roofline"] if of_published is None else of_published
    speed = ""
    if of_published is not None and label in PUBLISHED:
        speed = f"{published_speed(paper, label):.2f}"
    has_bar = of_published is not None and label == "division"
    return [
        gpu,
        precision,
        label,
        f"{values['kernel_moved'] / 1e9:.1f} GB" if values["kernel_moved"] else "",
        f"{1e3 * values['extra']:+.0f} ms",
        f"{100 * values['overhead_of_roofline']:+.1f} %",
        "" if of_published is None else f"{100 * of_published:+.1f} %",
        f"{1 / (1 + overhead):.2f}",
        speed,
        f"<= {100 * BAR:.0f} %" if has_bar else "",
        verdict(overhead <= BAR) if has_bar else "",
    ]


def notes(rows: list[Row], paper: pd.DataFrame) -> list[str]:
    """State the assumptions, and how well the roofline knows a step that was measured."""
    first = rows[0].config
    commits = sorted({r.commit[:10] + ("+" if r.dirty else "") for r in rows})
    texts = [
        f"nothing here was measured: {first['model.name']}, batch {first['batch']}, "
        f"{first['image']} pixels, walked without data; every operator takes the longer of bytes / "
        f"bandwidth and flops / peak, at {100 * first['reached.bandwidth']:.0f} % of the published "
        f"bandwidth and {100 * first['reached.flops']:.0f} % of the published dense flops "
        "(configs/gpu), and "
        f"{1e6 * first['launch']:.0f} us for its launch; nothing overlaps",
        "an operator of torch reads and writes each tensor once (batch norm: input twice, in the "
        "backward gradient and input twice; convolution backward: the gradient twice); our kernels "
        "by the arithmetic that the tests compare with the interpreter; what PyTorch does on the "
        "host is taken to be hidden behind the device, though ActNN and lossy wait for it; "
        "not counted is what a program reads again from a cache: maps of up to 64 KiB where it has "
        "a multiprocessor for itself, and elements of a mask that it or its neighbour just had",
        "lossy is assumed to reach its assumed_ratio; float32 convolutions run as TF32",
        "throughput follows from the overhead of the published step where there is one; the "
        "published runs do not say their precision, and count a step by the host's clock without "
        "synchronisation",
    ]
    for row in rows:
        step = row.config["batch"] / row.value if row.metric == "step" and row.value else 0.0
        known = paper[(paper["model"] == row.model) & (paper["device"] == row.config["gpu.name"])]
        known = known[(known["method"] == "vanilla") & (known["batch_size"] == row.config["batch"])]
        is_plain = row.method == "vanilla" and row.config["dtype"] == "float32"
        if step and is_plain and len(known) and row.config["layout"] == "nchw":
            texts.append(
                f"the vanilla step itself: {step:.0f} images/s predicted for "
                f"{row.config['gpu.name']}, {known['images_per_s'].iloc[0]:.0f} published"
            )
    return [*texts, f"commits: {', '.join(commits)} (+: with uncommitted changes)"]
