"""Tests of answers that arrive in another order, and of views that are left during a request."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
from playwright.sync_api import APIResponse, Page, Route, expect

from tests.serving.conftest import Running
from tests.web.conftest import Visit
from tests.web.contents import fill, rows
from tests.web.views import corpus_card, open_view

pytestmark = pytest.mark.slow
SETTLED_MS = 300


def late(page: Page, path: str | re.Pattern[str]) -> Callable[[], None]:
    """Delay the answer to the next request of a path, and return a function that releases the answer."""
    held: list[Route] = []
    answered: list[APIResponse] = []

    def hold(route: Route) -> None:
        if held:
            route.continue_()
            return
        held.append(route)  # Before the fetch, during which the next request may come.
        answered.append(route.fetch())

    def arrive() -> None:
        while not answered:
            page.wait_for_timeout(SETTLED_MS)
        held[0].fulfill(response=answered[0])
        page.wait_for_timeout(SETTLED_MS)

    page.route(path, hold)
    return arrive


def test_a_corpus_that_was_deleted_does_not_come_back(server: Running, visit: Visit) -> None:
    for name in ("first", "second"):
        server.client.put(f"/corpora/{name}", json={}).raise_for_status()
    page = visit(server.address, "?view=corpora")

    def delete(name: str) -> None:
        corpus_card(page, name).get_by_role("button", name="Delete …").first.click()
        page.get_by_role("dialog").get_by_role("button", name="Delete it").click()

    expect(corpus_card(page, "second")).to_be_visible()
    listing = re.compile("/corpora$")
    arrive = late(page, listing)
    with page.expect_request(listing):
        delete("first")
    delete("second")
    expect(corpus_card(page, "second")).to_have_count(0)
    arrive()
    expect(corpus_card(page, "second")).to_have_count(0)


def test_a_snapshot_that_was_made_stays_in_the_list(server: Running, visit: Visit) -> None:
    fill(server.client, "kept", rows(5))
    page = visit(server.address, "?view=corpora")
    card = corpus_card(page, "kept")
    arrive = late(page, re.compile("/kept/snapshots$"))
    card.get_by_text("Index, snapshots, and more").click()
    expect(card.get_by_text("Looking for snapshots")).to_be_visible()
    card.get_by_role("button", name="Make a snapshot").click()
    expect(card.get_by_role("link", name="Download")).to_be_visible()
    arrive()
    expect(card.get_by_role("link", name="Download")).to_be_visible()


def test_what_failed_of_another_colour_is_not_told_of_this_one(server: Running, visit: Visit) -> None:
    fill(server.client, "kept", rows(40))
    page = visit(server.address, "?view=map&corpus=kept&field=-", expected=["ERR_FAILED"])
    expect(page.get_by_role("application")).to_be_visible()
    held: list[Route] = []

    def hold(route: Route) -> None:
        held.append(route)

    page.route("**/map?*field=year", hold)
    colour = page.get_by_role("combobox", name="Colour by")
    with page.expect_request("**/map?*field=year"):
        colour.select_option("year")
    colour.select_option("topic")
    expect(page.get_by_role("button", name="music")).to_be_visible()
    held.pop().abort()
    page.wait_for_timeout(SETTLED_MS)
    expect(page.get_by_role("alert")).to_have_count(0)


def test_a_question_goes_with_its_view(server: Running, visit: Visit) -> None:
    server.client.put("/corpora/empty", json={}).raise_for_status()
    page = visit(server.address)
    open_view(page, "Corpora")
    corpus_card(page, "empty").get_by_role("button", name="Delete …").first.click()
    expect(page.get_by_role("dialog")).to_be_visible()
    page.evaluate("() => history.back()")
    expect(page.get_by_role("heading", level=1, name="Search")).to_be_visible()
    expect(page.get_by_role("dialog")).to_have_count(0)
