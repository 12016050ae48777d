"""Tests of the documentation site: complete, strict, and without content from other hosts."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from models.cli.table import COMMANDS
from serving.commands.serve import document
from serving.settings import Settings
from tests.conftest import PATIENCE

ROOT = Path(__file__).resolve().parents[1]
LOADED = re.compile(r"<(?:script|img|link|iframe)\b[^>]*\b(?:src|href)=\"?(?:https?:)?//", re.IGNORECASE)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the site as `make site` does, which fails for a broken link or anchor."""
    for package in ("material", "latex2mathml"):
        pytest.importorskip(package, reason="the extra docs is not installed: `make setup`")
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--config-file", "website/mkdocs.yml"]
    built = subprocess.run(
        [*command, "--site-dir", str(folder)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=5 * PATIENCE,
    )
    assert built.returncode == 0, built.stderr
    return folder


@pytest.mark.slow
def test_the_reference_has_every_command_option_and_route(site: Path) -> None:
    commands, settings, routes = (
        (site / "reference" / name / "index.html").read_text() for name in ("command-line", "settings", "http-api")
    )
    assert all(f'id="isosphere-{name}"' in commands for name in COMMANDS)
    assert all(f"ISOSPHERE_{name.upper()}" in settings for name in Settings.model_fields)
    assert all(f"<code>{path}</code>" in routes for path in re.findall(r'^  "(/[^"]*)": {', document(), re.MULTILINE))


@pytest.mark.slow
def test_a_file_outside_the_pages_that_one_links_to_is_in_the_site(site: Path) -> None:
    linked = re.findall(r'href="([^"]*/benchmarks/[^"]*)"', (site / "training" / "index.html").read_text())
    assert linked and all((site / "training" / link).is_file() for link in linked)


@pytest.mark.slow
def test_the_site_loads_nothing_from_other_hosts(site: Path) -> None:
    pages = [*site.rglob("*.html")]
    assert len(pages) > 50
    assert not [page for page in pages if LOADED.search(page.read_text())]


@pytest.mark.slow
def test_equations_are_mathml(site: Path) -> None:
    """Check MathML, which browsers show without a foreign script or font."""
    page = (site / "objectives" / "index.html").read_text()
    written = (ROOT / "docs" / "objectives.md").read_text().count("```math")
    assert page.count('<math xmlns="http://www.w3.org/1998/Math/MathML" display="block">') == written > 5
    assert "&amp;" not in "".join(re.findall(r"<math.*?</math>", page, re.DOTALL)) and "\\begin" not in page
