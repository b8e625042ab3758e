"""What the rows give, against what is written: `python -m experiments.report --check`."""

from pathlib import Path

from experiments.page import without_images

FORMS = (".md", ".csv", ".tex")


def stale(results: Path, fresh: Path) -> list[Path]:
    """Return the files of a results folder that differ from a fresh one, or should not be there."""
    names = {
        path.relative_to(folder)
        for folder in (results, fresh)
        for path in (folder / "tables").glob("*")
        if path.suffix in FORMS
    }
    names |= {Path("REPRODUCTION.md"), Path("report.html")}
    return [
        results / name for name in sorted(names) if _read(results / name) != _read(fresh / name)
    ]


def _read(path: Path) -> str | None:
    text = path.read_text() if path.exists() else None
    return without_images(text) if text is not None and path.suffix == ".html" else text
