from __future__ import annotations

import re
from pathlib import Path
from xml.etree import ElementTree

import pytest

from benchmarks import figures

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
def test_every_figure_of_the_documentation_is_drawn_from_what_was_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(figures, "DOCS", tmp_path)
    figures.main()
    drawn = {file.name for file in tmp_path.iterdir() if len(ElementTree.parse(file).findall(".//{*}path")) > 20}
    pages = [(ROOT / "docs" / f"{name}.md").read_text() for name in ("compare", "results")]
    shown = {name for page in pages for name in re.findall(r"!\[.+\]\((\w+\.svg)\)", page)}
    assert drawn == shown and all((ROOT / "docs" / name).is_file() for name in shown)
