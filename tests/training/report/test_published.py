"""Tests of the papers' published results."""

from __future__ import annotations

import json
from statistics import fmean

import pytest

from training.evaluation.pairs import STS_TASKS
from training.evaluation.report import published
from training.evaluation.report.published import (
    BERT,
    BERT_LARGE,
    ROBERTA,
    ROBERTA_LARGE,
    SBERT_LARGE,
    STS,
    STS_ROWS,
    TRANSFER,
    TRANSFER_ROWS,
    Row,
    papers,
)

ROWS = [*STS_ROWS, *TRANSFER_ROWS]


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row.method}, {row.backbone}")
def test_a_mean_is_that_of_its_seven_tasks(row: Row) -> None:
    assert row.source
    if row.tasks is not None:
        assert len(row.tasks) == len(STS) == len(TRANSFER)
        assert fmean(row.tasks) == pytest.approx(row.mean, abs=0.02)


def test_no_row_stands_twice() -> None:
    for rows in (STS_ROWS, TRANSFER_ROWS):
        assert len({(row.backbone, row.method) for row in rows}) == len(rows)
    assert len({row.tasks for row in ROWS if row.tasks}) == sum(row.tasks is not None for row in ROWS)


def test_the_tasks_are_those_that_are_evaluated_in_their_order() -> None:
    assert tuple(STS_TASKS) == STS


@pytest.mark.parametrize(
    ("backbone", "family"),
    [
        ("bert-base-uncased", BERT),
        ("google-bert/bert-base-cased", BERT),
        ("FacebookAI/roberta-base", ROBERTA),
        ("bert-large-uncased", BERT_LARGE),
        ("bert-large-cased-whole-word-masking", BERT_LARGE),
        ("bert-largest", BERT),
        ("FacebookAI/roberta-large", ROBERTA_LARGE),
        ("distilroberta-base", None),
        ("minilm", None),
        ("", None),
    ],
)
def test_the_family_of_a_backbone(backbone: str, family: str | None) -> None:
    assert published.family(backbone) == family


@pytest.mark.parametrize(
    ("backbone", "name"),
    [
        ("google-bert/bert-base-uncased", BERT),
        ("FacebookAI/roberta-base", ROBERTA),
        ("bert-base-cased", None),
        ("bert-base-uncased-mine", None),
        ("google-bert/bert-large-uncased", BERT_LARGE),
        ("roberta-large", ROBERTA_LARGE),
        ("bert-large-cased", None),
        ("", None),
    ],
)
def test_rows_are_on_one_backbone_exactly(backbone: str, name: str | None) -> None:
    assert published.reported(backbone) == name


def test_rows_beside_backbones_are_of_their_families() -> None:
    def families(*backbones: str) -> set[str]:
        return {row.backbone for row in published.nearest_rows(STS_ROWS, backbones)}

    assert families("roberta-base", "minilm") == {ROBERTA}
    assert families("roberta-base", "bert-base-uncased") == {BERT, ROBERTA}
    assert families("roberta-large", "bert-large-cased") == {BERT_LARGE, ROBERTA_LARGE}
    assert {row.backbone for row in published.nearest_rows(TRANSFER_ROWS, ["roberta-large"])} == {ROBERTA_LARGE}
    assert {row.backbone for row in published.nearest_rows(TRANSFER_ROWS, ["bert-large-nli-cls-token"])} == {BERT}, (
        "there is none"
    )
    assert families("sentence-transformers/bert-large-nli-cls-token") == {SBERT_LARGE}
    assert families("minilm") == families() == {BERT}


def test_papers_are_json_that_says_what_they_do_not_report() -> None:
    found = json.loads(json.dumps(papers(["org/roberta-base", "minilm"])))["sts"]
    assert found["tasks"] == list(STS) and found["unreported"] == ["minilm"]
    assert {row["backbone"] for row in found["rows"]} == {ROBERTA}
    assert next(row["tasks"] for row in found["rows"] if row["method"] == "SimCSE")[0] == 70.16
    assert {row["backbone"] for row in papers([""])["transfer"]["rows"]} == {BERT}
