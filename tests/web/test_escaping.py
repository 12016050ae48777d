"""Tests that all of a user's text is shown unchanged, and only as text."""

from __future__ import annotations

from urllib.parse import quote

import pytest
from playwright.sync_api import Page, expect

from tests.serving.conftest import Running
from tests.web.conftest import Visit
from tests.web.contents import EVIL
from tests.web.views import VIEWS, shown

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module", autouse=True)
def _evil(server: Running) -> None:
    """Create names, text, metadata and fields that contain HTML."""
    server.client.put("/corpora/evil", json={"description": EVIL}).raise_for_status()
    documents = [
        {
            "id": f"{i}{EVIL}",
            "text": f"boiler {i} {EVIL}",
            "metadata": {"title": EVIL, "topic": f"{i % 3}{EVIL}", f"field {EVIL}": EVIL, "deep": {EVIL: [EVIL, i]}},
        }
        for i in range(30)
    ]
    server.client.post("/corpora/evil/documents", json={"documents": documents}).raise_for_status()
    lines = f'{{"text": "good"}}\n{{"nottext": "{quote(EVIL)}"}}\n{EVIL}\n'
    headers = {"content-type": "application/x-ndjson"}
    job = server.client.post("/corpora/evil/documents?async=true&on_error=skip", content=lines, headers=headers)
    job.raise_for_status()


def nothing_ran(page: Page) -> None:
    """Check that no script ran. `visit` also checks for dialogs."""
    assert page.locator("img, main script, [onerror], [onload]").count() == 0
    assert "${alert(4)}25" not in page.locator("main").inner_text()


@pytest.mark.parametrize("view", VIEWS)
def test_in_every_view(server: Running, visit: Visit, view: str) -> None:
    page = visit(server.address, "?corpus=evil")
    shown(page, view, EVIL)
    nothing_ran(page)


def test_in_hits_and_filters(server: Running, visit: Visit) -> None:
    page = visit(server.address, f"?corpus=evil&q={quote('boiler ' + EVIL)}")
    expect(page.get_by_role("heading", level=2, name=EVIL).first).to_be_visible()
    expect(page.get_by_role("main")).to_contain_text(f"field {EVIL}")
    page.get_by_role("checkbox").first.check()
    expect(page.get_by_role("button", name=f"title: {EVIL}")).to_be_visible()
    page.get_by_role("heading", level=2).first.get_by_role("button").click()
    page.get_by_role("link", name="More like this").first.click()
    expect(page.get_by_role("heading", level=2, name=EVIL).first).to_be_visible()
    nothing_ran(page)


@pytest.mark.parametrize("name", ["view", "corpus", "q", "mode", "filter", "like", "unlike", "sort", "group", "field"])
def test_in_the_address(server: Running, visit: Visit, name: str) -> None:
    page = visit(server.address, f"?{name}={quote(EVIL)}", expected=["status of 4"])
    page.wait_for_load_state("networkidle")
    nothing_ran(page)


def test_a_filter_of_another_shape_is_an_error_with_a_way_out(server: Running, visit: Visit) -> None:
    for filter in ('{"topic": {"$nonsense": 1}}', "[1]", '"x"', '{"a": null}', '{"$or": 5}', "5"):
        page = visit(server.address, f"?corpus=evil&q=boiler&filter={quote(filter)}", expected=["status of 422"])
        page.wait_for_load_state("networkidle")
        expect(page.get_by_role("searchbox")).to_have_value("boiler")
