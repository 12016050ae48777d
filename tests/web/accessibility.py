"""Checks of a page by axe-core."""

from __future__ import annotations

from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Page

WRONG = {"serious", "critical"}


def violations(page: Page) -> list[str]:
    """Return the serious violations that axe finds, with their elements."""
    found = Axe().run(page).response["violations"]
    return [
        f"{one['id']} ({one['impact']}): {node['html'][:200]} {node.get('failureSummary', '')}"
        for one in found
        if one["impact"] in WRONG
        for node in one["nodes"]
    ]
