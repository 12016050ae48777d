"""Tests of the management of corpora and of the list of jobs."""

from __future__ import annotations

import re
from typing import Any
from urllib.parse import parse_qs, urlsplit

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


JOB: dict[str, Any] = dict.fromkeys(("rate", "eta_s", "finished", "result")) | {
    "kind": "reembed",
    "corpus": "c",
    "errors": [],
    "error_count": 0,
    "started": 1,
    "done": 1,
    "total": 2,
}


def test_only_the_latest_jobs_are_asked_for_again_while_one_runs(server: Running, visit: Visit) -> None:
    jobs = [JOB | {"id": str(i), "state": "succeeded" if i else "running", "created": -i} for i in range(4)]
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


def test_the_focus_stays_where_it_is_while_another_job_begins(server: Running, visit: Visit) -> None:
    jobs = [JOB | {"id": "0", "state": "running", "created": 1}]
    page = visit(server.address, "?view=compare")
    page.route("**/jobs?*", lambda route: route.fulfill(json={"jobs": jobs, "cursor": None}))
    page.route(
        "**/jobs/*", lambda route: route.fulfill(json=next(one for one in jobs if route.request.url[-1] == one["id"]))
    )
    open_view(page, "Corpora")
    cancel = page.get_by_role("button", name="Cancel: Embedding again c")
    cancel.focus()
    jobs.append(JOB | {"id": "1", "corpus": "d", "state": "running", "created": 2})
    expect(page.get_by_role("button", name="Cancel: Embedding again d")).to_be_visible()
    expect(cancel).to_be_focused()


def test_a_snapshot_is_made_once_if_its_button_is_pressed_twice(server: Running, visit: Visit) -> None:
    fill(server.client, "pressed", rows(3))
    page = visit(server.address, "?view=corpora&corpus=pressed")
    held: list[Route] = []

    def hold(route: Route) -> None:
        if route.request.method == "POST":
            held.append(route)
        else:
            route.continue_()

    page.route("**/pressed/snapshots", hold)
    make = corpus_card(page, "pressed").get_by_role("button", name="Make a snapshot")
    with page.expect_request(lambda request: request.method == "POST"):
        make.dblclick()
    held[0].continue_()
    expect(corpus_card(page, "pressed").get_by_role("link", name="Download")).to_be_visible()
    assert len(held) == 1


def test_a_job_whose_state_is_refused_is_not_called_lost(server: Running, visit: Visit) -> None:
    running = JOB | {"id": "0", "state": "running", "created": 1}
    page = visit(server.address, "?view=compare", expected=["status of 429"])
    page.route("**/jobs?*", lambda route: route.fulfill(json={"jobs": [running], "cursor": None}))
    page.route("**/jobs/0", lambda route: route.fulfill(status=429, json={"error": "too many requests"}))
    open_view(page, "Corpora")
    job = page.get_by_role("listitem").filter(has_text="Embedding again")
    expect(job).to_contain_text("Too many requests.")
    expect(job).not_to_contain_text("lost")


def test_encoders_are_offered_as_soon_as_they_are_served_and_cross_encoders_never(
    server: Running, visit: Visit
) -> None:
    fill(server.client, "moved", rows(5))
    info = server.client.get("/info").json()
    served = [info, info | {"served_model_name": "cross", "fingerprint": "c", "model_type": {"reranker": {}}}]
    corpora = server.client.get("/corpora").json()
    page = visit(server.address, "?view=compare")

    def describe(route: Route) -> None:
        (name,) = parse_qs(urlsplit(route.request.url).query)["model"]
        route.fulfill(json=next(one for one in served if one["served_model_name"] == name))

    page.route(
        "**/v1/models", lambda route: route.fulfill(json={"data": [{"id": one["served_model_name"]} for one in served]})
    )
    page.route("**/info?*", describe)
    page.route(re.compile("/corpora$"), lambda route: route.fulfill(json=corpora))
    open_view(page, "Corpora")
    card = corpus_card(page, "moved")
    offered = page.get_by_role("dialog").get_by_label("Encoder").get_by_role("option")
    card.get_by_text("Index, snapshots, and more").click()
    card.get_by_role("button", name="Embed again …").click()
    expect(offered).to_have_text(["fake (has embedded it)"])
    page.get_by_role("button", name="Cancel").click()
    served.append(info | {"served_model_name": "better", "fingerprint": "b"})
    next(one for one in corpora["corpora"] if one["name"] == "moved")["fingerprint"] = "b"
    card.get_by_role("button", name="Make a snapshot").click()
    expect(card).to_contain_text("Encoderbetter")
    card.get_by_role("button", name="Embed again …").click()
    expect(offered).to_have_text(["fake", "better (has embedded it)"])
