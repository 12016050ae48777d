"""Tests of the page around the views: addresses, prefix, headers, size."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import Page, Route, expect

from tests.serving.conftest import Running
from tests.web.conftest import Visit
from tests.web.contents import fill, rows
from tests.web.proxy import behind
from tests.web.views import VIEWS, open_view

pytestmark = pytest.mark.slow
FIRST_VIEW_BYTES = 120_000


@pytest.fixture(scope="module", autouse=True)
def _houses(server: Running) -> None:
    fill(server.client, "houses", rows(400))


def search(page: Page, text: str) -> None:
    page.get_by_role("searchbox").fill(text)


def test_back_forward_and_reload_show_what_was_there(server: Running, visit: Visit) -> None:
    page = visit(server.address, "?view=search&corpus=houses&q=violin")
    expect(page.get_by_role("searchbox")).to_have_value("violin")
    expect(page.get_by_text("violin of house").first).to_be_visible()
    open_view(page, "Compare")
    open_view(page, "Encoder")
    page.go_back()
    expect(page.get_by_role("heading", level=1, name="Compare")).to_be_visible()
    page.go_back()
    expect(page.get_by_role("searchbox")).to_have_value("violin")
    expect(page.get_by_text("violin of house").first).to_be_visible()
    page.go_forward()
    expect(page.get_by_role("heading", level=1, name="Compare")).to_be_visible()
    page.reload()
    expect(page.get_by_role("heading", level=1, name="Compare")).to_be_visible()


def test_the_link_of_a_search_shows_it_elsewhere(server: Running, visit: Visit) -> None:
    page = visit(server.address, "?corpus=houses")
    search(page, "orchestra")
    expect(page.get_by_text("orchestra of house").first).to_be_visible()
    expect(page).to_have_url(re.compile("q=orchestra"))
    elsewhere = visit(page.url.split("?")[0], "?" + page.url.split("?")[1])
    expect(elsewhere.get_by_text("orchestra of house").first).to_be_visible()


def test_an_address_of_no_view_shows_the_first(server: Running, visit: Visit) -> None:
    for query in ("?view=nonsense", "?view=__proto__", "?view=..%2Fapp", "?view=constructor"):
        expect(visit(server.address, query).get_by_role("heading", level=1, name="Search")).to_be_visible()


def test_a_corpus_that_is_gone_does_not_break_a_view(server: Running, visit: Visit) -> None:
    for view in VIEWS:
        page = visit(server.address, f"?view={view}&corpus=gone")
        expect(page.get_by_role("heading", level=1, name=view.capitalize())).to_be_visible()


def test_a_view_that_is_left_takes_no_words_with_it(server: Running, visit: Visit) -> None:
    """Check that the field is gone while the next view loads, so that no input is lost."""
    page = visit(server.address)
    expect(page.get_by_role("searchbox")).to_be_visible()
    held: list[Route] = []

    def hold(route: Route) -> None:
        held.append(route)

    page.route("**/info", hold)
    page.get_by_role("link", name="Search", exact=True).click()
    expect(page.get_by_role("searchbox")).to_have_count(0)
    expect(page.get_by_role("status")).to_contain_text("Loading")
    held.pop().continue_()
    search(page, "orchestra")
    expect(page.get_by_text("orchestra of house").first).to_be_visible()


@pytest.mark.parametrize("prefix", ["/tools/isosphere/", "/a%20b/"])
def test_it_works_under_a_prefix_behind_a_proxy(server: Running, visit: Visit, prefix: str) -> None:
    with behind(server.address, prefix) as address:
        page = visit(address)
        for view in VIEWS:
            open_view(page, view.capitalize())
            assert page.url.startswith(address)
            page.wait_for_load_state("networkidle")
        open_view(page, "Search")
        search(page, "greenhouse")
        expect(page.get_by_text("greenhouse of house").first).to_be_visible()
        page.reload()
        expect(page.get_by_text("greenhouse of house").first).to_be_visible()
        page.goto(f"{address}docs")
        expect(page.get_by_role("heading", name="Isosphere")).to_be_visible()
        tried = page.locator("#operations-status-alive_livez_get")
        tried.get_by_role("button").first.click()
        tried.get_by_role("button", name="Try it out").click()
        with page.expect_response("**/livez") as answered:
            tried.get_by_role("button", name="Execute").click()
        assert answered.value.url == f"{address}livez"
        assert answered.value.ok
        page.context.close()


def test_the_first_view_is_light_on_the_wire(server: Running, visit: Visit) -> None:
    page = visit(server.address)
    expect(page.get_by_role("searchbox")).to_be_visible()
    page.wait_for_load_state("networkidle")
    loaded = page.evaluate(
        "() => ['navigation', 'resource'].flatMap((kind) => performance.getEntriesByType(kind))"
        ".map((entry) => [entry.name, entry.transferSize])"
    )
    assert sum(size for _, size in loaded) < FIRST_VIEW_BYTES, loaded


@pytest.mark.parametrize("view", VIEWS)
def test_the_modules_of_a_view_are_told_ahead(server: Running, visit: Visit, view: str) -> None:
    """Compare with the modules that the browser requests without the preload list."""
    page = visit(server.address)
    told = re.findall("<(.*?)>; rel=modulepreload", server.client.get("/", params={"view": view}).headers["link"])

    def tell_nothing(route: Route) -> None:
        answer = route.fetch()
        route.fulfill(response=answer, headers={k: v for k, v in answer.headers.items() if k != "link"})

    page.route("**/?view=*", tell_nothing)
    page.goto(f"{server.address}/?view={view}")
    expect(page.get_by_role("heading", level=1, name=view.capitalize())).to_be_visible()
    loaded = page.evaluate("() => performance.getEntriesByType('resource').map(({ name }) => new URL(name).pathname)")
    assert sorted(told) == sorted(path.removeprefix("/") for path in loaded if path.endswith(".js"))


def test_no_script_runs_that_the_server_did_not_send(server: Running, visit: Visit) -> None:
    policy = server.client.get("/").headers["content-security-policy"]
    assert "unsafe" not in policy and "*" not in policy
    page = visit(server.address, expected=["Content Security Policy", "third party: https://cdn.example.com/"])
    page.evaluate(
        """() => {
          const script = document.createElement("script");
          script.textContent = "window.ran = 'inline'";
          document.body.append(script);
          const far = document.createElement("script");
          far.src = "https://cdn.example.com/x.js";
          document.body.append(far);
          const image = document.createElement("img");
          image.setAttribute("onerror", "window.ran = 'handler'");
          image.src = "https://cdn.example.com/x.png";
          document.body.append(image);
        }"""
    )
    page.wait_for_timeout(300)
    assert page.evaluate("() => window.ran ?? null") is None


def test_nobody_frames_it_or_guesses_its_types(server: Running) -> None:
    page = server.client.get("/").headers
    assert "frame-ancestors 'none'" in page["content-security-policy"]
    for path in ("/", "/web/app.js", "/web/style.css", "/web/views/search.js"):
        assert server.client.get(path).headers["x-content-type-options"] == "nosniff", path
    assert server.client.get("/web/app.js").headers["content-type"].startswith("text/javascript")


@pytest.mark.parametrize(
    "path",
    [
        "/web/../app.py",
        "/web/%2e%2e/app.py",
        "/web/views/../../app.py",
        "/web/__init__.py",
        "/web/views/%2e%2e%2fapp.js",
    ],
)
def test_no_other_file_is_served(server: Running, path: str) -> None:
    assert server.client.get(path).status_code == 404
