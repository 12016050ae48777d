"""Test that the page opens and finds something. It is the only browser test of every run."""

from __future__ import annotations

from playwright.sync_api import expect

from tests.serving.conftest import Running
from tests.web.conftest import Visit
from tests.web.contents import fill, rows


def test_it_opens_and_finds(server: Running, visit: Visit) -> None:
    fill(server.client, "houses", rows(40))
    page = visit(server.address)
    page.get_by_role("searchbox", name="Query").fill("the boiler of house 20")
    expect(page.get_by_text("The boiler of house 20 is painted.")).to_be_visible()
    expect(page).to_have_url(f"{server.address}/?view=search&corpus=houses&q=the+boiler+of+house+20")
