"""Transformers: what they save, beside the bars, and what that does to their gradients."""

import pandas as pd

from experiments.record import Row
from experiments.tables.core import MIB, verdict

COLUMNS = ["model", "setting", "saved", "against stock", "bar", "gradient error", "verdict"]
BARS = {
    ("vit_small_patch16_224", "2 bits"): 10,
    ("vit_small_patch16_224", "4 bits"): 7,
    ("swin_tiny_patch4_window7_224", "2 bits"): 9,
    ("swin_tiny_patch4_window7_224", "4 bits"): 6.2,
    ("convnext_tiny", "2 bits"): 10,
    ("convnext_tiny", "4 bits"): 7,
}


def frame(rows: list[Row]) -> pd.DataFrame:
    """Lay out every network and setting."""
    found = {(row.model, str(row.config["label"]), row.metric): row.value for row in rows}
    lines = []
    for model, label in dict.fromkeys((model, label) for model, label, _ in found):
        saved, ratio, error = (
            found[model, label, metric]
            for metric in ("saved_bytes", "saved_ratio", "gradient_error")
        )
        bar = BARS.get((model, label))
        lines.append(
            [
                model,
                label,
                f"{saved / MIB:.0f} MiB",
                f"{ratio:.1f}x less",
                "" if bar is None else f">= {bar}x",
                f"{error:.3f}",
                "" if bar is None else verdict(ratio >= bar),
            ]
        )
    return pd.DataFrame(lines, columns=COLUMNS)


def notes(rows: list[Row]) -> list[str]:
    """Say where the numbers come from."""
    first = rows[0]
    commits = sorted({row.commit[:10] + ("+" if row.dirty else "") for row in rows})
    draws = max(row.n for row in rows)
    return [
        f"method division; bytes of a forward in fp32, batch {first.config['batch']}, 224 pixels, "
        "as the ledger counts them",
        "gradient error: |g - g0| / |g0| over all parameters, root mean square of "
        f"{draws} draws, untrained network, batch {first.config['error_batch']} of seeded noise: "
        "it compares settings, it is no error of a training",
        f"commits: {', '.join(commits)} (+: with uncommitted changes)",
    ]
