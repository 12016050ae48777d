"""Tests of the search view with mouse and keyboard."""

from __future__ import annotations

import json
import re
from urllib.parse import parse_qs, quote, urlsplit

import pytest
from playwright.sync_api import Locator, Page, Route, expect

from tests.serving.conftest import Running
from tests.web.conftest import Visit
from tests.web.contents import fill, rows
from tests.web.views import open_view

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module", autouse=True)
def _corpora(server: Running) -> None:
    fill(server.client, "houses", rows(400))
    fill(server.client, "few", rows(20))
    texts = {"one": "boiler", "long": "boiler " * 400}
    for corpus, text in texts.items():
        documents = [{"id": "a", "text": text}, {"id": "b", "text": "chimney"}][: 1 if corpus == "one" else 2]
        server.client.put(f"/corpora/{corpus}", json={}).raise_for_status()
        path = f"/corpora/{corpus}/documents?chunk_tokens=16" if corpus == "long" else f"/corpora/{corpus}/documents"
        server.client.post(path, json={"documents": documents}).raise_for_status()


@pytest.fixture
def page(server: Running, visit: Visit) -> Page:
    return visit(server.address, "?corpus=houses")


def hits(page: Page) -> Locator:
    """Return the hits, without their inner elements."""
    return page.locator("main").get_by_role("listitem").filter(has=page.get_by_role("heading", level=2))


def ask(page: Page, text: str) -> None:
    page.get_by_role("searchbox", name="Query").fill(text)


def asked(page: Page) -> dict[str, str]:
    return {name: values[0] for name, values in parse_qs(urlsplit(page.url).query).items()}


def test_before_anything_is_asked_some_documents_are_shown(page: Page) -> None:
    expect(hits(page)).to_have_count(5)


def test_the_demo_corpus_offers_queries_instead_of_documents(server: Running, visit: Visit) -> None:
    fill(server.client, "python-docs", rows(20))
    page = visit(server.address, "?corpus=python-docs")
    examples = page.get_by_role("button", name=re.compile("^[a-z0-9 ]+$"))
    expect(examples).to_have_count(3)
    expect(hits(page)).to_have_count(0)
    text = examples.first.inner_text()
    examples.first.click()
    expect(hits(page)).to_have_count(10)
    assert asked(page)["q"] == text


@pytest.mark.parametrize(("chance", "weak"), [(0.999, 10), (-1.0, 0)])
def test_hits_no_nearer_than_unrelated_sentences_are_called_weak(
    server: Running, visit: Visit, chance: float, weak: int
) -> None:
    page = visit(server.address, "?corpus=houses")
    page.route("**/similarity", lambda route: route.fulfill(json=[[chance] * 16] * 16))
    ask(page, "something else altogether")
    expect(hits(page)).to_have_count(10)
    expect(page.locator("li.weak")).to_have_count(weak)
    expect(page.get_by_text("All hits are weak")).to_have_count(min(1, weak))


def test_by_both_only_hits_without_the_words_are_weak(server: Running, visit: Visit) -> None:
    page = visit(server.address, "?corpus=few&mode=hybrid")
    page.route("**/similarity", lambda route: route.fulfill(json=[[0.999] * 16] * 16))
    ask(page, "boiler")
    expect(hits(page)).to_have_count(10)
    expect(page.locator("li.weak")).to_have_count(9)
    expect(page.locator("li.weak").filter(has_text="boiler")).to_have_count(0)
    ask(page, "something else altogether")
    expect(page.get_by_text("All hits are weak")).to_be_visible()


def test_one_text_of_several_documents_is_one_hit(server: Running, visit: Visit) -> None:
    documents = [{"text": "boiler", "metadata": {"name": name}} for name in ("first", "second", "third")]
    server.client.put("/corpora/alike", json={}).raise_for_status()
    server.client.post("/corpora/alike/documents", json={"documents": documents}).raise_for_status()
    page = visit(server.address, "?corpus=alike&q=boiler")
    expect(hits(page)).to_have_count(1)
    page.get_by_text("The same text in 2 other documents").click()
    for name in ("first", "second", "third"):  # Their ids are hashes.
        expect(hits(page).first).to_contain_text(name)


def test_words_that_were_asked_for_are_marked(page: Page) -> None:
    ask(page, "the radiator of house 21")
    expect(hits(page).first.locator("mark").get_by_text("radiator")).to_be_visible()


def test_search_by_words_and_by_both(page: Page) -> None:
    page.get_by_role("radio", name="Words").check()
    ask(page, "passport")
    expect(hits(page)).to_have_count(10)
    for text in hits(page).all_inner_texts():
        assert "passport" in text
    page.get_by_role("radio", name="Both").check()
    expect(hits(page).first).to_contain_text("meaning")
    assert asked(page)["mode"] == "hybrid"
    ask(page, "unheardofword")
    page.get_by_role("radio", name="Words").check()
    expect(page.get_by_text("No document has any of these words")).to_be_visible()


def test_filters_come_from_the_metadata_and_narrow_the_hits(page: Page) -> None:
    ask(page, "is painted")
    filters = page.get_by_role("complementary", name="Filters")
    filters.get_by_role("checkbox", name=re.compile("^garden")).check()
    expect(page.get_by_role("button", name="topic: garden")).to_be_visible()
    expect(hits(page).first).to_contain_text("garden")
    for text in hits(page).all_inner_texts():
        assert "garden" in text
    page.reload()
    expect(filters.get_by_role("checkbox", name=re.compile("^garden"))).to_be_checked()
    page.get_by_role("button", name="topic: garden").click()
    expect(filters.get_by_role("checkbox", name=re.compile("^garden"))).not_to_be_checked()


@pytest.mark.parametrize("value", ["false", "0", '""', "null"])
def test_a_condition_of_the_address_stays_when_another_is_chosen(server: Running, visit: Visit, value: str) -> None:
    condition = quote('{"open":' + value + "}")
    page = visit(server.address, f"?corpus=houses&q=painted&filter={condition}")
    expect(page.get_by_role("button", name=re.compile("^open"))).to_be_visible()
    page.get_by_role("checkbox", name=re.compile("^garden")).check()
    expect(page.get_by_role("button", name="topic: garden")).to_be_visible()
    expect(page.get_by_role("button", name=re.compile("^open"))).to_be_visible()


def test_numbers_to_choose_from_are_in_their_order(server: Running, visit: Visit) -> None:
    stars = [4, 4, 4, 1, 1, 3, 5, 2]
    documents = [{"id": str(i), "text": f"boiler {i}", "metadata": {"stars": n}} for i, n in enumerate(stars)]
    server.client.put("/corpora/rated", json={}).raise_for_status()
    server.client.post("/corpora/rated/documents", json={"documents": documents}).raise_for_status()
    page = visit(server.address, "?corpus=rated")
    expect(page.get_by_role("checkbox")).to_have_count(5)
    offered = page.get_by_role("complementary", name="Filters").locator("label.option .clip").all_inner_texts()
    assert offered == ["1", "2", "3", "4", "5"]


def test_documents_are_listed_by_a_filter_alone(server: Running, visit: Visit) -> None:
    page = visit(server.address)  # The page chooses the largest corpus.
    page.get_by_role("checkbox", name=re.compile("^garden")).check()
    expect(page.get_by_role("status").filter(has_text="100 documents fit the filters")).to_be_visible()
    assert asked(page)["corpus"] == "houses"
    expect(hits(page)).to_have_count(10)
    expect(hits(page).first).to_contain_text("garden")
    page.get_by_role("button", name="More documents").click()
    expect(hits(page)).to_have_count(20)
    expect(hits(page).nth(10).get_by_role("button")).to_be_focused()
    page.get_by_role("searchbox").fill("hedge")
    expect(page.get_by_role("status").filter(has_text="on the server")).to_be_visible()


@pytest.mark.parametrize("query", ["", "&q=boiler"])
def test_a_filter_that_can_match_nothing_says_why(server: Running, visit: Visit, query: str) -> None:
    page = visit(server.address, f"?corpus=houses&filter={quote(json.dumps({'topc': 'garden', 'year': 2003}))}{query}")
    expect(page.get_by_text("no document has the field 'topc'. Did you mean 'topic'?")).to_be_visible()
    expect(page.get_by_text("or with ?column_types=auto.")).to_be_visible()
    expect(page.get_by_role("heading", name="No document matches")).to_be_visible()
    page.get_by_role("button", name="Clear the filters").click()
    expect(page.get_by_text("no document has the field")).to_have_count(0)
    expect(hits(page).first).to_be_visible()


def test_chance_is_measured_once(server: Running, visit: Visit) -> None:
    measured: list[str] = []
    page = visit(server.address)
    page.on("request", lambda request: measured.append(request.url) if "/similarity" in request.url else None)
    for query in ("lawn", "choir"):
        ask(page, query)
        expect(page.get_by_role("status").filter(has_text="on the server")).to_be_visible()
        open_view(page, "Compare")
        page.wait_for_load_state("networkidle")
        open_view(page, "Search")
    assert len(measured) == 3, "twice by the view Compare"


def test_the_back_button_undoes_a_filter(page: Page) -> None:
    ask(page, "lawn")
    expect(hits(page).first).to_contain_text("lawn")
    box = page.get_by_role("checkbox", name=re.compile("^music"))
    box.check()
    expect(page.get_by_role("button", name="topic: music")).to_be_visible()
    page.go_back()
    expect(page.get_by_role("button", name="topic: music")).to_have_count(0)
    expect(page.get_by_role("searchbox")).to_have_value("lawn")


def test_the_keyboard_asks_moves_and_opens(page: Page) -> None:
    expect(hits(page).first).to_be_visible()  # the view focuses the query before it shows hits
    page.get_by_role("heading", level=1).focus()
    page.keyboard.press("/")
    expect(page.get_by_role("searchbox")).to_be_focused()
    page.keyboard.type("orchard")
    expect(hits(page).first).to_contain_text("orchard")
    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowDown")
    second = hits(page).nth(1).get_by_role("button").first
    expect(second).to_be_focused()
    page.keyboard.press("Enter")
    expect(second).to_have_attribute("aria-expanded", "true")
    expect(hits(page).nth(1).get_by_role("link", name="More like this")).to_be_visible()
    page.keyboard.press("Escape")
    expect(page.get_by_role("searchbox")).to_be_focused()


def test_more_like_this(page: Page) -> None:
    ask(page, "orchestra")
    expect(hits(page).first).to_contain_text("orchestra")
    hits(page).first.get_by_role("button").first.click()
    hits(page).first.get_by_role("link", name="More like this").click()
    expect(page.get_by_role("button", name=re.compile("^like r"))).to_be_visible()
    expect(hits(page).first).to_contain_text("orchestra")
    like = asked(page)["like"]
    expect(page.get_by_role("button", name=like, exact=True)).to_have_count(0)
    page.go_back()
    expect(page.get_by_role("searchbox")).to_have_value("orchestra")


@pytest.mark.parametrize("mode", ["dense", "hybrid", "lexical"])
def test_what_nothing_else_is_like_says_so(server: Running, visit: Visit, mode: str) -> None:
    page = visit(server.address, f"?corpus=one&like=a&mode={mode}")
    expect(page.get_by_role("heading", name="There is no other document")).to_be_visible()
    expect(hits(page)).to_have_count(0)


def test_a_long_document_is_like_others_than_its_own_passages(server: Running, visit: Visit) -> None:
    page = visit(server.address, "?corpus=long&like=a")
    expect(hits(page)).to_have_count(1)
    expect(hits(page)).to_contain_text("chimney")


def test_the_whole_document_is_what_is_copied_of_it(server: Running, visit: Visit) -> None:
    page = visit(server.address, "?corpus=long&q=boiler", permissions=["clipboard-read", "clipboard-write"])
    hits(page).first.get_by_role("button").first.click()
    hits(page).first.get_by_role("button", name="The whole document").click()
    expect(hits(page).first.get_by_role("button", name="The whole document")).to_have_count(0)
    hits(page).first.get_by_role("button", name="Copy the text").click()
    expect(page.get_by_text("Copied.")).to_be_visible()
    assert page.evaluate("() => navigator.clipboard.readText()") == "boiler " * 400


def test_a_corpus_that_was_emptied_meanwhile_lacks_no_words(server: Running, visit: Visit) -> None:
    fill(server.client, "emptied", rows(1))
    page = visit(server.address, "?corpus=emptied")
    expect(hits(page)).to_have_count(1)
    server.client.delete("/corpora/emptied/documents/r0").raise_for_status()
    ask(page, "boiler")
    expect(page.get_by_role("heading", name="This corpus is empty")).to_be_visible()


def test_more_hits_go_on_where_the_first_ended(page: Page) -> None:
    ask(page, "house")
    expect(hits(page)).to_have_count(10)
    page.get_by_role("button", name="More hits").click()
    expect(hits(page)).to_have_count(20)
    ids = hits(page).get_by_role("heading", level=2).all_inner_texts()
    assert len(set(ids)) == 20


@pytest.mark.parametrize("sort", [[], ["year:asc"]])
def test_more_hits_are_never_those_of_another_query(server: Running, visit: Visit, sort: list[str]) -> None:
    """Check this while the search for a new query is under way, with pages by cursor and by offset."""
    page = visit(server.address, f"?corpus=houses&q=guitar&sort={''.join(sort)}")
    expect(hits(page)).to_have_count(10)
    waiting: list[Route] = []
    page.route("**/houses/search", lambda route: waiting.append(route))  # noqa: PLW0108 - Playwright marks it
    with page.expect_request(lambda request: "orchestra" in (request.post_data or "")):
        ask(page, "orchestra")
    page.get_by_role("button", name="More hits").click(force=True)
    expect(page.get_by_text("Searching …")).to_be_visible()
    for route in waiting:
        route.continue_()
    page.unroute("**/houses/search")
    expect(page.get_by_role("status").filter(has_text="The first 10 hits")).to_be_visible()
    page.get_by_role("button", name="More hits").click()
    expect(hits(page)).to_have_count(20)
    body = {"query": "orchestra", "k": 20, **({"sort": sort} if sort else {})}
    found = server.client.post("/corpora/houses/search", json=body).json()["hits"]
    assert hits(page).get_by_role("heading", level=2).all_inner_texts() == [one["id"] for one in found]


def test_all_hits_come_back_if_they_are_too_long_to_be_highlighted_together(server: Running, visit: Visit) -> None:
    documents = [{"id": str(i), "text": f"boiler {i} " + "noise " * 10_000} for i in range(20)]
    server.client.put("/corpora/lengthy", json={}).raise_for_status()
    server.client.post("/corpora/lengthy/documents", json={"documents": documents}).raise_for_status()
    page = visit(server.address, "?corpus=lengthy&q=boiler", expected=["status of 413"])
    expect(hits(page).first.locator("mark").first).to_be_visible()
    page.get_by_role("button", name="More hits").click()
    expect(hits(page)).to_have_count(20)
    page.reload()
    expect(hits(page)).to_have_count(20)


def test_own_vectors_are_searched_by_words(server: Running, visit: Visit) -> None:
    documents = [{"id": str(i), "text": f"boiler {i}", "vector": [1, i]} for i in range(3)]
    server.client.put("/corpora/own", json={"vectors": "own", "dim": 2}).raise_for_status()
    server.client.post("/corpora/own/documents", json={"documents": documents}).raise_for_status()
    page = visit(server.address, "?corpus=own&q=boiler&mode=hybrid&rerank=on")
    expect(hits(page)).to_have_count(3)
    expect(page.get_by_role("radio")).to_have_count(1)
    hits(page).nth(1).get_by_role("link", name="More like this").click()
    expect(hits(page)).to_have_count(2)
    ask(page, "chimney")
    expect(page.get_by_role("heading", name="No document has any of these words")).to_be_visible()
    expect(page.get_by_role("button", name="Search by meaning")).to_have_count(0)


def test_an_alias_in_the_address(server: Running, visit: Visit) -> None:
    server.client.put("/aliases/homes", json={"corpus": "few"}).raise_for_status()
    page = visit(server.address, "?corpus=homes&q=boiler")
    expect(hits(page)).to_have_count(10)
    expect(page.get_by_role("combobox", name="Corpus")).to_have_value("few")


def test_equal_passages_are_no_other_documents(server: Running, visit: Visit) -> None:
    page = visit(server.address, "?corpus=long&q=boiler")
    expect(page.get_by_text(re.compile(r"The same text in \d other passages"))).to_be_visible()
    expect(page.get_by_text("other document")).to_have_count(0)


def test_back_finds_all_hits_those_that_were_open_and_the_place(page: Page) -> None:
    ask(page, "house")
    expect(hits(page)).to_have_count(10)
    page.get_by_role("button", name="More hits").click()
    expect(hits(page)).to_have_count(20)
    hits(page).nth(15).get_by_role("button").first.click()
    hits(page).nth(15).get_by_role("link", name="More like this").click()
    expect(page.get_by_role("button", name=re.compile("^like r"))).to_be_visible()
    assert page.evaluate("() => scrollY") == 0
    page.go_back()
    expect(hits(page)).to_have_count(20)
    expect(hits(page).nth(15).get_by_role("link", name="More like this")).to_be_in_viewport()
    page.reload()
    expect(hits(page).nth(15).get_by_role("link", name="More like this")).to_be_in_viewport()
    ask(page, "lawn")
    expect(hits(page).first).to_contain_text("lawn")
    expect(hits(page)).to_have_count(10)


def test_another_corpus(page: Page) -> None:
    page.get_by_role("combobox", name="Corpus").select_option("few")
    expect(page.get_by_role("combobox", name="Corpus")).to_have_value("few")
    assert asked(page)["corpus"] == "few"
    page.go_back()
    expect(page.get_by_role("combobox", name="Corpus")).to_have_value("houses")


@pytest.mark.parametrize("view", ["search", "map"])
def test_a_corpus_that_is_not_there_is_not_taken_for_another(server: Running, visit: Visit, view: str) -> None:
    page = visit(server.address, f"?view={view}&corpus=<b>nosuch")
    expect(page.get_by_role("heading", name="There is no corpus “<b>nosuch”")).to_be_visible()
    page.get_by_role("link", name="Search another").click()
    expect(hits(page)).to_have_count(5)


def test_the_code_does_what_the_page_did(server: Running, page: Page) -> None:
    ask(page, "who repaired the furnace")
    page.get_by_text("Try it from your own code").click()
    code = page.get_by_label("Code", exact=True)
    expect(code).to_contain_text("curl")
    expect(code).to_contain_text(f"{server.address}/corpora/houses/search")
    expect(code).to_contain_text("who repaired the furnace")
    for language, word in (("Python", "requests.post"), ("JavaScript", "await fetch")):
        page.get_by_role("radio", name=language).check()
        expect(code).to_contain_text(word)


def test_while_a_corpus_is_embedded_again_its_job_is_shown_and_then_the_hits(server: Running, visit: Visit) -> None:
    job = dict.fromkeys(("rate", "eta_s", "finished", "result"))
    job |= {"id": "j", "kind": "reembed", "corpus": "few", "errors": [], "error_count": 0, "created": 1, "started": 1}
    running = job | {"state": "running", "done": 7, "total": 20}
    ended = job | {"state": "succeeded", "done": 20, "total": 20, "finished": 2}
    followed: list[Route] = []
    page = visit(server.address, "?corpus=few", expected=("409", "502"))
    stale = {"error": "corpus 'few' was embedded by an encoder that this server does not serve"}
    refused: list[Route] = []

    def refuse(route: Route) -> None:
        if refused or '"query"' not in (route.request.post_data or ""):
            route.continue_()
        else:
            refused.append(route)
            route.fulfill(status=409, json=stale)

    page.route("**/corpora/few/search", refuse)
    page.route("**/jobs?*", lambda route: route.fulfill(json={"jobs": [running], "cursor": None}))
    page.route("**/jobs/j", lambda route: followed.append(route))  # noqa: PLW0108 - Playwright marks it
    with page.expect_request("**/jobs/j"):
        ask(page, "boiler")
    expect(page.get_by_text("7 of 20 passages")).to_be_visible()
    with page.expect_request("**/jobs/j"):
        followed.pop().fulfill(status=502)
    expect(page.get_by_text("The job continues when the server runs again.")).to_be_visible()
    assert page.get_by_role("progressbar").get_attribute("value") == "7"
    expect(page.get_by_role("alert")).to_have_count(0)
    followed.pop().fulfill(json=ended)
    expect(hits(page)).to_have_count(10)
