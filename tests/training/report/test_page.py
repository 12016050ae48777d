"""Tests of the report page: well formed, complete, escaped, and without values that were not measured."""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Callable
from typing import Any
from xml.etree import ElementTree

import pytest

from tests.training.report.conftest import Page
from training.evaluation.report.evaluated import ReportError
from training.evaluation.report.page import render

Evaluate = Callable[..., dict[str, Any]]

SECTIONS = ["judged", "sts", "transfer", "retrieval", "geometry", "curve", "speed", "reading"]
FIGURES = ["sts-means", "plane", "spectrum", "cosines-0", "nearest", "curve-stsb_dev_spearman", "curve-uniformity",
           "curve-alignment", "curve-effective_rank", "throughput"]  # fmt: skip


def test_all_sections_and_figures_are_there_with_all_their_data(evaluate: Evaluate) -> None:
    page = Page(render([evaluate()]))
    assert page.ids("section") == SECTIONS
    assert page.figures == FIGURES


@pytest.mark.parametrize(
    ("absent", "section"),
    [
        ("sts", "sts"),
        ("transfer", "transfer"),
        ("retrieval", "retrieval"),
        ("geometry", "geometry"),
        ("curve", "curve"),
    ],
)
@pytest.mark.parametrize("emptied", [True, False])
def test_a_section_without_data_is_left_out(evaluate: Evaluate, absent: str, section: str, emptied: bool) -> None:
    evaluation = evaluate()
    if emptied:
        evaluation[absent] = [] if absent == "curve" else {}
    else:
        del evaluation[absent]
    assert Page(render([evaluation])).ids("section") == [name for name in SECTIONS if name != section]


def test_speed_is_there_with_times_or_with_precisions(evaluate: Evaluate) -> None:
    for absent in ("speed", "precisions"):
        evaluation = evaluate()
        del evaluation[absent]
        assert "speed" in Page(render([evaluation])).ids("section")
    del evaluation["speed"]
    assert "speed" not in Page(render([evaluation])).ids("section")


def test_the_least_evaluation_makes_a_page() -> None:
    page = Page(render([{"format": 1, "subject": {"source": "somewhere"}}]))
    assert page.ids("section") == ["judged", "reading"]
    assert "somewhere" in page.text


def test_the_page_says_what_its_numbers_were_measured_on(evaluate: Evaluate) -> None:
    evaluation = evaluate()
    text = Page(render([evaluation])).text
    assert "STS-B dev, first of each pair" in text
    assert "on unit vectors" in text
    del evaluation["geometry"]["sentences_of"]
    assert "Sentences measured" not in Page(render([evaluation])).text


def test_the_cosine_says_to_which_precision_and_every_graph_its_size(evaluate: Evaluate) -> None:
    evaluation = evaluate()
    for found in evaluation["precisions"].values():
        found["cosine_to"] = "bf16"
    html = render([evaluation])
    assert "<td>0.97120</td><td>bf16</td>" in html
    assert "22.7 MB" in html


def test_a_name_is_text_wherever_it_stands(evaluate: Evaluate) -> None:
    evil = "<script>alert(1)</script>\"'&"
    evaluation = evaluate(evil)
    evaluation["subject"]["backbone"] = evaluation["subject"]["engine"] = evaluation["command"] = evil
    evaluation["retrieval"] = {evil: {"ndcg10": 1.0, "through": evil}}
    evaluation["precisions"] = {evil: {"texts_per_second": 1}}
    html = render([evaluation, evaluate(evil)])
    page = Page(html)
    assert "<script" not in html
    assert {tag for tag, _ in page.elements}.isdisjoint({"script", "img", "link", "iframe"})
    assert page.text.count(evil) >= 10
    assert not any(name.startswith("on") for _, attributes in page.elements for name in attributes)


def test_nothing_is_loaded_from_elsewhere(evaluate: Evaluate) -> None:
    html = render([evaluate(), evaluate("other", seed=1)])
    page = Page(html)
    assert not {"src", "href", "srcset"} & {name for _, attributes in page.elements for name in attributes}
    assert "url(" not in html
    assert "@import" not in html
    assert set(re.findall(r"https?://[^\s\"<]+", html)) == {"http://www.w3.org/2000/svg"}


def test_drawings_are_xml_and_say_what_they_show(evaluate: Evaluate) -> None:
    html = render([evaluate(), evaluate("other", seed=1, width=64)])
    drawings = [ElementTree.fromstring(drawing) for drawing in re.findall(r"<svg.*?</svg>", html, re.DOTALL)]
    assert len(drawings) == len(FIGURES) + 1
    space = "{http://www.w3.org/2000/svg}"
    for drawing in drawings:
        title, description = drawing[0], drawing[1]
        assert (title.tag, description.tag) == (f"{space}title", f"{space}desc")
        assert drawing.get("aria-labelledby") == f"{title.get('id')} {description.get('id')}"
        assert title.text
        assert description.text


def test_everything_drawn_lies_in_its_drawing(evaluate: Evaluate) -> None:
    html = render([evaluate(), evaluate("other", seed=1, width=64), evaluate("third", seed=2)])
    for drawing in re.findall(r"<svg.*?</svg>", html, re.DOTALL):
        root = ElementTree.fromstring(drawing)
        _, _, width, height = map(float, root.get("viewBox", "").split())
        for each in root.iter():
            for names, most in ((("x", "x1", "x2", "cx"), width), (("y", "y1", "y2", "cy"), height)):
                assert all(0 <= float(each.get(name, "0")) <= most for name in names)
            points = [tuple(map(float, point.split(","))) for point in each.get("points", "").split()]
            assert all(0 <= x <= width and 0 <= y <= height for x, y in points)


def test_ids_are_unique_and_headers_have_a_scope(evaluate: Evaluate) -> None:
    page = Page(render([evaluate(), evaluate("other", seed=1), evaluate("third", seed=2)]))
    assert set(Counter(page.ids()).values()) == {1}
    headers = [attributes for tag, attributes in page.elements if tag == "th"]
    assert headers
    assert {attributes.get("scope") for attributes in headers} == {"row", "col"}


def test_equal_names_are_told_apart(evaluate: Evaluate) -> None:
    text = Page(render([evaluate("same"), evaluate("same", seed=1)])).text
    assert "same #1" in text
    assert "same #2" in text


def test_every_row_has_a_cell_for_every_column(evaluate: Evaluate) -> None:
    other = {"format": 1, "subject": {"name": "bare"}, "sts": {"tasks": {"STSB": {"spearman": {"all": 70.0}}}}}
    html = render([evaluate(), other])
    for table in re.findall(r"<table.*?</table>", html, re.DOTALL):
        rows = re.findall(r"<tr.*?</tr>", table, re.DOTALL)
        assert len({len(re.findall(r"<t[hd]\b", row)) for row in rows}) == 1


def test_the_chosen_step_is_marked_where_it_is_known(evaluate: Evaluate) -> None:
    evaluation = evaluate()
    html = render([evaluation])
    assert html.count('class="chosen mark-0"') == html.count(">step 1250<") == 4
    assert "1250 of minilm, 1125 of other" in render([evaluation, evaluate("other", seed=1)])
    del evaluation["best_step"]
    assert 'class="chosen' not in render([evaluation])


def test_steps_at_which_nothing_was_measured_are_left_out(evaluate: Evaluate) -> None:
    evaluation = evaluate()
    for point in evaluation["curve"]:
        del point["alignment"]
        point["uniformity"] = None
    assert {"curve-alignment", "curve-uniformity"}.isdisjoint(Page(render([evaluation])).figures)


def test_a_spectrum_that_ends_in_zeros_is_drawn_as_far_as_it_goes(evaluate: Evaluate) -> None:
    evaluation = evaluate()
    evaluation["geometry"]["spectrum_centred"]["values"] = [0.5, 0.3, 0.2, 1e-12, 0.0]
    (curve,) = re.findall(
        r'aria-labelledby="spectrum-title.*?<polyline points="([^"]*)"', render([evaluation]), re.DOTALL
    )
    assert len(curve.split()) == 3


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"format": 2}, "evaluation 2: has format 2"),
        ({"subject": None}, "evaluation 2: no subject"),
        ({"sts": [1]}, "evaluation 2 sts is not an object"),
        ({"curve": {}}, "evaluation 2 curve is not a list"),
        ({"curve": [None]}, r"evaluation 2 curve\[0\] is not an object"),
        ({"retrieval": {"scifact": None}}, "evaluation 2 retrieval scifact is not an object"),
        ({"subject": {"bytes": "90 MB"}}, "evaluation 2 subject bytes is not a number"),
        ({"transfer": {"tasks": {"MR": {"folds": [{"c": 1}]}}}}, r"MR folds\[0\] test is not a number"),
        ({"geometry": {"cosine_histogram": {"edges": [0]}}}, "evaluation 2 geometry cosine_histogram share is not a"),
        ({"geometry": {"top4_cosine": {"many": 0.5}}}, "evaluation 2 geometry top4_cosine many is not a size"),
        ({"geometry": {"spectrum_centred": {"values": [0.2, 0.8]}}}, "must be shares of their sum in descending order"),
        ({"speed": {"seconds": 10**400}}, "evaluation 2 speed seconds is 1000"),
        ({"subject": {"name": "\ud800"}}, "evaluation 2 subject name is not Unicode"),
        ({"speed": {"seconds": math.nan}}, "evaluation 2 speed seconds is nan"),
        ({"curve": [{"step": 0, "loss": math.inf}]}, r"evaluation 2 curve\[0\] loss is inf"),
        ({"geometry": {"cosine_histogram": {"edges": [0, 1], "share": [0.5, 0.5]}}}, "one more edge"),
    ],
)
def test_what_cannot_be_shown_is_named(evaluate: Evaluate, change: dict[str, Any], message: str) -> None:
    with pytest.raises(ReportError, match=message):
        render([evaluate(), evaluate() | change])


def test_no_evaluation_is_no_report() -> None:
    with pytest.raises(ReportError, match="no evaluation"):
        render([])


def test_the_page_is_that_of_the_evaluation_read_from_a_file(evaluate: Evaluate) -> None:
    evaluation = evaluate()
    assert render([json.loads(json.dumps(evaluation))]) == render([evaluation])
