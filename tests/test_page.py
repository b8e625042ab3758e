"""report.html: one file, complete, that asks for nothing; and stale results are found."""

import json
import re
import shutil
import subprocess
from html.parser import HTMLParser
from pathlib import Path

import pytest

from experiments import page, report
from experiments.provenance import ROOT
from experiments.stale import stale

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
RESULTS = ROOT / "results"
# What a page loads by itself; a link that a reader may click is no such thing.
LOADS = {"img", "script", "link", "iframe", "source", "video", "audio", "object", "embed", "base"}


def browser() -> str | None:
    """Return a Chromium, playwright's included, if there is one."""
    found = [path for name in BROWSERS if (path := shutil.which(name))]
    cache = Path.home() / ".cache" / "ms-playwright"
    for name in ("chrome", "headless_shell", "chrome-headless-shell"):
        found += map(str, sorted(cache.glob(f"chromium*/*/{name}")))
    return next(iter(found), None)


class Reader(HTMLParser):
    """Collects what a page loads, what it holds, and whether its tags close."""

    EMPTY = frozenset(("meta", "link", "img", "br", "hr"))

    def __init__(self) -> None:
        super().__init__()
        self.loaded: list[str] = []
        self.ids: list[str] = []
        self.links: list[str] = []
        self.tags: list[str] = []
        self.open: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = dict(attrs)
        self.tags.append(tag)
        self.ids += [found["id"]] if found.get("id") else []
        self.links += [found["href"]] if tag == "a" else []
        if tag in LOADS:
            self.loaded += [v for k in ("src", "href", "data", "srcset") if (v := found.get(k))]
        if tag not in self.EMPTY:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


@pytest.fixture(scope="module")
def text() -> str:
    """The page of the committed tables and figures."""
    return page.text_of(RESULTS)


def test_the_page_loads_nothing_from_elsewhere(text: str) -> None:
    reader = Reader()
    reader.feed(text)
    assert reader.open == []
    assert reader.loaded
    assert all(each.startswith("data:") for each in reader.loaded)
    assert "script" not in reader.tags
    style = "".join(re.findall(r"<style>(.*?)</style>", text, re.DOTALL))
    assert "url(" not in style
    assert "@import" not in style
    assert all(link.removeprefix("#") in reader.ids for link in reader.links)


def test_every_table_figure_and_claim_is_there(text: str) -> None:
    reader = Reader()
    reader.feed(text)
    paths = [p for p in (RESULTS / "tables").glob("*.md") if p.stem not in page.INSIDE]
    tables = [path.stem for path in paths]
    figures = [path.stem for path in (RESULTS / "figures").glob("*.png")]
    assert len(tables) >= 4
    assert {f"table-{name}" for name in tables} | {f"figure-{name}" for name in figures} <= set(
        reader.ids
    )
    assert reader.tags.count("img") == len(figures)
    for path in paths:
        lines = [line for line in path.read_text().splitlines() if line.startswith("|")]
        part = text.split(f'id="table-{path.stem}"')[1].split("</article>")[0]
        assert part.count("<tr>") == len(lines) - 1  # but for the rule under the headings
    beyond = text.split("Beyond the paper")[1].split("</section>")[0]
    for name in page.INSIDE:
        title = (RESULTS / "tables" / f"{name}.md").read_text().split("**")[1]
        assert f"<h3>{title}</h3>" in beyond


def test_markdown_becomes_html_with_care_for_signs() -> None:
    found = page.to_html(
        "**A < B**\n\n| a | b |\n|---|---|\n| `x` | missed |\n\n- |g| & more\n\nText"
    )
    assert "<h3>A &lt; B</h3>" in found
    assert '<td><code>x</code></td><td class="missed">missed</td>' in found
    assert "<li>|g| &amp; more</li>" in found
    assert "<p>Text</p>" in found


@pytest.mark.skipif(browser() is None, reason="no Chromium here: the page is not opened in one")
def test_the_page_opens_in_a_browser_without_errors_or_requests(text: str, tmp_path: Path) -> None:
    probe = (
        '<script>addEventListener("load", () => { const list = document.createElement("pre");'
        'list.id = "requests"; list.textContent = JSON.stringify(performance.getEntriesByType('
        '"resource").map(e => e.name)); document.body.append(list);'
        "const bad = [...document.images].filter(i => !i.naturalWidth).length;"
        "list.dataset.broken = bad; });</script></body>"
    )
    path = tmp_path / "report.html"
    path.write_text(text.replace("</body>", probe))
    done = subprocess.run(
        [
            browser(),
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            f"--user-data-dir={tmp_path / 'profile'}",
            "--enable-logging=stderr",
            "--virtual-time-budget=10000",
            "--dump-dom",
            path.as_uri(),
        ],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    broken, requests = re.search(
        r'<pre id="requests" data-broken="(\d+)">(.*?)</pre>', done.stdout
    ).groups()
    assert [each for each in json.loads(requests) if not each.startswith("data:")] == []
    assert broken == "0"
    assert "CONSOLE" not in done.stderr


def copied(folder: Path) -> Path:
    """A results folder with one small table, written from its rows."""
    results = folder / "results"
    (results / "runs").mkdir(parents=True)
    (results / "figures").mkdir()
    (results / "paper").symlink_to(RESULTS / "paper")
    (results / "runs" / "sizes.jsonl").symlink_to(RESULTS / "runs" / "sizes.jsonl")
    (results / "runs" / "table4.jsonl").write_text("")
    (results / "tables").mkdir()
    return results


def test_stale_files_are_named_and_nothing_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    results = copied(tmp_path)

    def write_all(folder: Path) -> list[str]:
        (folder / "tables").mkdir(exist_ok=True)
        for form in ("md", "csv", "tex"):
            (folder / "tables" / f"some.{form}").write_text(f"fresh {form}")
        return []

    monkeypatch.setattr(report, "write_all", write_all)
    readme = tmp_path / "README.md"
    readme.write_text("<!-- table some -->\nfresh md<!-- end some -->")
    report.write_everything(results)
    report.check(results, readme)  # all is as the rows have it

    (results / "tables" / "some.md").write_text("old")
    (results / "tables" / "gone.csv").write_text("of rows that are no more")
    (results / "REPRODUCTION.md").write_text("old")
    readme.write_text("<!-- table some -->\nold<!-- end some -->")
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    names = {path.name for path in report.stale_files(results, readme)}
    assert names == {"some.md", "gone.csv", "REPRODUCTION.md", "README.md"}
    with pytest.raises(ValueError, match=r"not what the rows give: .*some\.md.*make report"):
        report.check(results, readme)
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before


def test_the_bytes_of_pictures_make_nothing_stale(tmp_path: Path) -> None:
    for name, image in (("old", "AAAA"), ("new", "BBBB")):
        (tmp_path / name).mkdir()
        text = f'<p>same</p><img alt="x" src="data:image/png;base64,{image}">'
        (tmp_path / name / "report.html").write_text(text)
    assert stale(tmp_path / "old", tmp_path / "new") == []
    (tmp_path / "new" / "report.html").write_text("<p>other</p>")
    assert [p.name for p in stale(tmp_path / "old", tmp_path / "new")] == ["report.html"]
