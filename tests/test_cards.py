"""Every rival has a card with its paper, deviations, options and limits; its examples run."""

import re
from pathlib import Path

import pytest

from experiments.provenance import ROOT

CARDS = sorted((ROOT / "baselines").rglob("README.md"))
EXAMPLES = [
    pytest.param(block, id=f"{card.parent.name} {number}")
    for card in CARDS
    for number, block in enumerate(re.findall(r"```python\n(.*?)```", card.read_text(), re.DOTALL))
]
PARTS = ("Paper", "What we built", "Deviations", "Options", "Limits")


@pytest.mark.parametrize("folder", ["actnn", "lossy", "pooling"])
def test_a_card_has_all_its_parts(folder: str) -> None:
    text = (ROOT / "baselines" / folder / "README.md").read_text()
    heads = re.findall(r"^## (.*)$", text, re.MULTILINE)
    missing = [part for part in PARTS if not any(head.startswith(part) for head in heads)]
    assert not missing
    assert "```python" in text


def test_every_rival_is_in_the_index() -> None:
    text = Path(ROOT / "baselines" / "README.md").read_text()
    for name in ("actnn", "autocast", "checkpoint", "lossy", "offload", "pooling"):
        assert f"`{name}`" in text


@pytest.mark.parametrize("block", EXAMPLES)
def test_example_runs(block: str, capsys: pytest.CaptureFixture[str]) -> None:
    exec(compile(block, "card", "exec"), {})
    assert capsys.readouterr().out
