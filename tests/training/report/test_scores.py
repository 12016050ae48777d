"""Tests of the tables of scores, which have the papers' results beside the measured ones."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests.training.report.conftest import Page
from training.evaluation.report.page import render

Evaluate = Callable[..., dict[str, Any]]


def test_scores_are_said_beside_the_papers(evaluate: Evaluate) -> None:
    evaluation = evaluate()
    evaluation["sts"]["tasks"]["STS12"]["spearman"]["all"] = 71.234
    evaluation["sts"]["mean"] = 77.771
    text = Page(render([evaluation])).text
    for said in ("71.23", "77.77", "WhitenedCSE", "78.78", "75.11 ± 0.84", "83.00", "surprise.OnWN", "(81.40)", "0.25"):
        assert said in text


def test_relevant_documents_that_no_search_can_find_are_counted(evaluate: Evaluate) -> None:
    whole, lacking = evaluate(), evaluate(seed=1)
    lacking["retrieval"]["scifact"]["missing"] = 1234
    said = Page(render([whole, lacking])).text
    assert said.count("that the collection lacks") == 1 and "scifact: 1,234 judgements" in said.replace("\u202f", ",")


def test_rows_on_another_model_of_the_family_are_for_orientation(evaluate: Evaluate) -> None:
    evaluation = evaluate()
    evaluation["subject"]["backbone"] = "roberta-base-openai-detector"
    text = Page(render([evaluation])).text
    assert "don't report roberta-base-openai-detector: their rows are there for orientation" in text
    assert "RoBERTa-whitening" in text
    assert "BERT-flow" not in text


def test_a_backbone_may_be_reported_in_one_table_and_not_in_the_other(evaluate: Evaluate) -> None:
    evaluation = evaluate()
    evaluation["subject"]["backbone"] = "bert-large-uncased"
    text = Page(render([evaluation])).text
    assert "GS-InfoNCE" in text and "79.13" in text and "77.63" not in text, "STS: of BERT-large alone"
    assert "don't report" not in text and "88.67" in text and "86.64" not in text, "transfer: of BERT-large alone"
    evaluation["subject"]["backbone"] = "bert-large-nli-cls-token"
    text = Page(render([evaluation])).text
    assert "ImSimCSE" in text and "80.63" in text and "77.63" not in text, "STS: of SBERT-large alone"
    assert text.count("don't report bert-large-nli-cls-token") == 1 and "86.64" in text, "transfer: of BERT-base"


def test_papers_are_those_of_the_backbone(evaluate: Evaluate) -> None:
    evaluation = evaluate()
    assert "don't report minilm: their rows are there for orientation" in Page(render([evaluation])).text
    evaluation["subject"]["backbone"] = None
    assert "don't report an unnamed backbone" in Page(render([evaluation])).text
    evaluation["subject"]["backbone"] = "roberta-base"
    text = Page(render([evaluation])).text
    assert "RoBERTa-whitening" in text
    assert "BERT-flow" not in text
    assert "for orientation" not in text
