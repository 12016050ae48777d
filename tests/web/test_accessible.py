"""Tests of every view with axe-core in light and dark, and of the keyboard and narrow windows."""

from __future__ import annotations

import pytest
from playwright.sync_api import expect

from tests.serving.conftest import Running
from tests.web.accessibility import violations
from tests.web.conftest import DESK, PHONE, Visit
from tests.web.contents import fill, rows
from tests.web.views import VIEWS, shown

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module", autouse=True)
def _houses(server: Running) -> None:
    fill(server.client, "houses", rows(400))


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("view", VIEWS)
def test_axe_finds_nothing_serious(server: Running, visit: Visit, view: str, dark: bool) -> None:
    page = visit(server.address, dark=dark)
    shown(page, view)
    assert violations(page) == []


@pytest.mark.parametrize("width", [PHONE, {"width": 320, "height": 640}], ids=["390", "320"])
@pytest.mark.parametrize("view", VIEWS)
def test_nothing_is_wider_than_the_window(server: Running, visit: Visit, view: str, width: dict[str, int]) -> None:
    """Use 320 px, the width of a window of 1280 px at 400 % (WCAG 2.2, 1.4.10)."""
    page = visit(server.address, viewport=width)
    shown(page, view)
    assert page.evaluate("() => document.documentElement.scrollWidth - innerWidth") <= 0


@pytest.mark.parametrize("view", VIEWS)
def test_nothing_moves_for_who_wants_it_still(server: Running, visit: Visit, view: str) -> None:
    page = visit(server.address, viewport=DESK, reduced_motion="reduce")
    shown(page, view)
    moving = "() => document.getAnimations().filter((one) => one.playState === 'running').length"
    assert page.evaluate(moving) == 0


def test_the_skip_link_leads_past_the_navigation(server: Running, visit: Visit) -> None:
    page = visit(server.address, "?view=compare")
    expect(page.get_by_role("heading", level=1)).to_be_visible()
    page.keyboard.press("Tab")
    expect(page.get_by_role("link", name="Skip to the content")).to_be_focused()
    page.keyboard.press("Enter")
    expect(page.get_by_role("main")).to_be_focused()
