"""Tests of the management of corpora and of the list of jobs."""

from __future__ import annotations

import pytest
from playwright.sync_api import Route, expect

from tests.serving.conftest import Running
from tests.web.conftest import Visit
from tests.web.contents import fill, rows
from tests.web.views import corpus_card, open_view

pytestmark = pytest.mark.slow


def test_a_corpus_is_deleted_by_who_types_its_name(server: Running, visit: Visit) -> None:
    fill(server.client, "unwanted", rows(3))
    page = visit(server.address, "?view=corpora")
    card = corpus_card(page, "unwanted")
    card.get_by_text("Index, snapshots, and more").click()
    card.get_by_role("button", name="Delete …").click()
    dialog = page.get_by_role("dialog", name="Delete unwanted?")
    yes = dialog.get_by_role("button", name="Delete it")
    expect(yes).to_be_disabled()
    dialog.get_by_role("textbox").fill("unwante")
    expect(yes).to_be_disabled()
    dialog.get_by_role("textbox").fill("unwanted")
    yes.click()
    expect(card).to_have_count(0)
    assert server.client.get("/corpora/unwanted").status_code == 404


def test_a_corpus_that_another_client_deleted_leaves_the_page(server: Running, visit: Visit) -> None:
    page = visit(server.address, "?view=corpora", expected=["status of 404"])
    for action in ("Delete …", "Make a snapshot"):
        fill(server.client, "gone", rows(3))
        page.reload()
        card = corpus_card(page, "gone")
        card.get_by_text("Index, snapshots, and more").click()
        server.client.delete("/corpora/gone").raise_for_status()
        card.get_by_role("button", name=action).click()
        if action == "Delete …":
            page.get_by_role("dialog").get_by_role("textbox").fill("gone")
            page.get_by_role("dialog").get_by_role("button", name="Delete it").click()
        expect(card).to_have_count(0)


def test_only_the_latest_jobs_are_asked_for_again_while_one_runs(server: Running, visit: Visit) -> None:
    job = dict.fromkeys(("rate", "eta_s", "finished", "result"))
    job |= {"kind": "reembed", "corpus": "c", "errors": [], "error_count": 0, "started": 1, "done": 1, "total": 2}
    jobs = [job | {"id": str(i), "state": "succeeded" if i else "running", "created": -i} for i in range(4)]
    asked: list[str] = []
    page = visit(server.address, "?view=encoder")

    def answer(route: Route) -> None:
        asked.append(route.request.url)
        second = "cursor" in route.request.url
        route.fulfill(json={"jobs": jobs[2:] if second else jobs[:2], "cursor": None if second else "2"})

    page.route("**/jobs?*", answer)
    page.route("**/jobs/0", lambda route: route.fulfill(json=jobs[0]))
    open_view(page, "Corpora")
    expect(page.get_by_role("button", name="Show 1 earlier")).to_be_visible()
    with page.expect_request("**/jobs?*"):
        pass
    with page.expect_request("**/jobs?*"):
        pass
    assert sum("cursor" in url for url in asked) == 1
    expect(page.get_by_role("button", name="Show 1 earlier")).to_be_visible()
