"""The README's examples run as written."""

import io
import re
import subprocess
import tarfile
from pathlib import Path

import pytest

from experiments import report
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


def test_tables_in_the_readme_are_those_of_the_committed_rows(tmp_path: Path) -> None:
    """As committed: who measures again has newer rows, and a README that is not renewed yet."""
    archive = subprocess.run(
        ["git", "archive", "HEAD", "results", "README.md"],
        cwd=ROOT,
        capture_output=True,
        check=True,
    ).stdout
    with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
        tar.extractall(tmp_path, filter="data")
    text = (tmp_path / "README.md").read_text()
    assert text.count("<!-- table ") == 6
    report.write_all(tmp_path / "results")
    assert report.with_tables(text, tmp_path / "results") == text
