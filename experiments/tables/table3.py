"""Table 3: memory of ResNet-50 and WRN-50-2 beside the published values, and what fits."""

import pandas as pd

from experiments.record import Row
from experiments.tables.core import GIB, verdict

KINDS = {"activation_bytes": "activations", "total_bytes": "total"}
PUBLISHED_AS = {"activation_bytes": "activation_gib", "total_bytes": "total_gib"}
# The published method that a line stands beside, and how near its activations have to be.
BESIDE = {
    "vanilla": ("vanilla", 0.01),
    "division": ("division", None),
    "division-published": ("division", 0.12),
    "actnn": ("actnn", 0.12),
    "actnn-published": ("actnn", 0.12),
    "checkpoint": ("checkpoint", None),
    "checkpoint-published": ("checkpoint", None),
}
AT = 256  # the batch of the words


class Counted:
    """Rows by model, label, metric and what else they are of: a batch or a budget."""

    def __init__(self, rows: list[Row]) -> None:
        if not rows:
            raise ValueError("Table 3 needs `make reproduce-table3` first")
        self.rows = rows
        self.values = {self._key(row): row.value for row in rows}
        self.models = list(dict.fromkeys(row.model for row in rows))
        self.labels = list(dict.fromkeys(str(row.config["label"]) for row in rows))
        self.batches = list(dict.fromkeys(r.config["batch"] for r in rows if "batch" in r.config))
        budgets = dict.fromkeys(r.config["budget"] for r in rows if "budget" in r.config)
        self.counted_budget = next(iter(budgets))  # the others are read off lines
        self.budgets = sorted(budgets, key=lambda text: int(text.removesuffix("GiB")))

    @staticmethod
    def _key(row: Row) -> tuple[object, ...]:
        of = row.config["batch"] if "batch" in row.config else row.config["budget"]
        return row.model, row.config["label"], row.metric, of

    def gib(self, model: str, label: str, metric: str, batch: int = AT) -> float:
        """Return a size in GiB."""
        return self.values[model, label, metric, batch] / GIB


def frame(rows: list[Row], paper: pd.DataFrame) -> pd.DataFrame:
    """Lay out activations and total, a column a batch: ours / published (difference)."""
    counted = Counted(rows)
    lines = []
    for model in counted.models:
        for metric, kind in KINDS.items():
            for label in counted.labels:
                cells, worst = [], []
                for batch in counted.batches:
                    ours = counted.gib(model, label, metric, batch)
                    theirs = published(paper, model, label, metric, batch)
                    cells.append(_beside(ours, theirs))
                    worst += [abs(ours / theirs - 1)] if theirs else []
                bar = BESIDE.get(label, ("", None))[1] if metric == "activation_bytes" else None
                ending = ["", ""]
                if bar is not None:
                    ending = [f"within {bar:.0%}".replace("%", " %"), verdict(max(worst) <= bar)]
                lines.append([model, kind, label, *cells, *ending])
    batches = [f"batch {batch}" for batch in counted.batches]
    return pd.DataFrame(lines, columns=["model", "memory", "method", *batches, "bar", "verdict"])


def published(paper: pd.DataFrame, model: str, label: str, metric: str, batch: int) -> float | None:
    """Return the published GiB, where there are any."""
    name = BESIDE.get(label, (label, None))[0]
    chosen = paper[
        (paper["model"] == model) & (paper["method"] == name) & (paper["batch_size"] == batch)
    ]
    return float(chosen[PUBLISHED_AS[metric]].iloc[0]) if len(chosen) else None


def _beside(ours: float, theirs: float | None) -> str:
    if theirs is None:
        return f"{ours:.2f}"
    return f"{ours:.2f} / {theirs:.2f} ({100 * (ours / theirs - 1):+.1f} %)"


def notes(rows: list[Row], paper: pd.DataFrame, actnn_logs: pd.DataFrame) -> list[str]:
    """Say what is counted, and why each line differs from the published one."""
    counted = Counted(rows)
    model = counted.models[0]
    there = counted.gib(model, "division-published", "batch_bytes")
    peaks = {
        label: counted.gib(model, label, "peak_bytes")
        for label in ("checkpoint", "checkpoint-published")
    }
    return [
        "ours / published (difference), in GiB; published: results/paper/memory.csv, allocated "
        "bytes on an RTX 3090; ours: every storage that is alive in a training step of the real "
        "model without data, fp32, SGD with momentum, no GPU",
        "activations, as the authors' script counts them: allocated between forward and backward "
        "less allocated before the batch arrived, without output and loss. So the batch is "
        f"counted, {there:.2f} GiB at {AT}: in vanilla the first convolution saves it anyway, a "
        "method that compresses holds it in full beside its packed copy",
        "total, as the script adds up: before backward, and what a step leaves behind. The batch "
        "is in both, what is needed for a moment in neither: it is no peak (see the largest "
        "batches)",
        f"vanilla ({_spread(counted, paper, 'vanilla')}): allocated blocks are rounded up, and "
        "published values to 0.01",
        f"division-published ({_spread(counted, paper, 'division-published')}): align='reference', "
        "share=False, fine_bits=2; the rest is rounding as for vanilla",
        f"division ({_spread(counted, paper, 'division')}), our default: what two layers save is "
        "stored once; ragged maps have the blocks that cover them; the images and the input of "
        "the classifier are kept in 8 bits",
        f"actnn-published ({_spread(counted, paper, 'actnn-published')}): share=False, as "
        f"released. {_own_logs(counted, actnn_logs)} What the published values have on top is "
        "not explained by the release as we read it; fp32 instead of bf16 for the range of each "
        "group would be about as much",
        f"actnn ({_spread(counted, paper, 'actnn')}): what two layers save is stored once",
        f"checkpoint-published ({_spread(counted, paper, 'checkpoint-published')}): the four "
        "stages of the network are the blocks, which we found by trying. checkpoint, our default, "
        "keeps the input of every residual block: it holds more and "
        f"peaks lower ({peaks['checkpoint']:.2f} against {peaks['checkpoint-published']:.2f} GiB "
        f"for {model} at {AT}), since a whole stage that runs again holds all its maps",
        "pooling, pooling-all and autocast have no published values here. acgc and blpa have, and "
        "are not built. lossy is left out because its sizes depend on the data, offload because a "
        "CPU has no second memory to move to",
        f"batches 64 and 512 are counted, and {AT} to check that the others lie on the lines "
        "through them",
        *_provenance(rows),
    ]


def batch_frame(rows: list[Row]) -> pd.DataFrame:
    """Lay out what a step needs, and the largest batches within the budgets."""
    counted = Counted(rows)
    lines = []
    for model in counted.models:
        for label in counted.labels:
            line = [model, label]
            line += [f"{counted.gib(model, label, m):.2f}" for m in ("saved_bytes", "peak_bytes")]
            for budget in counted.budgets:
                ours, stock = (
                    counted.values[model, each, "max_batch", budget] for each in (label, "vanilla")
                )
                line.append(f"{ours:.0f} ({ours / stock:.1f}x)")
            lines.append(line)
    heads = ["model", "method", f"saved at {AT}, GiB", f"peak at {AT}, GiB"]
    heads += [budget.replace("GiB", " GiB") for budget in counted.budgets]
    return pd.DataFrame(lines, columns=heads)


def batch_notes(rows: list[Row], claims: pd.DataFrame) -> list[str]:
    """Say what limits the batch, and what was claimed."""
    counted = Counted(rows)
    ours = [counted.values["resnet50", each, "max_batch", "16GiB"] for each in ("vanilla", "actnn")]
    saved, peak = (
        counted.gib("resnet50", "division", metric) for metric in ("saved_bytes", "peak_bytes")
    )
    return [
        "largest batch whose whole training step peaks within the budget, and how many times "
        "vanilla's; the peak has weights, gradients, momentum, the batch and what a step needs for "
        "a moment",
        f"{counted.counted_budget}: counted, and one image more was counted not to fit; the other "
        "budgets are read off the lines of the same counts",
        "a GPU takes more than is seen here: its context, workspaces of cuDNN, fragments",
        "why times vanilla is less than the ratio of saved bytes: the maps that a layer works on "
        "are full-sized whatever is saved, at the peak the decompressed input of a convolution, "
        f"its gradients and that of the shortcut; of the {peak:.2f} GiB of resnet50 with division "
        f"at {AT} at most {saved:.2f} are saved tensors",
        f"ActNN claims {_claim(claims, 'several')}; its figure for resnet50 is "
        f"{_claim(claims, 'resnet50', 'actnn L5')}, where L5 swaps to the host; without, its "
        f"authors logged {_claim(claims, 'resnet50')}; ours in 16 GiB: {ours[0]:.0f} -> "
        f"{ours[1]:.0f} ({ours[1] / ours[0]:.1f}x)",
        *_provenance(rows),
    ]


def _spread(counted: Counted, paper: pd.DataFrame, label: str) -> str:
    """Return the least and the largest difference of a line's activations."""
    found = []
    for model in counted.models:
        for batch in counted.batches:
            theirs = published(paper, model, label, "activation_bytes", batch)
            if theirs:
                found.append(counted.gib(model, label, "activation_bytes", batch) / theirs - 1)
    return f"{100 * min(found):+.1f} to {100 * max(found):+.1f} %"


def _own_logs(counted: Counted, logs: pd.DataFrame) -> str:
    """Compare with the logs of ActNN's own authors, who count without the batch."""
    parts = []
    for line in logs.itertuples():
        label = {"actnn": "actnn-published"}.get(line.method, line.method)
        where = (line.model, label)
        ours = counted.gib(*where, "activation_bytes", line.batch_size)
        ours -= counted.gib(*where, "batch_bytes", line.batch_size)
        parts.append(f"{label} {ours:.2f} / {line.activation_gib:.2f} at {line.batch_size}")
    return (
        "Without the batch, as the logs of ActNN's own authors seem to count "
        f"({logs['source'].iloc[0]}), ours are {', '.join(parts)}."
    )


def _claim(claims: pd.DataFrame, model: str, method: str = "actnn") -> str:
    """Return a published gain in batch as words."""
    line = claims[(claims["model"] == model) & (claims["method"] == method)].iloc[0]
    sizes = ""
    if line["batch"] == line["batch"]:  # not a gap
        sizes = f"{line['batch_vanilla']:.0f} -> {line['batch']:.0f}, "
    return f"{sizes}{line['times']}x on a {line['device']} ({line['source']})"


def _provenance(rows: list[Row]) -> list[str]:
    commits = sorted({r.commit[:10] + ("+" if r.dirty else "") for r in rows})
    return [
        "counted on a CPU; bytes depend on no hardware",
        f"commits: {', '.join(commits)} (+: with uncommitted changes)",
    ]
