"""Tests of the adaptation of an encoder on the page Corpora, and of its results."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Locator, Page, Route, expect

from tests.serving.conftest import Running
from tests.web.accessibility import violations
from tests.web.conftest import PHONE, Visit
from tests.web.contents import fill, rows

pytestmark = pytest.mark.slow
DOES = "Adapt the encoder to this corpus …"
ADAPTED: dict[str, Any] = {
    "start": "minilm",
    "model": "houses-1a2b3c4d",
    "bundle": "/srv/var/adapted/houses/houses-1a2b3c4d",
    "queries": 186,
    "passages": 1869,
    "best": "whitened",
    "encoders": [
        {"stage": "start", "ndcg10": 34.204},
        {"stage": "trained", "ndcg10": 38.131, "gain": 3.927, "low": 2.811, "high": 5.064},
        {"stage": "whitened", "ndcg10": 38.616, "gain": 4.412, "low": 3.174, "high": 5.621},
    ],
    "examples": [
        {
            "query": "The boiler of house 20 is painted.",
            "before": {"own": False, "text": "The chimney of house 1 was repaired."},
            "after": {"own": True, "text": "The radiator of house 21 is painted."},
        }
    ],
    "next": [
        {"method": "POST", "path": "/admin/models", "body": {"bundle": "/srv/var/adapted/houses/houses-1a2b3c4d"}},
        {"method": "POST", "path": "/corpora/houses/reembed", "body": {"model": "houses-1a2b3c4d"}},
    ],
}


@pytest.fixture(scope="module", autouse=True)
def _houses(server: Running) -> None:
    fill(server.client, "houses", rows(40))


def job(**changes: Any) -> dict[str, Any]:
    now = time.time()
    times = {"created": now - 500, "started": now - 500, "finished": now - 20}
    progress: dict[str, Any] = {"done": 90, "total": 90, "rate": None, "eta_s": None, "errors": [], "error_count": 0}
    job = {"id": "1a2b3c4d", "kind": "adapt", "corpus": "houses", "state": "succeeded", "result": ADAPTED}
    return job | times | progress | changes


def listed(page: Page, *jobs: dict[str, Any]) -> None:
    page.route(re.compile(r"/jobs\?"), lambda route: route.fulfill(json={"jobs": jobs, "cursor": None}))
    page.reload()


def row(page: Page) -> Locator:
    return page.get_by_role("listitem").filter(has_text="Adapting an encoder to houses")


def test_it_is_started_by_the_keyboard_and_cancelled(
    server: Running, visit: Visit, tab_to: Callable[[Page, Locator], None], screens: Path
) -> None:
    page = visit(server.address, "?view=corpora&corpus=houses")
    tab_to(page, page.get_by_role("button", name=DOES))
    page.keyboard.press("Enter")
    dialog = page.get_by_role("dialog")
    expect(dialog).to_contain_text("ten minutes")
    assert violations(page) == []
    page.screenshot(path=screens / "adapting-asked.png", full_page=True)
    with page.expect_request("**/houses/adapt") as sent:
        dialog.get_by_role("button", name="Adapt it").click()
    assert sent.value.post_data_json == {"model": "fake"}
    cancel = row(page).get_by_role("button", name="Cancel")
    tab_to(page, cancel)
    page.keyboard.press("Enter")
    expect(row(page).get_by_role("status")).to_have_text("cancelled")


@pytest.mark.parametrize("look", [{"dark": False}, {"dark": True}, {"viewport": PHONE}], ids=["light", "dark", "phone"])
def test_the_encoders_are_compared_and_the_better_one_can_be_served(
    server: Running, visit: Visit, look: dict[str, Any], screens: Path, request: pytest.FixtureRequest
) -> None:
    page = visit(server.address, "?view=corpora&corpus=houses", **look)
    listed(page, job())
    table = row(page).get_by_role("region", name="Encoders adapted to houses")
    expect(table.get_by_role("row")).to_have_count(4)
    expect(table.get_by_role("row").nth(3)).to_contain_text("38.62+4.41+3.17 to +5.62")
    expect(row(page)).to_contain_text("A better encoder was found in 8 min")
    commands = row(page).get_by_label("Commands")
    expect(commands).to_contain_text("/admin/models")
    expect(commands).to_contain_text("/corpora/houses/reembed")
    row(page).get_by_text("Queries that changed most").click()
    expect(row(page)).to_contain_text("Its passage: The radiator of house 21")
    assert violations(page) == []
    assert page.evaluate("() => document.documentElement.scrollWidth - innerWidth") <= 0
    page.screenshot(path=screens / f"adapting-{request.node.callspec.id}.png", full_page=True)


def test_who_has_a_key_serves_the_better_one_at_once(server: Running, visit: Visit) -> None:
    page = visit(server.address, "?view=corpora&corpus=houses")
    page.evaluate("() => sessionStorage.setItem('isosphere-key', 'all')")
    sent: list[tuple[str, Any]] = []

    def answer(route: Route) -> None:
        request = route.request
        sent.append((request.url.removeprefix(server.address), request.post_data_json))
        route.fulfill(status=201, json=job(id="5e6f7a8b", kind="reembed", result={"documents": 40}))

    page.route(re.compile("/admin/models$|/houses/reembed$"), answer)
    listed(page, job())
    row(page).get_by_role("button", name="Serve it and embed again").click()
    expect(page.get_by_role("listitem").filter(has_text="Embedding again")).to_be_visible()
    assert sent == [(request["path"], request["body"]) for request in ADAPTED["next"]]


def test_nothing_better_and_too_little_are_said(server: Running, visit: Visit) -> None:
    page = visit(server.address, "?view=corpora")
    nothing: dict[str, Any] = {"best": None, "model": None, "bundle": None, "next": [], "examples": []}
    listed(page, job(result=ADAPTED | nothing))
    expect(row(page)).to_contain_text("Nothing searches better than minilm")
    listed(page, job(result=ADAPTED | nothing | {"encoders": [], "queries": 0}))
    expect(row(page)).to_contain_text("Too few passages")
    even = ADAPTED["encoders"][2] | {"low": -0.1}
    listed(page, job(result=ADAPTED | {"encoders": [*ADAPTED["encoders"][:2], even]}))
    expect(row(page)).to_contain_text("may be chance")


def test_it_is_not_offered_where_training_is_not_installed(server: Running, visit: Visit) -> None:
    page = visit(server.address)

    def without(route: Route) -> None:
        route.fulfill(json=route.fetch().json() | {"adapts": False})

    page.route("**/info", without)
    page.goto(f"{server.address}/?view=corpora&corpus=houses")
    expect(page.get_by_role("button", name="Embed again …")).to_be_visible()
    expect(page.get_by_role("button", name=DOES)).to_have_count(0)


def test_it_is_not_offered_for_vectors_of_another_origin(server: Running, visit: Visit) -> None:
    server.client.put("/corpora/own", json={"vectors": "own", "dim": 2}).raise_for_status()
    document = {"text": "boiler", "vector": [1, 0]}
    server.client.post("/corpora/own/documents", json={"documents": [document]}).raise_for_status()
    page = visit(server.address, "?view=corpora&corpus=own")
    expect(page.get_by_role("button", name="Make a snapshot")).to_be_visible()
    expect(page.get_by_role("button", name=DOES)).to_have_count(0)
