"""Tests of the map: points can be seen, selected, and read without seeing them."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import Locator, Page, Route, expect

from tests.serving.conftest import Running
from tests.web.conftest import PATIENCE_MS, Visit
from tests.web.contents import TOPICS, fill, rows
from tests.web.views import open_view

pytestmark = pytest.mark.slow
POINTS = 400


@pytest.fixture(scope="module", autouse=True)
def _houses(server: Running) -> None:
    fill(server.client, "houses", rows(POINTS))


@pytest.fixture
def page(server: Running, visit: Visit) -> Page:
    page = visit(server.address, "?view=map&corpus=houses&field=topic")
    expect(canvas(page)).to_be_visible()
    return page


def canvas(page: Page) -> Locator:
    return page.get_by_role("application")


def chosen(page: Page) -> Locator:
    return page.get_by_role("region", name="Chosen passages")


def drag(page: Page, corners: list[tuple[float, float]]) -> None:
    """Drag over the canvas. The corners are shares of its size."""
    box = canvas(page).bounding_box()
    assert box
    places = [(box["x"] + x * box["width"], box["y"] + y * box["height"]) for x, y in corners]
    page.mouse.move(*places[0])
    page.mouse.down()
    for place in places[1:]:
        page.mouse.move(*place, steps=4)
    page.mouse.up()


def test_something_is_drawn_in_more_than_one_colour(page: Page) -> None:
    colours = canvas(page).evaluate(
        """(canvas) => {
          const { data } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
          const seen = new Map();
          for (let i = 0; i < data.length; i += 4)
            if (data[i + 3] > 200) {
              const colour = [data[i], data[i + 1], data[i + 2]].map((one) => one >> 4).join();
              seen.set(colour, (seen.get(colour) ?? 0) + 1);
            }
          return [...seen.values()].filter((pixels) => pixels > 50).length;
        }"""
    )
    assert colours >= 4, "a colour for each topic"


def test_the_legend_counts_and_chooses(page: Page) -> None:
    page.get_by_role("button", name="music").click()
    expect(chosen(page).get_by_role("heading")).to_have_text("100 passages")
    expect(chosen(page)).to_contain_text("guitar of house")
    chosen(page).get_by_role("button", name="Clear").click()
    expect(chosen(page)).to_be_hidden()


def test_numbers_of_the_legend_are_in_their_order(server: Running, visit: Visit) -> None:
    documents = [{"text": f"boiler {i}", "metadata": {"floor": n}} for i, n in enumerate([3, 3, 3, 10, 10, 2])]
    server.client.put("/corpora/floors", json={}).raise_for_status()
    server.client.post("/corpora/floors/documents", json={"documents": documents}).raise_for_status()
    page = visit(server.address, "?view=map&corpus=floors&field=floor")
    expect(page.locator("ul.legend li .clip")).to_have_text(["2", "3", "10"])


def test_a_field_that_no_document_has_is_told(server: Running, visit: Visit) -> None:
    page = visit(server.address, "?view=map&corpus=houses&field=topc")
    expect(page.get_by_text("no document has the field 'topc'. Did you mean 'topic'?")).to_be_visible()
    page.get_by_label("Colour by").select_option("topic")
    expect(page.get_by_text("no document has the field")).to_have_count(0)


def test_the_address_names_the_corpus_after_a_change(server: Running, visit: Visit) -> None:
    page = visit(server.address, "?view=map")
    corpus = page.get_by_role("combobox", name="Corpus").input_value()
    page.get_by_label("Colour by").select_option("year")
    expect(page).to_have_url(re.compile(f"corpus={corpus}"))


def test_jobs_that_could_not_be_listed_are_listed_again(server: Running, visit: Visit) -> None:
    page = visit(server.address, "?view=compare", expected=["status of 503"])
    page.route("**/jobs?*", lambda route: route.fulfill(status=503, json={"error": "not now"}))
    open_view(page, "Map")
    alert = page.get_by_role("alert").filter(has_text="Not now")
    expect(alert).to_be_visible()
    page.unroute("**/jobs?*")
    with page.expect_request("**/jobs?*"):
        alert.get_by_role("button", name="Try again").click()
    expect(alert).to_have_count(0)


def test_back_finds_what_was_chosen(page: Page) -> None:
    page.get_by_role("button", name="music").click()
    chosen(page).get_by_role("link").first.click()
    expect(page.get_by_role("heading", level=1, name="Search")).to_be_visible()
    page.go_back()
    expect(chosen(page).get_by_role("heading")).to_have_text("100 passages")


def test_a_lasso_lists_what_is_in_it(page: Page) -> None:
    page.get_by_role("radio", name="Lasso").check()
    drag(page, [(0.01, 0.01), (0.99, 0.01), (0.99, 0.99), (0.01, 0.99)])
    expect(chosen(page).get_by_role("heading")).to_have_text(f"{POINTS} passages")
    drag(page, [(0.01, 0.01), (0.5, 0.01), (0.5, 0.99), (0.01, 0.99)])
    expect(chosen(page).get_by_role("heading")).not_to_have_text(f"{POINTS} passages")
    chosen(page).get_by_role("link").first.click()
    expect(page.get_by_role("heading", level=1, name="Search")).to_be_visible()
    page.go_back()
    expect(canvas(page)).to_be_visible()


def test_a_map_is_computed_and_stays(server: Running, visit: Visit) -> None:
    fill(server.client, "placed", rows(200))
    page = visit(server.address, "?view=map&corpus=placed")
    expect(page.get_by_text("principal components")).to_be_visible()
    page.get_by_role("button", name="Compute a clearer map").click()
    expect(page.get_by_text("All 200 passages, as they were on")).to_be_visible(timeout=10 * PATIENCE_MS)
    expect(page.get_by_role("button", name=re.compile("Compute"))).to_have_count(0)
    server.client.delete("/corpora/placed/documents/r0").raise_for_status()
    page.reload()
    expect(page.get_by_text("1 removed")).to_be_visible()
    expect(page.get_by_role("button", name="Compute the map again")).to_be_visible()


def test_a_map_is_asked_for_once(server: Running, visit: Visit) -> None:
    fill(server.client, "once", rows(40))
    page = visit(server.address, "?view=map&corpus=once", expected=["status of 429"])
    held: list[Route] = []
    page.route(re.compile("/corpora/once/map$"), lambda route: held.append(route))  # noqa: PLW0108 - Playwright marks it
    compute = page.get_by_role("button", name="Compute a clearer map")
    with page.expect_request(re.compile("/corpora/once/map$")):
        compute.click()
    compute.click(force=True)
    held[0].fulfill(status=429, json={"error": "not now"})
    expect(page.get_by_role("alert")).to_contain_text("Not now")
    assert len(held) == 1
    with page.expect_request(re.compile("/corpora/once/map$")):
        compute.click()


def test_a_server_without_the_extra_says_how_to_get_a_clearer_map(server: Running, visit: Visit) -> None:
    fill(server.client, "plain", rows(40))
    answer = server.client.get("/corpora/plain/map").json() | {"hint": "pip install 'isosphere[map]'"}
    page = visit(server.address, "?view=corpora")
    page.route(re.compile("/corpora/plain/map"), lambda route: route.fulfill(json=answer))
    page.goto(f"{server.address}/?view=map&corpus=plain")
    expect(page.get_by_text("A clearer map: pip install 'isosphere[map]'")).to_be_visible()


def test_the_pointer_reads_a_point(page: Page) -> None:
    place = canvas(page).evaluate(
        """(canvas) => {
          const { data } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
          for (let i = 3; i < data.length; i += 4)
            if (data[i] > 200)
              return [((i / 4) | 0) % canvas.width, ((i / 4) | 0) / canvas.width].map((one) => one / devicePixelRatio);
        }"""
    )
    canvas(page).hover(position={"x": place[0], "y": place[1] + 2})
    expect(page.get_by_text("of house").last).to_be_visible()
    expect(page.get_by_text("topic: ").first).to_be_visible()


def test_the_keyboard_zooms_and_lists(page: Page) -> None:
    canvas(page).focus()
    page.keyboard.press("Enter")
    expect(chosen(page).get_by_role("heading")).to_have_text(f"{POINTS} passages")
    for _ in range(6):
        page.keyboard.press("+")
    page.keyboard.press("ArrowRight")
    page.keyboard.press("Enter")
    expect(chosen(page).get_by_role("heading")).not_to_have_text(f"{POINTS} passages")
    page.keyboard.press("Escape")
    expect(chosen(page)).to_be_hidden()
    page.keyboard.press("0")
    page.keyboard.press("Enter")
    expect(chosen(page).get_by_role("heading")).to_have_text(f"{POINTS} passages")


def test_areas_are_named_by_the_words_that_distinguish_them(server: Running, visit: Visit) -> None:
    page = visit(server.address)
    corners = {"heating": (0, 0), "garden": (9, 0), "music": (0, 9), "travel": (9, 9)}
    points = [
        {"id": row["id"], "text": row["text"], "value": None, "x": x + i % 7 / 10, "y": y + i % 11 / 10}
        for i, row in enumerate(rows(POINTS))
        for x, y in [corners[row["topic"]]]
    ]
    told = {"projection": "pca", "explained": [0.5, 0.5], "stored": None, "hint": None}
    answer = {"points": points, "passages": POINTS} | told
    page.route("**/houses/map?*", lambda route: route.fulfill(json=answer))
    page.goto(f"{server.address}/?view=map&corpus=houses&field=-")
    expect(canvas(page)).to_be_visible()
    legend = page.locator("ul.legend").get_by_role("listitem")
    names = legend.locator(".clip").all_inner_texts()
    assert 4 <= len(names) <= 8
    for topic, things in TOPICS.items():
        assert any(set(name.split(", ")) <= set(things.split()) for name in names), topic
    assert sum(int(many) for many in legend.locator(".muted").all_inner_texts()) == POINTS
    label = page.locator(".labels span").first
    expect(label).to_have_text(names[0].replace(",", ""))
    before = label.evaluate("(label) => label.getBoundingClientRect().x")
    canvas(page).focus()
    page.keyboard.press("ArrowLeft")
    page.wait_for_function("([label, x]) => label.getBoundingClientRect().x > x", arg=[label.element_handle(), before])
    legend.first.get_by_role("button").click()
    expect(chosen(page).get_by_role("heading")).to_have_text(re.compile("^[0-9]+ passages$"))


def test_the_table_says_what_the_map_shows(page: Page) -> None:
    page.get_by_text("As a table").click()
    table = page.get_by_role("region", name="Points").get_by_role("table")
    expect(table.get_by_role("row")).to_have_count(101)
    page.get_by_role("button", name="Next").click()
    expect(page.get_by_text("101 to 200 of 400")).to_be_visible()
    assert table.get_by_role("row").nth(1).get_by_role("cell").count() == 5


def test_five_thousand_points_are_one_element_and_a_drag_draws_once_a_frame(server: Running, visit: Visit) -> None:
    fill(server.client, "many", rows(5_000))
    page = visit(server.address, "?view=map&corpus=many&field=topic")
    expect(canvas(page)).to_be_visible()
    assert page.locator("main *").count() < 500
    page.evaluate(
        """() => {
          window.draws = 0;
          const { clearRect } = CanvasRenderingContext2D.prototype;
          CanvasRenderingContext2D.prototype.clearRect = function (...given) {
            window.draws++;
            clearRect.apply(this, given);
          };
        }"""
    )
    drawn = canvas(page).evaluate(
        """async (canvas) => {
          const { x, y } = canvas.getBoundingClientRect();
          const at = { pointerId: 1, bubbles: true, button: 0 };
          canvas.setPointerCapture = () => {};
          canvas.dispatchEvent(new PointerEvent("pointerdown", { ...at, clientX: x + 300, clientY: y + 200 }));
          for (let i = 0; i < 200; i++)
            canvas.dispatchEvent(new PointerEvent("pointermove", { ...at, clientX: x + 300 + i, clientY: y + 200 }));
          await new Promise((next) => requestAnimationFrame(() => requestAnimationFrame(next)));
          return window.draws;
        }"""
    )
    assert 1 <= drawn <= 2
