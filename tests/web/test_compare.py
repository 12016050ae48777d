"""Tests of the compare view: numbers equal the API's, and pairs, two lists and CSV work."""

from __future__ import annotations

import csv
import io

import pytest
from playwright.sync_api import Page, expect

from tests.serving.conftest import Running
from tests.web.conftest import PHONE, Visit
from tests.web.contents import EVIL, TOPICS
from tests.web.views import open_view

pytestmark = pytest.mark.slow
SENTENCES = ["red green blue", "red green black", "a long night"]


@pytest.fixture
def page(server: Running, visit: Visit) -> Page:
    return visit(server.address, "?view=compare", permissions=["clipboard-read", "clipboard-write"])


def write(page: Page, sentences: list[str], of: str = "Sentences, one a line") -> None:
    page.get_by_label(of).fill("\n".join(sentences))


def shown(page: Page) -> list[list[str]]:
    """Return the numbers of the matrix, row by row."""
    table = page.get_by_role("region", name="Similarity matrix")
    return [row.get_by_role("cell").all_inner_texts() for row in table.locator("tbody").get_by_role("row").all()]


def test_the_matrix_is_that_of_the_api(server: Running, page: Page) -> None:
    write(page, SENTENCES)
    expect(page.get_by_role("rowheader")).to_have_count(3)
    body = {"inputs": {"sentences_a": SENTENCES, "sentences_b": SENTENCES}}
    matrix = server.client.post("/similarity", json=body).json()
    assert shown(page) == [[f"{cosine:.2f}".replace("-", "−") for cosine in row] for row in matrix]


def test_the_nearest_pair_is_the_first(page: Page) -> None:
    write(page, SENTENCES)
    first = page.get_by_role("region", name="Nearest pairs").get_by_role("listitem").first
    expect(first).to_contain_text("red green blue")
    expect(first).to_contain_text("red green black")


def test_the_ten_nearest_of_many_pairs_are_shown(server: Running, page: Page) -> None:
    many = [f"{one} {other}" for one in TOPICS for other in " ".join(TOPICS.values()).split()]
    write(page, many)
    expect(page.get_by_role("rowheader")).to_have_count(len(many))
    matrix = server.client.post("/similarity", json={"inputs": {"sentences_a": many, "sentences_b": many}}).json()
    best = sorted((matrix[i][j] for i in range(len(many)) for j in range(i)), reverse=True)[:10]
    nearest = page.get_by_role("region", name="Nearest pairs").get_by_role("listitem")
    assert nearest.locator(".cosine").all_inner_texts() == [f"{cosine:.2f}" for cosine in best]


def test_six_columns_fit_a_phone(server: Running, visit: Visit) -> None:
    page = visit(server.address, "?view=compare", viewport=PHONE, has_touch=True, is_mobile=True)
    table = page.get_by_role("region", name="Similarity matrix")
    expect(table.get_by_role("columnheader")).to_have_count(6)
    assert table.evaluate("(element) => element.scrollWidth <= element.clientWidth")
    assert "A man is playing the guitar" in table.get_by_role("rowheader").first.inner_text()
    expect(page.get_by_text("Tap a number")).to_be_visible()


def test_two_lists(page: Page) -> None:
    page.get_by_role("radio", name="Two lists").check()
    write(page, SENTENCES, "List A, one sentence a line")
    write(page, SENTENCES[:2], "List B, one sentence a line")
    expect(page.get_by_role("columnheader")).to_have_count(2)
    assert [len(row) for row in shown(page)] == [2, 2, 2]
    page.reload()
    expect(page.get_by_role("columnheader")).to_have_count(2)


def test_back_and_reload_find_what_no_link_can_carry(page: Page) -> None:
    page.get_by_role("radio", name="Two lists").check()
    write(page, [f"{'so ' * 100}long a sentence {i}" for i in range(30)], "List A, one sentence a line")
    write(page, SENTENCES[:2], "List B, one sentence a line")
    expect(page.get_by_text("Too much text for a link")).to_be_visible()
    expect(page.get_by_role("columnheader")).to_have_count(2)
    second = page.get_by_label("List B, one sentence a line")
    page.reload()
    expect(page.get_by_role("rowheader")).to_have_count(30)
    expect(second).to_have_value("\n".join(SENTENCES[:2]))
    open_view(page, "Encoder")
    page.go_back()
    expect(page.get_by_role("rowheader")).to_have_count(30)
    expect(second).to_have_value("\n".join(SENTENCES[:2]))


def test_the_csv_has_every_number_and_survives_quotes(page: Page) -> None:
    awkward = ['say "boo", twice', EVIL, "plain"]
    write(page, awkward)
    expect(page.get_by_role("rowheader").filter(has_text="plain")).to_be_visible()
    page.get_by_role("button", name="Copy as CSV").click()
    expect(page.get_by_text("Copied.")).to_be_visible()
    head, *lines = csv.reader(io.StringIO(page.evaluate("() => navigator.clipboard.readText()"), newline=""))
    assert head == ["", *awkward] and [line[0] for line in lines] == awkward
    assert [float(line[i + 1]) for i, line in enumerate(lines)] == pytest.approx([1, 1, 1], abs=1e-5)


def test_one_sentence_asks_for_another(page: Page) -> None:
    write(page, ["alone"])
    expect(page.get_by_text("Nothing to compare yet")).to_be_visible()


def test_a_hundred_sentences(page: Page) -> None:
    write(page, [f"sentence number {i}" for i in range(120)])
    expect(page.get_by_role("rowheader")).to_have_count(100)
    expect(page.get_by_text("The first 100 rows and columns are shown")).to_be_visible()
