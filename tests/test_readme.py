"""The README's examples run as written."""

import re
from pathlib import Path

import pytest

README = Path(__file__).resolve().parent.parent / "README.md"
BLOCKS = re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL)
WHOLE = [block for block in BLOCKS if "import torch" in block]


def test_there_are_examples() -> None:
    assert len(WHOLE) >= 3


@pytest.mark.parametrize("block", WHOLE, ids=lambda block: block.splitlines()[2][:30])
def test_example_runs(block: str, capsys: pytest.CaptureFixture[str]) -> None:
    exec(compile(block, str(README), "exec"), {})
    assert capsys.readouterr().out
