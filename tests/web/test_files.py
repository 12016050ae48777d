"""Tests of the files in serving/web without a browser: their size, and forbidden contents."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
WEB = ROOT / "serving" / "web"
FILES = sorted(path for path in WEB.rglob("*") if path.suffix in {".html", ".css", ".js"})
SCRIPTS = [path for path in FILES if path.suffix == ".js"]
MAX_BYTES = 300_000
PICTURE_BYTES = 200_000

READS_HTML = r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|DOMParser|createContextualFragment|setHTML"
RUNS_TEXT = r"\beval\(|new Function|javascript:|setTimeout\(\s*['\"`]|setInterval\(\s*['\"`]"


def test_the_page_is_small() -> None:
    assert sum(path.stat().st_size for path in FILES) < MAX_BYTES


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.relative_to(WEB).as_posix())
def test_no_file_is_long(path: Path) -> None:
    assert len(path.read_text().splitlines()) <= 300 or path.suffix == ".css"


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.relative_to(WEB).as_posix())
def test_text_never_becomes_html_or_code(path: Path) -> None:
    assert not re.search(f"{READS_HTML}|{RUNS_TEXT}", path.read_text())


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.relative_to(WEB).as_posix())
def test_one_file_makes_elements(path: Path) -> None:
    assert path.name == "dom.js" or not re.search(r"createElement|createTextNode|cloneNode", path.read_text())


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.relative_to(WEB).as_posix())
def test_nothing_comes_from_elsewhere_or_from_the_root(path: Path) -> None:
    """Check addresses, because the root belongs to another site if a proxy serves the page under a prefix."""
    text = path.read_text().replace("http://www.w3.org/2000/svg", "")
    assert not re.search(r"https?://(?!\$)|(?:href|src|action)=\"/|fetch\(\s*[`'\"]/|url\(\s*['\"]?/|from \"/", text)


def test_the_page_carries_no_script_or_style_of_its_own() -> None:
    page = (WEB / "index.html").read_text()
    assert not re.search(r"<script(?![^>]*\ssrc=)|<style|\sstyle=|\son[a-z]+=", page)


@pytest.mark.parametrize("path", sorted((WEB / "views").glob("*.js")), ids=lambda path: path.stem)
def test_a_view_shows_itself(path: Path) -> None:
    assert "export async function show" in path.read_text()


def test_the_readme_opens_with_a_picture_of_the_page() -> None:
    picture = ROOT / "docs" / "page.png"
    assert picture.read_bytes().startswith(b"\x89PNG") and picture.stat().st_size < PICTURE_BYTES
    opening, _, _ = (ROOT / "README.md").read_text().partition("\n```")
    assert "](docs/page.png)" in opening
