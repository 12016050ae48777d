"""Each view with content, for tests of all views."""

from __future__ import annotations

from playwright.sync_api import Locator, Page, expect

VIEWS = ("search", "corpora", "compare", "map", "encoder")
SETTLED_MS = 400
SENTENCES = (
    "A man plays the guitar.",
    "Somebody makes music.",
    "The central bank raised its rates.",
    "Interest on loans went up.",
    "Two dogs run through the snow.",
)


def open_view(page: Page, name: str) -> None:
    """Open a view by its link in the navigation."""
    page.get_by_role("navigation", name="Views").get_by_role("link", name=name, exact=True).click()
    expect(page.get_by_role("heading", level=1, name=name)).to_be_visible()


def corpus_card(page: Page, name: str) -> Locator:
    """Return the card of a corpus in the view "Corpora"."""
    return page.get_by_role("listitem").filter(has=page.get_by_role("heading", level=2, name=name, exact=True))


def shown(page: Page, view: str, query: str = "boiler needs a part") -> None:
    """Open a view with content, and wait until it does not change."""
    open_view(page, view.capitalize())
    if view == "search":
        page.get_by_role("searchbox").fill(query)
    if view == "compare":
        page.get_by_label("Sentences, one a line").fill("\n".join(SENTENCES))
    page.wait_for_load_state("networkidle")
    if view == "search":
        expect(page.get_by_role("status").filter(has_text="on the server")).to_be_visible()
    if view == "compare":
        expect(page.get_by_role("region", name="Similarity matrix")).to_be_visible()
    if view == "map":
        expect(page.get_by_role("application")).to_be_visible()
    page.wait_for_timeout(SETTLED_MS)
    expect(page.get_by_role("alert")).to_have_count(0)
