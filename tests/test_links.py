"""Tests of links and paths in the repository's pages: all targets exist."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PAGES = [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("benchmarks/**/*.md"), *ROOT.glob("studies/*.md")]
LINK = re.compile(r"\]\(([^)\s]+)\)")
HISTORY = {*ROOT.glob("docs/adr/*.md"), ROOT / "docs" / "log.md", ROOT / "CHANGELOG.md"}
"""Pages about the past, which may name files that no longer exist."""
PACKAGES = ("benchmarks", "docs", "models", "serving", "studies", "tests", "training", "website")
NAMED = re.compile(rf"(?<![\w./-])(?:{'|'.join(PACKAGES)})/[\w./-]+")
CODE = re.compile(r"```.*?```|`[^`\n]*`", re.DOTALL)


@cache
def anchors(page: Path) -> frozenset[str]:
    """Return the anchors that GitHub makes from the headings of a page."""
    headings = re.findall(r"^#+ (.*)$", re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL), re.MULTILINE)
    plain = [re.sub(r"\]\([^)]*\)|[\[`*]", "", heading).strip().lower() for heading in headings]
    return frozenset(re.sub(r"[^\w\- ]", "", heading).replace(" ", "-") for heading in plain)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links(page: Path) -> None:
    for link in LINK.findall(CODE.sub("", page.read_text())):
        if "://" in link or link.startswith("mailto:"):
            continue
        path, _, anchor = link.partition("#")
        target = page.parent / path if path else page
        assert target.exists(), link
        if anchor and target.suffix == ".md":
            assert anchor in anchors(target), link


@pytest.mark.parametrize(
    "page", [page for page in PAGES if page not in HISTORY], ids=lambda page: str(page.relative_to(ROOT))
)
def test_paths(page: Path) -> None:
    """Check paths. Names in capitals, as in `studies/PAPER/NAME.toml`, are placeholders."""
    spans = re.findall(r"(?<!`)`([^`\n]+)`(?!`)", page.read_text())
    named = {path.rstrip(".,") for span in spans if "*" not in span and "<" not in span for path in NAMED.findall(span)}
    assert [path for path in sorted(named) if path == path.lower() and not (ROOT / path).exists()] == []
