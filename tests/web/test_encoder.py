"""Tests of the encoder view: the report's content, and the server's current state."""

from __future__ import annotations

import json
import random
import re
from typing import Any

import pytest
from playwright.sync_api import Page, Route, expect

from tests.serving.conftest import Running
from tests.web.conftest import Visit
from tests.web.contents import EVIL

pytestmark = pytest.mark.slow
TASKS = ["STS12", "STSB"]
REPORT: dict[str, Any] = {
    "format": 1,
    "evaluations": [
        {
            "subject": {"name": EVIL},
            "sts": {"mean": 70.5, "tasks": {"STS12": {"spearman": {"all": 61}}, "STSB": {"spearman": {"all": 80}}}},
            "geometry": {"alignment": 0.2345, "uniformity": -3.5},
            "curve": [{"step": step, "stsb_dev_spearman": 60 + step / 100} for step in range(0, 1001, 250)],
            "best_step": 750,
        }
    ],
    "papers": {
        "sts": {
            "tasks": TASKS,
            "unreported": ["tiny"],
            "rows": [
                {"method": "worse", "backbone": "BERT", "mean": 60.0, "source": "a paper", "tasks": [50.0, 70.0]},
                {"method": "better", "backbone": "BERT", "mean": 80.25, "source": "another", "tasks": None},
            ],
        }
    },
}


@pytest.fixture
def page(server: Running, visit: Visit) -> Page:
    return visit(server.address, "?view=encoder")


def reported(page: Page) -> None:
    """Open the page of a server whose bundle has the report `REPORT`."""

    def info(route: Route) -> None:
        answer = route.fetch()
        route.fulfill(response=answer, json=answer.json() | {"report": True})

    page.route("**/info?*", info)
    page.route("**/report", lambda route: route.fulfill(body=json.dumps(REPORT), content_type="application/json"))
    page.reload()


def rows(page: Page, region: str) -> list[list[str]]:
    table = page.get_by_role("region", name=region, exact=True).get_by_role("table")
    return [row.locator("th, td").all_inner_texts() for row in table.get_by_role("row").all()]


def test_a_bundle_without_a_report_says_how_to_make_one(page: Page) -> None:
    expect(page.get_by_text("isosphere promote")).to_be_visible()


def test_scores_of_its_manifest_are_told_without_a_report(page: Page) -> None:
    def info(route: Route) -> None:
        answer = route.fetch()
        known = {"stsb_dev_spearman": 87.416, "STSB": 82.0, "self_retrieval_mrr10": 0.34281}
        route.fulfill(response=answer, json=answer.json() | {"scores": known})

    page.route("**/info?*", info)
    page.reload()
    expect(page.get_by_text("isosphere promote")).to_be_visible()
    judged = page.locator(".judged")
    assert judged.locator("dt").all_inner_texts() == ["STS-B dev", "STS-B", "Self-retrieval"]
    assert judged.locator("dd").all_inner_texts() == ["87.42", "82.00", "0.3428"]


def test_an_encoder_that_nobody_tuned_is_called_unchanged(page: Page) -> None:
    def info(route: Route) -> None:
        answer = route.fetch()
        route.fulfill(response=answer, json=answer.json() | {"training": None, "objective": None})

    page.route("**/info?*", info)
    page.reload()
    expect(page.get_by_role("region", name="fake").get_by_text("unchanged, as it was published")).to_be_visible()


def test_the_card_says_how_the_encoder_was_trained(page: Page) -> None:
    def info(route: Route) -> None:
        answer = route.fetch()
        corpus = {"name": "wiki1m.txt", "sentences": 1000000, "digest": "d"}
        known = {
            "about": EVIL,
            "objective": "simcse",
            "backbone": "minilm",
            "seed": 0,
            "corpus": corpus,
            "teacher": None,
        }
        route.fulfill(response=answer, json=answer.json() | {"training": known})

    page.route("**/info?*", info)
    page.reload()
    card = page.get_by_role("region", name="fake").locator(".facts > div")
    expect(card.first).to_be_visible()
    told = dict(one.split("\n", 1) for one in card.all_inner_texts())
    assert told["Training"] == EVIL
    assert (told["Trained on"], told["Sentences"], told["Seed"]) == ("wiki1m.txt", "1,000,000", "0")
    assert "Teacher" not in told


def test_scores_stand_among_those_of_the_papers(page: Page) -> None:
    reported(page)
    expect(page.get_by_role("heading", name="Semantic textual similarity")).to_be_visible()
    assert rows(page, "Scores: Semantic textual similarity") == [
        ["Spearman × 100", "Mean", "STS12", "STS-B"],
        ["better, BERT", "80.25", "–", "–"],
        [EVIL, "70.50", "61.00", "80.00"],
        ["worse, BERT", "60.00", "50.00", "70.00"],
    ]
    expect(page.get_by_text("The papers don't report tiny")).to_be_visible()
    assert rows(page, "Geometry")[1:] == [
        ["Alignment, of pairs that mean the same; better the lower", "0.234"],
        ["Uniformity, over the sphere; better the lower", "−3.500"],
    ]
    expect(page.get_by_role("img", name="STS-B dev over the steps of training: 67.50 at 750")).to_be_visible()


def test_what_is_sent_is_seen_in_the_charts(page: Page) -> None:
    page.get_by_role("button", name="Send 40 requests").click()
    expect(page.get_by_text("each, including the network.")).to_be_visible()
    expect(page.get_by_role("img", name="Latency, p50 and p99: ")).to_have_accessible_name(
        re.compile(r"\d+ (ms|s) · [\d.]+ (ms|s)$")
    )


def test_the_charts_show_as_long_as_they_say(server: Running, visit: Visit) -> None:
    """Measure every 30 seconds, as a slow server or a hidden window does, for the charts of two minutes."""
    page = visit(server.address, "?view=compare")
    expect(page.get_by_role("region", name="Similarity matrix")).to_be_visible()
    page.clock.install()
    page.get_by_role("link", name="Encoder", exact=True).click()
    waiting = page.get_by_role("img", name="Texts waiting")
    for _ in range(8):
        with page.expect_response("**/metrics"):
            page.clock.fast_forward(30_000)
    expect(waiting).to_be_visible()
    line = waiting.locator("path").get_attribute("d") or ""
    assert 0 < line.count("L") <= 4


def test_quantiles_are_those_of_the_requests_between_two_measurements(page: Page) -> None:
    """Compare with the quantiles of the requests themselves, within a quantile's bucket."""
    limits = [0.001 * 1.75**i for i in range(20)]
    drawn = random.Random(0)
    before = [drawn.lognormvariate(-5, 1) for _ in range(50)]
    between = sorted(drawn.lognormvariate(-3, 0.6) for _ in range(400))

    def buckets(times: list[float]) -> list[list[float]]:
        return [[limit, sum(time <= limit for time in times)] for limit in limits] + [[1e9, len(times)]]

    got = page.evaluate(
        """async ([before, after]) => {
          const { quantile } = await import("./web/live.js");
          return [...[0.5, 0.99].map((share) => quantile(share, before, after)), quantile(0.5, after, after)];
        }""",
        [buckets(before), buckets(before + between)],
    )
    assert got[2] is None, "nothing was asked meanwhile"
    for share, found in zip([0.5, 0.99], got, strict=False):
        true = between[round(share * len(between)) - 1]
        assert true / 1.75 <= found <= true * 1.75


def test_values_share_colours(page: Page) -> None:
    names, of = page.evaluate(
        """async () => {
          const { grouped } = await import("./web/groups.js");
          const told = (values) => grouped(values).groups.map(({ name }) => name);
          const placed = (values, some) => some.map(grouped(values).of);
          const numbers = [...Array(100).keys()];
          const words = ["a", "a", "b", null];
          const letters = [..."abcdefghijk"];
          return [
            [told(words), told(numbers), told(letters), told([true, false, true])],
            [placed(words, words), placed(numbers, [0, 19, 20, 99]), placed(letters, ["k"])],
          ];
        }"""
    )
    assert names == [
        ["a", "b", "none"],
        ["0 to 19", "20 to 39", "40 to 59", "60 to 79", "80 to 99"],
        [*"abcdefgh", "3 other values"],
        ["true", "false"],
    ]
    assert of == [[0, 0, 1, 2], [0, 0, 1, 4], [8]]
