from __future__ import annotations

import re
from pathlib import Path
from xml.etree import ElementTree

import pytest
from matplotlib.figure import Figure

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


def test_a_peer_that_failed_under_a_load_is_not_drawn_there(monkeypatch: pytest.MonkeyPatch) -> None:
    speed = {"times_isosphere": 1.0, "p95_ms": 2.0}
    loads = {
        "bulk": {"isosphere": speed, "llama_cpp": "failed in round 1: no reply", "fastembed": speed},
        "open_50": {"isosphere": "failed in round 2: no reply", "st_torch": {"p95_ms": 2.0}},
        "open_80": {"st_torch": speed},
    }
    monkeypatch.setattr(figures, "read", lambda _: {"figures": {"loads": loads}})
    speeds, latencies = Figure().subplots(2)
    figures._loads(speeds, latencies)
    drawn = [{line.get_label(): list(line.get_ydata()) for line in axes.lines} for axes in (speeds, latencies)]
    assert drawn == [{"isosphere": [0], "fastembed": [0]}, {"st_torch": [0, 1]}]
