"""Tests of restoring snapshots from the server and from files."""

from __future__ import annotations

import pytest
from playwright.sync_api import FilePayload, Page, expect

from tests.serving.conftest import Running
from tests.web.conftest import Visit
from tests.web.contents import fill, rows
from tests.web.views import corpus_card

pytestmark = pytest.mark.slow


@pytest.fixture
def page(server: Running, visit: Visit) -> Page:
    return visit(server.address, "?view=corpora")


def test_a_snapshot_comes_back(server: Running, page: Page) -> None:
    fill(server.client, "dear", rows(5))
    page.reload()
    card = corpus_card(page, "dear")
    card.get_by_text("Index, snapshots, and more").click()
    card.get_by_role("button", name="Make a snapshot").click()
    expect(card.get_by_role("link", name="Download")).to_be_visible()
    with page.expect_download() as download:
        card.get_by_role("link", name="Download").click()
    assert download.value.suggested_filename.endswith(".tar.zst")
    assert download.value.path().read_bytes()[:4] == b"\x28\xb5\x2f\xfd"
    card.get_by_role("button", name="Restore …").click()
    page.get_by_role("dialog").get_by_role("button", name="Restore").click()
    expect(corpus_card(page, "dear-restored")).to_contain_text("Documents5")


@pytest.mark.parametrize(
    ("file", "name"),
    [
        ("notes.v2-20250131T120000Z-0a1b2c3d.tar.zst", "notes.v2"),
        ("notes.v2-20250131T120000Z-0a1b2c3d (1).tar.zst", "notes.v2"),
        ("notes.v2.tar.zst", "notes.v2"),
        ("My notes.zst", "My-notes"),
    ],
)
def test_a_snapshot_file_names_its_corpus(page: Page, file: str, name: str) -> None:
    restore(page, file)
    expect(page.get_by_role("dialog").get_by_label("Into the corpus")).to_have_value(name)


def test_a_corpus_is_replaced_only_after_its_name_was_shown(server: Running, page: Page) -> None:
    """Check this for an alias, for a corpus that another client made, and for one made while the dialog is open."""
    fill(server.client, "kept", rows(5))
    server.client.put("/aliases/called", json={"corpus": "kept"}).raise_for_status()
    page.route("**/restore", lambda _: None)  # The request never ends.
    dialog = page.get_by_role("dialog")
    restore(page, "called.tar.zst")
    expect(dialog.get_by_label("Into the corpus")).to_have_value("called-restored")
    dialog.get_by_label("Into the corpus").fill("called")
    expect(dialog.get_by_role("status")).to_have_text("Replaces kept, which holds 5 documents now.")
    dialog.get_by_label("Into the corpus").fill("soon")
    expect(dialog.get_by_role("status")).to_have_text("A new corpus.")
    fill(server.client, "soon", rows(7))
    dialog.get_by_role("button", name="Restore").click()
    expect(dialog.get_by_role("status")).to_have_text("Replaces soon, which holds 7 documents now.")
    with page.expect_request("**/corpora/soon/restore"):
        dialog.get_by_role("button", name="Restore").click()
    page.get_by_role("button", name="Cancel").click()


def restore(page: Page, file: str) -> None:
    """Choose a file of this name."""
    chosen: FilePayload = {"name": file, "mimeType": "application/zstd", "buffer": b"\x28\xb5\x2f\xfd"}
    page.get_by_label("Restore from a snapshot file").set_input_files(chosen)


def test_no_name_is_offered_that_is_taken(server: Running, page: Page) -> None:
    """Check that an existing corpus is replaced only if the user types its name."""
    names = ["taken", "taken-restored", "n" * 64]
    for name in names:
        fill(server.client, name, rows(5))
    page.reload()
    dialog = page.get_by_role("dialog")
    into = dialog.get_by_label("Into the corpus")
    restore(page, f"{'n' * 64}.tar.zst")
    expect(into).to_have_value("n" * 55 + "-restored")
    dialog.get_by_role("button", name="Cancel").click()
    page.route("**/restore", lambda _: None)  # The request never ends.
    restore(page, "taken.tar.zst")
    expect(into).to_have_value("taken-restored-2")
    expect(dialog.get_by_role("status")).to_have_text("A new corpus.")
    dialog.get_by_role("button", name="Restore").click()
    expect(page.get_by_role("listitem").filter(has_text="Sending")).to_be_visible()
    restore(page, "taken.tar.zst")
    expect(into).to_have_value("taken-restored-3")
    into.fill("taken")
    expect(dialog.get_by_role("status")).to_have_text("Replaces taken, which holds 5 documents now.")
    into.fill("taken/")
    expect(dialog.get_by_role("status")).to_contain_text("A name is letters")
    expect(dialog.get_by_role("button", name="Restore")).to_be_disabled()
    dialog.get_by_role("button", name="Cancel").click()
    page.get_by_role("button", name="Cancel").click()
