"""The table of the transformers: bars, verdicts, and every number from a row."""

from dataclasses import replace

from experiments.record import Row
from experiments.tables import transformers

ROW = Row(
    experiment="transformers",
    method="division",
    model="convnext_tiny",
    dataset="noise-224",
    seed=0,
    metric="saved_ratio",
    unit="x",
    value=9.9,
    scale="paper",
    config={"label": "2 bits", "batch": 32, "error_batch": 4},
    commit="c" * 40,
)


def rows(ratio: float, label: str = "2 bits") -> list[Row]:
    config = {**ROW.config, "label": label}
    values = {"saved_bytes": 2**21, "saved_ratio": ratio, "gradient_error": 0.5}
    return [replace(ROW, metric=m, value=v, config=config) for m, v in values.items()]


def test_a_bar_is_reached_or_missed() -> None:
    reached, missed = (transformers.frame(rows(ratio)).iloc[0] for ratio in (10.0, 9.9))
    assert (reached["bar"], reached["verdict"]) == (">= 10x", "reached")
    assert (missed["against stock"], missed["verdict"]) == ("9.9x less", "missed")
    assert (reached["saved"], reached["gradient error"]) == ("2 MiB", "0.500")


def test_what_has_no_bar_has_no_verdict() -> None:
    line = transformers.frame(rows(20.0, "2 bits, recompute")).iloc[0]
    assert (line["bar"], line["verdict"]) == ("", "")


def test_the_notes_say_what_was_measured() -> None:
    text = " ".join(transformers.notes(rows(10.0)))
    assert "batch 32" in text
    assert "cccccccccc" in text
