"""results/report.html: tables, figures and claims in one file that asks for nothing else."""

import base64
import html
import re
from collections.abc import Iterator
from pathlib import Path

from experiments.claims import VERDICTS
from experiments.figures.captions import read_captions

# In this order, then whatever else there is.
TABLES = ("table1", "table1-cifar", "table1-paper", "table3", "table3-batches", "table4")
INSIDE = ("equal-bytes", "recompute")  # shown with the claims
STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; color: #1a1a1a; background: #fff; margin: 0 auto;
       max-width: 76rem; padding: 1rem 1.5rem 4rem; }
h1 { font-size: 1.7rem; }
h2 { font-size: 1.3rem; margin-top: 2.5rem; border-bottom: 1px solid #ccc; }
h3 { font-size: 1.05rem; margin-bottom: .4rem; }
nav a { margin-right: 1rem; } a { color: #0b57a4; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; font-size: 13px; font-variant-numeric: tabular-nums; }
th, td { text-align: left; vertical-align: top; padding: .25rem .6rem;
         border-bottom: 1px solid #ddd; }
th { border-bottom: 2px solid #888; white-space: nowrap; }
tbody tr:nth-child(even) { background: #f6f6f6; }
code { font-size: 12px; background: #eee; padding: 0 .2rem; overflow-wrap: anywhere; }
ul { font-size: 13px; color: #444; padding-left: 1.2rem; }
figure { margin: 1.5rem 0; } figure img { max-width: 100%; height: auto; }
figcaption { font-size: 13px; color: #444; max-width: 60rem; }
.reached { color: #00654a; font-weight: 600; } .missed { color: #b03a00; font-weight: 600; }
.not { color: #666; }
@media print { nav { display: none; } figure, tr { break-inside: avoid; } }
"""


def text_of(results: Path) -> str:
    """Return the page, from the tables, captions and claims that are written already."""
    tables = [path for path in (results / "tables").glob("*.md") if path.stem not in INSIDE]
    tables.sort(key=_place)
    sections = {
        "claims": ("Claims", _claims(results)),
        "tables": ("Tables", "\n".join(_table(path) for path in tables)),
        "figures": ("Figures", "\n".join(_figures(results / "figures"))),
    }
    links = "".join(f'<a href="#{name}">{title}</a>' for name, (title, _) in sections.items())
    body = "\n".join(
        f'<section id="{name}">\n<h2>{title}</h2>\n{inner}\n</section>'
        for name, (title, inner) in sections.items()
    )
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f'<title>DIVISION-repro: results</title>\n<link rel="icon" href="data:,">\n'
        f"<style>{STYLE}</style>\n</head>\n<body>\n<h1>DIVISION-repro: results</h1>\n"
        "<p>Activation-compressed training: every table, figure and claim, written by "
        "<code>make report</code> from recorded rows.</p>\n"
        f"<nav>{links}</nav>\n{body}\n</body>\n</html>\n"
    )


def write(results: Path) -> None:
    """Write the page."""
    (results / "report.html").write_text(text_of(results))


def without_images(page: str) -> str:
    """Return a page without the bytes of its pictures, which depend on who draws them."""
    return re.sub(r'src="data:[^"]*"', 'src=""', page)


def _place(path: Path) -> tuple[int, str]:
    return TABLES.index(path.stem) if path.stem in TABLES else len(TABLES), path.stem


def _claims(results: Path) -> str:
    text = (results / "REPRODUCTION.md").read_text()
    return to_html(text.split("\n", 1)[1])  # the page has a title of its own


def _table(path: Path) -> str:
    return f'<article id="table-{path.stem}">\n{to_html(path.read_text())}\n</article>'


def _figures(folder: Path) -> Iterator[str]:
    page = folder / "README.md"
    captions = read_captions(page.read_text()) if page.exists() else {}
    for name, caption in captions.items():
        picture = base64.b64encode((folder / f"{name}.png").read_bytes()).decode()
        yield (
            f'<figure id="figure-{name}">\n<img alt="{html.escape(name)}" '
            f'src="data:image/png;base64,{picture}">\n'
            f"<figcaption>{_inline(caption)}</figcaption>\n</figure>"
        )


def to_html(text: str) -> str:
    """Turn the Markdown that this repository writes into HTML: tables, lists, headings, prose."""
    found = []
    for block in re.split(r"\n\s*\n", text.strip()):
        lines = block.split("\n")
        if lines[0].startswith("|"):
            found.append(_rows(lines))
        elif lines[0].startswith("- "):
            items = "".join(f"<li>{_inline(line[2:])}</li>\n" for line in lines)
            found.append(f"<ul>\n{items}</ul>")
        elif lines[0].startswith("## "):
            found.append(f"<h3>{_inline(lines[0][3:])}</h3>")
            found += [to_html("\n".join(lines[1:]))] if lines[1:] else []
        elif re.fullmatch(r"\*\*.*\*\*", block):
            found.append(f"<h3>{_inline(block[2:-2])}</h3>")
        else:
            found.append(f"<p>{_inline(' '.join(lines))}</p>")
    return "\n".join(found)


def _rows(lines: list[str]) -> str:
    head, _, *body = ([cell.strip() for cell in line.strip("|").split("|")] for line in lines)
    heads = "".join(f"<th>{_inline(cell)}</th>" for cell in head)
    rows = "".join(f"<tr>{''.join(map(_cell, row))}</tr>\n" for row in body)
    return (
        f'<div class="wide"><table>\n<thead><tr>{heads}</tr></thead>\n<tbody>\n{rows}</tbody>\n'
        "</table></div>"
    )


def _cell(text: str) -> str:
    kind = f' class="{text.split()[0]}"' if text in VERDICTS else ""
    return f"<td{kind}>{_inline(text)}</td>"


def _inline(text: str) -> str:
    return re.sub(r"`([^`]*)`", r"<code>\1</code>", html.escape(text, quote=False))
