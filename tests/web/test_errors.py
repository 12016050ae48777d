"""Tests of the page's messages when the server refuses a request or does not answer."""

from __future__ import annotations

import json
import re
import signal
from pathlib import Path
from typing import Any, Literal

import pytest
from playwright.sync_api import Page, Route, expect

from serving.operations.keys import digest
from tests.serving.conftest import Launcher, Running
from tests.web.conftest import Visit
from tests.web.contents import fill, rows
from tests.web.views import corpus_card, open_view

pytestmark = pytest.mark.slow
SECRET = "iso_only-for-this-test"
REFUSED = "status of 401 "
TOO_SOON = r"status of 429 .*/corpora/houses/(search|fields)\)$"
TOO_LARGE = r"status of 413 .*/corpora/large/documents\?"
NOT_NOW = r"status of 503 .*/corpora/houses"
DAMAGED = r"status of 503 .*/corpora/(houses|sheds)\b"
GONE = "net::ERR_(CONNECTION_(REFUSED|RESET)|EMPTY_RESPONSE|SOCKET_NOT_CONNECTED)"
"""Errors that Chromium itself writes to the console for failed requests. No other errors are allowed."""
MB = 1_000_000


@pytest.fixture
def with_key(launch_once: Launcher, tmp_path: Path) -> Any:
    """Return a function that starts a server with one key and these limits."""

    def start(**limits: Any) -> Running:
        file = tmp_path / "keys.json"
        key = {"name": "page", "sha256": digest(SECRET), "scopes": ["read", "write"], **limits}
        file.write_text(json.dumps({"format": 1, "keys": [key]}))
        server = launch_once("--api-keys-file", str(file), "--data", str(tmp_path / "data"))
        server.client.headers["authorization"] = f"Bearer {SECRET}"
        return server

    return start


def test_the_key_is_asked_for_and_kept_for_the_tab_alone(with_key: Any, visit: Visit) -> None:
    server = with_key()
    fill(server.client, "houses", rows(40))
    page = visit(server.address, "?q=guitar", expected=[REFUSED])
    dialog = page.get_by_role("dialog", name="API key")
    dialog.get_by_label("Key", exact=True).fill("iso_wrong")
    page.keyboard.press("Enter")
    expect(dialog.get_by_text("does not know this key")).to_be_visible()
    dialog.get_by_label("Key", exact=True).fill(f"{SECRET}…")  # No header can contain this key.
    page.keyboard.press("Enter")
    expect(dialog).to_be_visible()
    dialog.get_by_label("Key", exact=True).fill(SECRET)
    dialog.get_by_role("button", name="Use this key").click()
    expect(page.get_by_text("guitar of house").first).to_be_visible()
    footer = page.get_by_role("contentinfo").get_by_role("link")
    assert {page.request.get(link.evaluate("(link) => link.href")).status for link in footer.all()} == {200}
    page.reload()
    expect(page.get_by_text("guitar of house").first).to_be_visible()
    kept = page.evaluate("() => [Object.values(sessionStorage), Object.values(localStorage), document.cookie]")
    assert kept == [[SECRET], [], ""] and SECRET not in page.url
    expect(visit(server.address, expected=[REFUSED]).get_by_role("dialog", name="API key")).to_be_visible()


def test_without_a_key_it_says_what_is_missing(with_key: Any, visit: Visit) -> None:
    page = visit(with_key().address, expected=[REFUSED])
    page.get_by_role("dialog", name="API key").get_by_role("button", name="Cancel").click()
    expect(page.get_by_role("alert")).to_contain_text("key")
    page.get_by_role("button", name="API key").click()
    page.get_by_role("dialog", name="API key").get_by_label("Key", exact=True).fill(SECRET)
    page.keyboard.press("Enter")
    expect(page.get_by_text("There is no corpus yet")).to_be_visible()


def test_a_download_with_a_key_continues_in_another_view(with_key: Any, visit: Visit) -> None:
    server = with_key()
    fill(server.client, "houses", rows(5))
    job = server.client.post("/corpora/houses/snapshots").json()["id"]
    assert '"succeeded"' in server.client.get(f"/jobs/{job}/events").text
    page = visit(server.address, "?view=corpora&corpus=houses", expected=[REFUSED])
    page.get_by_role("dialog", name="API key").get_by_label("Key", exact=True).fill(SECRET)
    page.keyboard.press("Enter")
    waiting: list[Route] = []
    page.route("**/snapshots/*", lambda route: waiting.append(route))  # noqa: PLW0108 - Playwright marks it
    page.get_by_role("link", name="Download").click()
    page.get_by_role("link", name="Downloading …").click()
    open_view(page, "Search")
    expect(page.get_by_role("searchbox")).to_be_visible()
    (route,) = waiting
    with page.expect_download() as download:
        route.continue_()
    assert download.value.path().read_bytes()[:4] == b"\x28\xb5\x2f\xfd"


def test_who_asks_too_much_is_told_when_to_come_back(with_key: Any, visit: Visit) -> None:
    server = with_key(tokens_per_second=0.01)
    server.client.put("/corpora/houses", json={}).raise_for_status()
    fill(server.client, "houses", rows(1))
    page = visit(server.address, expected=[REFUSED, TOO_SOON])
    page.get_by_role("dialog", name="API key").get_by_label("Key", exact=True).fill(SECRET)
    page.keyboard.press("Enter")
    page.get_by_role("searchbox").fill("boiler")
    alert = page.get_by_role("alert").last  # The filters may be refused, too.
    expect(alert).to_contain_text("Try again in")
    expect(alert.get_by_role("button", name="Try again")).to_be_visible()


def test_a_late_refusal_of_the_old_key_does_not_ask_for_another(with_key: Any, visit: Visit) -> None:
    server = with_key()
    fill(server.client, "houses", rows(5))
    page = visit(server.address, "?view=compare", expected=[REFUSED])
    dialog = page.get_by_role("dialog", name="API key")
    dialog.get_by_label("Key", exact=True).fill(SECRET)
    page.keyboard.press("Enter")
    expect(page.get_by_role("region", name="Similarity matrix")).to_be_visible()
    page.evaluate("() => sessionStorage.setItem('isosphere-key', 'iso_old')")
    valid = {"authorization": f"Bearer {SECRET}"}
    page.route(re.compile("/(info|v1/models)"), lambda route: route.continue_(headers=route.request.headers | valid))
    held: list[Route] = []

    def hold(route: Route) -> None:
        if route.request.headers["authorization"] in valid.values():
            route.continue_()
        else:
            held.append(route)

    page.route("**/jobs?*", hold)
    page.get_by_role("link", name="Corpora", exact=True).click()
    dialog.get_by_label("Key", exact=True).fill(SECRET)
    page.keyboard.press("Enter")
    expect(dialog).to_have_count(0)
    held.pop().continue_()
    expect(corpus_card(page, "houses")).to_be_visible()
    expect(dialog).to_have_count(0)


def test_an_answer_of_a_proxy_is_not_taken_for_the_servers(server: Running, visit: Visit) -> None:
    page = visit(server.address, "?view=compare")
    expect(page.get_by_role("region", name="Similarity matrix")).to_be_visible()
    page.route("**/info", lambda route: route.fulfill(content_type="text/html", body="<html>Log in"))
    page.get_by_role("link", name="Corpora", exact=True).click()
    expect(page.get_by_role("alert")).to_contain_text("log in")
    page.unroute("**/info")
    page.get_by_role("button", name="Try again").click()
    expect(page.get_by_role("heading", level=1, name="Corpora")).to_be_visible()


@pytest.mark.parametrize(("role", "name"), [("button", "Try again"), ("link", "Map")])
def test_another_view_of_a_server_that_is_gone_says_so(
    server: Running, visit: Visit, role: Literal["button", "link"], name: str
) -> None:
    page = visit(server.address, "?view=compare", expected=["ERR_CONNECTION_REFUSED"])
    expect(page.get_by_role("region", name="Similarity matrix")).to_be_visible()
    page.route("**/*", lambda route: route.abort("connectionrefused"))
    page.get_by_role("link", name="Map", exact=True).click()
    expect(page.get_by_role("alert")).to_contain_text("The connection to the server was lost")
    page.unroute("**/*")
    page.get_by_role(role, name=name, exact=True).click()
    expect(page.get_by_role("heading", level=1, name="Map")).to_be_visible()


def test_a_server_that_failed_to_load_is_not_waited_for(server: Running, visit: Visit) -> None:
    page = visit(server.address, "?view=compare", expected=["status of 503"])
    expect(page.get_by_role("region", name="Similarity matrix")).to_be_visible()
    info = server.client.get("/info").json() | {"state": "loading"}
    page.route("**/info", lambda route: route.fulfill(json=info))
    failed = {"error": "failed: loading failed", "error_type": "Unhealthy", "state": "failed"}
    page.route("**/readyz", lambda route: route.fulfill(status=503, json=failed))
    page.get_by_role("link", name="Map", exact=True).click()
    expect(page.get_by_role("alert")).to_contain_text("loading failed")
    expect(page.get_by_role("button", name="Try again")).to_be_visible()


def send(page: Page, path: Path) -> None:
    """Upload a file into the corpus of its name."""
    page.get_by_label("Choose a file").set_input_files(path)
    page.get_by_role("button", name="Upload").click()


def test_a_file_that_is_too_large_says_how_large_it_may_be(launch_once: Launcher, visit: Visit, tmp_path: Path) -> None:
    server = launch_once("--max-upload-bytes", "100000", "--data", str(tmp_path / "data"))
    (tmp_path / "large.txt").write_text("The boiler makes a noise.\n" * 400_000)
    page = visit(server.address, "?view=corpora", expected=[TOO_LARGE])
    send(page, tmp_path / "large.txt")
    expect(page.get_by_role("alert")).to_contain_text("at most 100000")
    expect(page.get_by_role("listitem").filter(has_text="empty")).to_contain_text("large")


def test_a_server_killed_in_mid_upload(launch_once: Launcher, visit: Visit, tmp_path: Path) -> None:
    """Check the page's message, and that a repeated upload to the next server is complete and done once."""
    data = ("--data", str(tmp_path / "data"))
    server = launch_once(*data)
    (tmp_path / "houses.txt").write_text("".join(f"{i} The boiler makes a noise. {'x' * 4000}\n" for i in range(2_000)))
    page = visit(server.address, "?view=corpora", expected=[GONE, "dialog: "])
    slowly(page, bytes_a_second=2 * MB)
    page.get_by_label("Choose a file").set_input_files(tmp_path / "houses.txt")
    page.get_by_role("button", name="Upload").click()
    expect(page.get_by_text("left")).to_be_visible()
    server.process.send_signal(signal.SIGKILL)
    server.process.wait()
    expect(page.get_by_role("alert").first).to_contain_text("The connection to the server was lost")
    restart(launch_once, server, *data)
    assert server.client.get("/corpora/houses").json()["documents"] == 0
    slowly(page, bytes_a_second=-1)
    page.get_by_role("button", name="Try again").first.click()
    expect(page.get_by_text("succeeded")).to_be_visible(timeout=60_000)
    assert server.client.get("/corpora/houses").json()["documents"] == 2_000


def restart(launch: Launcher, ended: Running, *options: str) -> None:
    """Start another process at the address of the one that ended."""
    port = ended.address.rpartition(":")[2]
    another = launch(*options, "--port", port, ready=False)
    Running(another.process, ended.client, another.log).wait_until_ready()


def slowly(page: Page, bytes_a_second: int) -> None:
    """Limit the page's upload speed. -1 removes the limit."""
    page.context.new_cdp_session(page).send(
        "Network.emulateNetworkConditions",
        {"offline": False, "latency": 0, "downloadThroughput": -1, "uploadThroughput": bytes_a_second},
    )


def test_a_server_that_went_away_says_so_and_comes_back(launch_once: Launcher, visit: Visit, tmp_path: Path) -> None:
    data = ("--data", str(tmp_path / "data"))
    server = launch_once(*data)
    fill(server.client, "houses", rows(40))
    page = visit(server.address, expected=[GONE])
    expect(page.get_by_role("status")).to_contain_text("Some of its documents")
    expect(page.get_by_role("checkbox", name="garden")).to_be_visible()  # The page sends no further requests.
    server.process.kill()
    server.process.wait()
    page.get_by_role("searchbox").fill("boiler")
    expect(page.get_by_role("alert")).to_contain_text("The connection to the server was lost")
    restart(launch_once, server, *data)
    page.get_by_role("button", name="Try again").click()
    expect(page.get_by_role("main")).to_contain_text("The boiler of house 0 was repaired.")


def test_a_damaged_corpus_says_so_and_what_to_do(launch_once: Launcher, visit: Visit, tmp_path: Path) -> None:
    data = ("--data", str(tmp_path / "data"))
    server = launch_once(*data)
    fill(server.client, "houses", rows(5))
    fill(server.client, "sheds", rows(5))
    job = server.client.post("/corpora/houses/snapshots").json()["id"]
    assert '"succeeded"' in server.client.get(f"/jobs/{job}/events").text
    server.kill()
    for name in ("houses", "sheds"):
        (tmp_path / "data" / "corpora" / f"{name}.sqlite").write_bytes(b"")
    server = launch_once(*data)
    page = visit(server.address, "?view=corpora&corpus=houses", expected=[DAMAGED])
    card = page.get_by_role("listitem").filter(has=page.get_by_role("heading", level=2, name="houses"))
    expect(card.get_by_role("status").first).to_have_text("damaged")
    expect(card).to_contain_text("houses.sqlite: contains no corpus")
    expect(card).to_contain_text("restore a snapshot over it or delete it")
    card.get_by_role("button", name="Restore …").click()
    page.get_by_role("dialog").get_by_label("Into the corpus").fill("houses")
    expect(page.get_by_role("dialog").get_by_role("status")).to_have_text("Replaces houses, which is damaged.")
    page.get_by_role("dialog").get_by_role("button", name="Restore").click()
    expect(card).to_contain_text("Documents5")
    expect(card).not_to_contain_text("damaged")
    card = page.get_by_role("listitem").filter(has=page.get_by_role("heading", level=2, name="sheds"))
    card.get_by_role("button", name="Delete …").first.click()
    expect(page.get_by_role("dialog")).to_contain_text("A damaged file is kept")
    page.get_by_role("dialog").get_by_role("textbox").fill("sheds")
    page.get_by_role("dialog").get_by_role("button", name="Delete it").click()
    expect(card).to_have_count(0)


def test_a_damaged_corpus_is_no_empty_one_where_it_is_chosen(
    launch_once: Launcher, visit: Visit, tmp_path: Path
) -> None:
    (tmp_path / "data" / "corpora").mkdir(parents=True)
    (tmp_path / "data" / "corpora" / "houses.sqlite").touch()
    page = visit(launch_once("--data", str(tmp_path / "data")).address, "?view=search", expected=[DAMAGED])
    expect(page.get_by_role("combobox", name="Corpus")).to_contain_text("houses (damaged)")
    expect(page.get_by_role("alert").first).to_contain_text("restore a snapshot over it or delete it")


def test_what_failed_is_seen_and_tried_again(launch_once: Launcher, visit: Visit, tmp_path: Path) -> None:
    server = launch_once("--data", str(tmp_path / "data"))
    for name in ("a", "houses"):
        fill(server.client, name, rows(5))
    page = visit(
        server.address, "?view=corpora&corpus=houses", expected=[NOT_NOW], viewport={"width": 800, "height": 400}
    )
    card = page.get_by_role("listitem").filter(has=page.get_by_role("heading", level=2, name="houses"))
    refuse_once(page, "**/houses/snapshots", "POST")
    card.get_by_role("button", name="Make a snapshot").click()
    alert = page.get_by_role("alert").filter(has_text="Not now")
    expect(alert).to_be_in_viewport()
    alert.get_by_role("button", name="Try again").click()
    expect(card.get_by_role("link", name="Download")).to_be_visible()
    expect(alert).to_have_count(0)
    refuse_once(page, "**/corpora/houses", "DELETE")
    card.get_by_role("button", name="Delete …").last.click()
    page.get_by_role("dialog").get_by_role("textbox").fill("houses")
    page.get_by_role("dialog").get_by_role("button", name="Delete it").click()
    alert.get_by_role("button", name="Try again").click()
    expect(card).to_have_count(0)


def refuse_once(page: Page, path: str, method: str) -> None:
    """Answer the next request of this method and path with 503."""

    refused: list[Route] = []

    def refuse(route: Route) -> None:
        if refused or route.request.method != method:
            route.fallback()
        else:
            refused.append(route)
            route.fulfill(status=503, json={"error": "not now"})

    page.route(path, refuse)
