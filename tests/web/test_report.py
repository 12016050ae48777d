"""Tests of the encoder view, which must show the content of the bundle's report."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from models.bundle import bundle
from tests.serving.conftest import Launcher, Running
from tests.training.report.conftest import evaluation
from tests.web.accessibility import violations
from tests.web.conftest import LOOKS, Visit
from tests.web.contents import EVIL
from training.evaluation.report.published import papers
from training.promotion.place import copy

pytestmark = pytest.mark.slow
EVALUATION = evaluation("tiny", width=32)


def with_report(source: Path, folder: Path, *evaluations: dict[str, Any]) -> Path:
    """Return a copy of a bundle with a report."""
    report = {"format": 1, "evaluations": evaluations, "papers": papers(["bert-base-uncased"])}
    return copy(bundle.load(source), folder, added={bundle.REPORT: json.dumps(report).encode()}).folder


@pytest.fixture(scope="module")
def reported(launch_once: Launcher, tiny_bundle: Path, tmp_path_factory: pytest.TempPathFactory) -> Running:
    folder = tmp_path_factory.mktemp("reported") / "tiny"
    return launch_once("--bundle", str(with_report(tiny_bundle, folder, EVALUATION)), engine="onnxruntime")


@pytest.fixture
def page(reported: Running, visit: Visit) -> Page:
    return visit(reported.address, "?view=encoder")


def test_scores_stand_beside_the_papers(page: Page) -> None:
    table = page.get_by_role("region", name="Semantic textual similarity").get_by_role("table")
    own = table.get_by_role("row").filter(has=page.get_by_role("rowheader", name="tiny"))
    expect(own).to_contain_text(f"{EVALUATION['sts']['mean']:.2f}")
    for task in EVALUATION["sts"]["tasks"].values():
        expect(own).to_contain_text(f"{task['spearman']['all']:.2f}")
    assert table.get_by_role("row").count() > 2, "and rows of the papers"
    expect(page.get_by_role("main")).to_contain_text(f"{EVALUATION['transfer']['mean']:.2f}")


def test_geometry_and_engine_are_told(page: Page) -> None:
    for told in (f"{EVALUATION['geometry']['alignment']:.3f}", "onnxruntime in fp32: requested"):
        expect(page.get_by_role("main")).to_contain_text(told)


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_axe_finds_nothing_serious_in_it(reported: Running, visit: Visit, dark: bool) -> None:
    page = visit(reported.address, "?view=encoder", dark=dark)
    expect(page.get_by_role("region", name="Geometry").first).to_be_visible()
    assert violations(page) == []


@pytest.mark.parametrize("look", LOOKS)
def test_it_has_its_picture(reported: Running, visit: Visit, screens: Path, look: str) -> None:
    page = visit(reported.address, "?view=encoder", **LOOKS[look])
    expect(page.get_by_role("region", name="Geometry").first).to_be_visible()
    page.screenshot(path=screens / f"report-{look}.png", full_page=True, animations="disabled")


def test_a_report_is_text_and_may_lack_anything(
    launch_once: Launcher, tiny_bundle: Path, visit: Visit, tmp_path: Path
) -> None:
    evil = {
        "subject": {"name": EVIL},
        "sts": {"mean": 1.0, "tasks": {"STS12": {"spearman": {"all": 2.0}}}},
        "retrieval": {EVIL: {"ndcg10": 3.0}},
    }
    folder = with_report(tiny_bundle, tmp_path / "evil", evil, {"subject": {"name": "bare"}})
    server = launch_once("--bundle", str(folder), "--data", str(tmp_path / "data"), engine="onnxruntime")
    page = visit(server.address, "?view=encoder")
    expect(page.get_by_role("region", name="Retrieval").first).to_contain_text(EVIL)
    expect(page.get_by_role("main")).to_contain_text("2.00")
    assert page.locator("img, main script").count() == 0
