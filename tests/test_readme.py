"""The README's examples run as written."""

import re
import shutil
from pathlib import Path

import pytest

from experiments import grid, report
from experiments.provenance import ROOT

README = ROOT / "README.md"
BLOCKS = re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL)
WHOLE = [block for block in BLOCKS if "import torch" in block]


def test_there_are_examples() -> None:
    assert len(WHOLE) >= 3


@pytest.mark.parametrize("block", WHOLE, ids=lambda block: block.splitlines()[2][:30])
def test_example_runs(block: str, capsys: pytest.CaptureFixture[str]) -> None:
    exec(compile(block, str(README), "exec"), {})
    assert capsys.readouterr().out


def test_tables_in_the_readme_are_those_of_the_rows(tmp_path: Path) -> None:
    shutil.copytree(ROOT / "results", tmp_path / "results")
    report.write_core(tmp_path / "results")
    report.write_table1(grid.load("quick"), tmp_path / "results")
    text = README.read_text()
    assert text.count("<!-- table ") == 2
    assert report.with_tables(text, tmp_path / "results") == text
