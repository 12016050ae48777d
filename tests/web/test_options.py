"""Tests of the options of the search view: examples, counts, order, groups, further words and explanations."""

from __future__ import annotations

import re
from urllib.parse import parse_qs, urlsplit

import pytest
from playwright.sync_api import Locator, Page, Route, expect

from tests.serving.conftest import Running
from tests.web.accessibility import violations
from tests.web.conftest import Visit

pytestmark = pytest.mark.slow
MILVUS = "corpora on Milvus support only whole, correctly spelled words: leave out this option"
ALL_OPTIONS = "?corpus=rooms&q=boiler&mode=hybrid&group=room&size=2&explain=on&diversity=0.5"


@pytest.fixture(scope="module", autouse=True)
def _corpora(server: Running) -> None:
    rooms = [
        {
            "id": f"d{i:02}",
            "text": f"boiler {i}",
            "metadata": {
                "room": "cellar" if i % 3 else "attic",
                "floor": ("low", "high")[i % 2],
                "year": 2000 + i,
                "day": f"2024-03-{i + 1:02}",
            },
        }
        for i in range(14)
    ]
    long = [{"id": "long", "text": "boiler " * 400}, {"id": "short", "text": "boiler"}]
    for corpus, path, documents in (("rooms", "documents", rooms), ("passages", "documents?chunk_tokens=16", long)):
        server.client.put(f"/corpora/{corpus}", json={}).raise_for_status()
        server.client.post(f"/corpora/{corpus}/{path}", json={"documents": documents}).raise_for_status()


@pytest.fixture
def page(server: Running, visit: Visit) -> Page:
    page = visit(server.address, "?corpus=rooms&q=boiler")
    expect(hits(page)).to_have_count(10)
    return page


def hits(page: Page) -> Locator:
    return page.locator("main").get_by_role("listitem").filter(has=page.get_by_role("heading", level=2))


def ids(page: Page) -> list[str]:
    return hits(page).get_by_role("heading", level=2).all_inner_texts()


def asked(page: Page) -> dict[str, list[str]]:
    return parse_qs(urlsplit(page.url).query)


def open_options(page: Page) -> Locator:
    page.get_by_text("Options", exact=True).click()
    return page.locator("details.options")


def documents_with(page: Page, value: str) -> Locator:
    """Return the count beside a value of the filters."""
    return page.locator("label.option").filter(has=page.get_by_text(value, exact=True)).locator(".muted")


def test_examples_are_chips_which_the_address_has_and_which_can_be_taken_away(page: Page) -> None:
    page.get_by_role("checkbox", name=re.compile("^attic")).check()
    expect(hits(page)).to_have_count(5)
    page.get_by_role("link", name="More like this: d03").click()
    expect(page.get_by_role("button", name="like d03", exact=True)).to_be_visible()
    expect(hits(page)).to_have_count(4)
    assert "d03" not in ids(page)
    page.get_by_role("link", name="More like this: d06").click()
    expect(hits(page)).to_have_count(3)
    page.get_by_role("link", name="Not like this: d09").click()
    expect(hits(page)).to_have_count(2)
    assert (asked(page)["like"], asked(page)["unlike"]) == (["d03", "d06"], ["d09"])
    assert "q" not in asked(page) and "filter" in asked(page)
    page.reload()
    expect(hits(page)).to_have_count(2)
    page.get_by_role("button", name="not like d09").click()
    expect(hits(page)).to_have_count(3)
    page.get_by_role("button", name="like d06", exact=True).click()
    expect(hits(page)).to_have_count(4)
    page.go_back()
    expect(hits(page)).to_have_count(3)


def test_negative_examples_go_with_the_last_positive_one(server: Running, visit: Visit) -> None:
    page = visit(server.address, "?corpus=rooms&like=d01&unlike=d02")
    expect(hits(page)).to_have_count(10)
    expect(page.get_by_role("radio", name="Words")).to_be_disabled()
    page.get_by_role("button", name="like d01", exact=True).click()
    expect(page.get_by_role("button", name=re.compile("like d"))).to_have_count(0)
    assert not {"like", "unlike"} & set(asked(page))


def test_an_example_has_the_title_of_its_document(server: Running, visit: Visit) -> None:
    documents = [{"text": text, "metadata": {"title": text.upper()}} for text in ("boiler", "chimney")]
    server.client.put("/corpora/titled", json={}).raise_for_status()
    first, _ = server.client.post("/corpora/titled/documents", json={"documents": documents}).json()["ids"]
    page = visit(server.address, f"?corpus=titled&like={first}")
    expect(page.get_by_role("button", name="like BOILER")).to_be_visible()


def test_a_query_replaces_the_examples(server: Running, visit: Visit) -> None:
    page = visit(server.address, "?corpus=rooms&like=d01&mode=lexical")
    expect(hits(page)).to_have_count(10)
    page.get_by_role("searchbox").fill("13")
    expect(hits(page)).to_have_count(1)
    expect(page.get_by_role("radio", name="Words")).to_be_enabled()
    assert "like" not in asked(page)


def test_an_example_that_is_gone_is_named(server: Running, visit: Visit) -> None:
    page = visit(server.address, "?corpus=rooms&like=nosuch", expected=["status of 4"])
    expect(page.get_by_role("alert")).to_contain_text("nosuch")
    page.get_by_role("button", name="like nosuch").click()
    expect(hits(page)).to_have_count(5)


@pytest.mark.parametrize("query", ["&q=boiler", "", "&q=boiler&mode=lexical"])
def test_counts_follow_the_filter(server: Running, visit: Visit, query: str) -> None:
    page = visit(server.address, f"?corpus=rooms{query}")
    expect(page.get_by_text("14 passages")).to_be_visible()
    for value, documents in {"attic": 5, "cellar": 9, "low": 7}.items():
        expect(documents_with(page, value)).to_have_text(str(documents))
    page.get_by_role("checkbox", name=re.compile("^attic")).check()
    expect(page.get_by_text(re.compile("^5 passages .*match the filters"))).to_be_visible()
    for value, documents in {"attic": 5, "cellar": 9, "low": 3, "high": 2}.items():
        expect(documents_with(page, value)).to_have_text(str(documents))
    page.get_by_role("checkbox", name=re.compile("^attic")).uncheck()
    expect(documents_with(page, "low")).to_have_text("7")


def test_counts_follow_the_words(server: Running, visit: Visit) -> None:
    page = visit(server.address, "?corpus=rooms&q=13&mode=lexical")
    expect(page.get_by_text("1 passage has words of the query.")).to_be_visible()
    expect(documents_with(page, "attic")).to_have_text("0")
    expect(documents_with(page, "high")).to_have_text("1")
    page.get_by_role("searchbox").fill("boiler")
    expect(documents_with(page, "attic")).to_have_text("5")


def test_typing_by_meaning_counts_nothing_again(page: Page) -> None:
    expect(page.get_by_text("14 passages are searched.")).to_be_visible()
    counted: list[str] = []
    page.on("request", lambda request: counted.append(request.post_data or ""))
    page.get_by_role("searchbox").fill("boiler 7")
    expect(hits(page).first).to_contain_text("boiler 7")
    assert not any("facets" in body for body in counted)


def test_hits_stay_where_counting_fails(server: Running, visit: Visit) -> None:
    def refuse(route: Route) -> None:
        if "facets" in (route.request.post_data or ""):
            route.fulfill(status=503, json={"error": "busy"})
        else:
            route.continue_()

    page = visit(server.address, "?corpus=rooms", expected=["status of 503"])
    page.route("**/search", refuse)
    page.get_by_role("searchbox").fill("boiler")
    page.get_by_role("checkbox", name=re.compile("^attic")).check()
    expect(hits(page)).to_have_count(5)
    expect(page.get_by_text("passages match")).to_have_count(0)
    expect(page.get_by_role("alert")).to_have_count(0)
    page.unroute("**/search")
    page.get_by_role("searchbox").fill("boiler 3")
    expect(page.get_by_text("5 passages match the filters")).to_be_visible()


def test_sorted_hits_have_pages_and_back_undoes_the_order(page: Page) -> None:
    open_options(page).get_by_role("combobox", name="Sort by").select_option("year:desc")
    expect(hits(page).first).to_contain_text("d13")
    assert ids(page) == [f"d{i:02}" for i in range(13, 3, -1)]
    page.get_by_role("button", name="More hits").click()
    expect(hits(page)).to_have_count(14)
    assert ids(page)[-1] == "d00"
    expect(page.get_by_role("button", name="More hits")).to_have_count(0)
    page.reload()
    expect(page.get_by_role("combobox", name="Sort by")).to_have_value("year:desc")
    expect(hits(page)).to_have_count(14)
    page.go_back()
    expect(page.get_by_role("button", name="More hits")).to_be_visible()
    assert "sort" not in asked(page)


def test_groups_of_a_field(page: Page) -> None:
    options = open_options(page)
    expect(options.get_by_label("Hits in a group")).to_be_hidden()
    options.get_by_role("combobox", name="Group by").select_option("room")
    expect(hits(page)).to_have_count(2)
    options.get_by_label("Hits in a group").fill("3")
    page.keyboard.press("Enter")
    expect(hits(page)).to_have_count(6)
    for room in ("attic", "cellar"):
        expect(page.get_by_text(f"room: {room}", exact=True)).to_be_visible()
    assert (asked(page)["group"], asked(page)["size"]) == (["room"], ["3"])


def test_a_document_of_many_passages_is_found_once(server: Running, visit: Visit) -> None:
    page = visit(server.address, "?corpus=passages&q=boiler")
    expect(page.get_by_role("button", name="More hits")).to_be_visible()
    open_options(page).get_by_role("combobox", name="Group by").select_option("$id")
    expect(page.get_by_text("2 hits")).to_be_visible()


def test_options_that_contradict_each_other_say_so(page: Page) -> None:
    options = open_options(page)
    diversity = options.get_by_role("slider", name="Diversity")
    expect(diversity).to_be_enabled()
    options.get_by_role("combobox", name="Sort by").select_option("year:asc")
    expect(diversity).to_be_disabled()
    expect(options.get_by_text("Not together with sorting.")).to_be_visible()
    expect(options.get_by_role("checkbox", name="Find words with typos")).to_be_disabled()
    page.get_by_role("radio", name="Words").check()
    expect(options.get_by_role("checkbox", name="Find words with typos")).to_be_enabled()


def test_the_slider_works_by_keys_and_is_in_the_address(page: Page) -> None:
    slider = open_options(page).get_by_role("slider", name="Diversity")
    slider.focus()
    with page.expect_request(lambda request: '"diversity":0.1' in (request.post_data or "")):
        page.keyboard.press("ArrowRight")
    assert asked(page)["diversity"] == ["0.1"]
    page.reload()
    expect(slider).to_have_value("0.1")


def test_words_are_found_while_they_are_typed_and_with_typos(page: Page) -> None:
    page.get_by_role("radio", name="Words").check()
    page.get_by_role("searchbox").fill("boil")
    expect(hits(page)).to_have_count(10)
    page.get_by_role("searchbox").fill("boil ")
    expect(page.get_by_text("No document has any of these words")).to_be_visible()
    page.get_by_role("searchbox").fill("biolers ")
    expect(page.get_by_text("No document has any of these words")).to_be_visible()
    page.get_by_role("searchbox").fill("bioler ")
    expect(hits(page)).to_have_count(10)
    open_options(page).get_by_role("checkbox", name="Find words with typos").uncheck()
    expect(page.get_by_text("No document has any of these words")).to_be_visible()
    assert asked(page)["typos"] == ["off"]
    page.reload()
    expect(page.get_by_role("checkbox", name="Find words with typos")).not_to_be_checked()


def test_what_a_corpus_does_not_have_is_switched_off_with_the_reason(server: Running, visit: Visit) -> None:
    """Use a corpus on Milvus, which has neither completions nor corrections."""

    def answer(route: Route) -> None:
        body = route.request.post_data_json or {}
        refused = next((name for name in ("prefix", "typos") if body.get(name)), None)
        if refused:
            route.fulfill(status=422, json={"error": f"{refused}: {MILVUS}", "error_type": "Validation"})
        else:
            route.continue_()

    page = visit(server.address, "?corpus=rooms", expected=["status of 422"])
    page.route("**/search", answer)
    page.get_by_role("radio", name="Words").check()
    page.get_by_role("searchbox").fill("boiler")
    expect(hits(page)).to_have_count(10)
    for name in ("Complete the last word", "Find words with typos"):
        expect(page.get_by_role("checkbox", name=name)).to_be_disabled()
    expect(page.get_by_text("Corpora on Milvus support only whole")).to_have_count(2)
    expect(page.get_by_role("alert")).to_have_count(0)


def test_reranking_is_asked_for_and_excludes_other_orders(page: Page) -> None:
    options = open_options(page)
    options.get_by_role("combobox", name="Sort by").select_option("year:desc")
    expect(hits(page).first).to_contain_text("d13")
    with page.expect_request(lambda request: '"rerank"' in (request.post_data or "")) as sent:
        options.get_by_role("checkbox", name=re.compile("^Rerank")).check()
    expect(options.get_by_role("combobox", name="Sort by")).to_be_disabled()
    expect(page.locator(".score").first).to_have_attribute("title", "Late interaction")
    expect(page.get_by_role("alert")).to_have_count(0)
    body = sent.value.post_data_json
    assert body and body["rerank"] == {"method": "late_interaction", "candidates": 50} and "sort" not in body


def test_ranks_and_scores_are_explained_on_demand(server: Running, visit: Visit) -> None:
    page = visit(server.address, "?corpus=rooms&q=boiler 7&mode=hybrid")
    expect(hits(page).first).to_contain_text("boiler 7")
    expect(page.get_by_role("region", name="Ranks and scores")).to_have_count(0)
    open_options(page).get_by_role("checkbox", name="Explain the ranks and scores").check()
    table = hits(page).first.get_by_role("region", name="Ranks and scores")
    expect(table.get_by_role("row", name=re.compile("^Meaning 1 .*cosine"))).to_be_visible()
    expect(table.get_by_role("row", name=re.compile("^Words 1 .*BM25"))).to_be_visible()
    assert asked(page)["explain"] == ["on"]


def test_dates_are_shown_as_dates_and_filtered_by_day(page: Page) -> None:
    expect(hits(page).first.get_by_text(re.compile(r"Mar \d+, 2024"))).to_be_visible()
    day = page.locator("details.facet").filter(has=page.locator("input[type=date]"))
    day.locator("summary").click()
    day.get_by_label("from").fill("2024-03-03")
    day.get_by_label("to").fill("2024-03-05")
    expect(hits(page)).to_have_count(3)
    expect(page.get_by_role("button", name="day ≥ Mar 3, 2024, ≤ Mar 5, 2024")).to_be_visible()
    page.reload()
    expect(day.get_by_label("to")).to_have_value("2024-03-05")


def test_a_date_is_searched_once_when_it_is_typed(page: Page) -> None:
    day = page.locator("details.facet").filter(has=page.locator("input[type=date]"))
    day.locator("summary").click()
    before = page.evaluate("() => history.length")
    day.get_by_label("from").focus()
    page.keyboard.type("03122024", delay=50)
    expect(hits(page)).to_have_count(3)
    assert page.evaluate("() => history.length") == before + 1


@pytest.mark.parametrize("query", [ALL_OPTIONS, "?corpus=rooms&like=d01&unlike=d02&sort=year:asc"])
def test_all_options_are_accessible_and_fit_a_narrow_window(server: Running, visit: Visit, query: str) -> None:
    page = visit(server.address, query, viewport={"width": 320, "height": 640})
    expect(hits(page).first).to_be_visible()
    expect(page.locator("details.options")).to_have_attribute("open", "")
    assert page.evaluate("() => document.documentElement.scrollWidth - innerWidth") <= 0
    assert violations(page) == []


def test_options_that_are_nonsense_are_those_by_default(server: Running, visit: Visit) -> None:
    page = visit(server.address, "?corpus=rooms&q=boiler&sort=year&size=x&diversity=9e9&rerank=1&mode=no")
    expect(hits(page)).to_have_count(10)
    expect(page.get_by_role("slider", name="Diversity")).to_have_value("1")
