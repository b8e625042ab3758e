"""A frame as Markdown, LaTeX or CSV, with the notes that a reader must have."""

from pathlib import Path

import pandas as pd


def markdown(frame: pd.DataFrame, title: str, notes: list[str]) -> str:
    """Return a Markdown table with a title above and notes below."""
    return "\n".join([f"**{title}**", "", table(frame), "", *(f"- {note}" for note in notes), ""])


def table(frame: pd.DataFrame) -> str:
    """Return a Markdown table alone."""
    cells = [list(map(str, frame.columns)), *frame.astype(str).to_numpy().tolist()]
    widths = [max(len(row[i]) for row in cells) for i in range(len(frame.columns))]

    def line(row: list[str]) -> str:
        padded = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        return "| " + " | ".join(padded) + " |"

    rule = "|" + "|".join("-" * (width + 2) for width in widths) + "|"
    return "\n".join([line(cells[0]), rule, *(line(row) for row in cells[1:])])


def latex(frame: pd.DataFrame, title: str, notes: list[str]) -> str:
    """Return a LaTeX table (booktabs)."""
    special = str.maketrans({"%": r"\%", "_": r"\_", "&": r"\&", "#": r"\#", "±": r"$\pm$"})

    def line(row: list[str]) -> str:
        return " & ".join(str(cell).translate(special) for cell in row) + r" \\"

    body = [line(row) for row in frame.astype(str).to_numpy().tolist()]
    caption = " ".join([title + ".", *(note.rstrip(".") + "." for note in notes)])
    return "\n".join(
        [
            r"\begin{table}",
            rf"\caption{{{caption.translate(special)}}}",
            rf"\begin{{tabular}}{{{'l' * len(frame.columns)}}}",
            r"\toprule",
            line(list(frame.columns)),
            r"\midrule",
            *body,
            r"\bottomrule",
            r"\end{tabular}",
            r"\end{table}",
            "",
        ]
    )


def write(folder: Path, stem: str, frame: pd.DataFrame, title: str, notes: list[str]) -> str:
    """Write a table in all three forms; return the Markdown."""
    folder.mkdir(parents=True, exist_ok=True)
    text = markdown(frame, title, notes)
    (folder / f"{stem}.md").write_text(text)
    (folder / f"{stem}.tex").write_text(latex(frame, title, notes))
    frame.to_csv(folder / f"{stem}.csv", index=False)
    return text
