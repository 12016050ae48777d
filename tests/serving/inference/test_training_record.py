"""Tests of the training record in /info and in the log, for any content of the manifest."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from models.bundle.bundle import Manifest
from serving.api.schemas.status import InfoAnswer
from serving.app import create_app
from serving.inference.engines import ENGINES
from serving.inference.training_record import summary, training
from tests.serving.engines import model

CORPUS = {"name": "wiki1m.txt", "sentences": 1000, "digest": "d1"}
NOTHING = {"about": None, "objective": None, "backbone": "minilm", "seed": None, "corpus": None, "teacher": None}


def manifest(run: dict[str, Any] | None, **facts: Any) -> Manifest:
    own = {"name": "mine", "backbone": "minilm", "run": run}
    return replace(ENGINES["fake"](Path()).manifest, **own | facts)


@pytest.mark.parametrize("under", ["", "config"])
def test_the_facts_stand_beside_the_configuration_or_in_it(under: str) -> None:
    facts = {"about": "minilm after\n a soup.", "seed": 0, "corpus": CORPUS, "recipe": {"file": "/srv/me/a.toml"}}
    told = training(manifest({under: facts} if under else facts, objective="simcse"))
    assert told == {
        "about": "minilm after a soup.",
        "objective": "simcse",
        "backbone": "minilm",
        "seed": 0,
        "corpus": CORPUS,
        "teacher": None,
    }


def test_a_run_is_told_without_its_paths() -> None:
    config = {"objective": "distillation", "seed": 3, "corpus": ["/srv/me/wiki1m.txt"], "teacher": "/srv/me/large"}
    run = {"config": config, "corpus": {"sentences": 1000, "digest": "d1", "blank": 0}, "curve": [{"step": 1}]}
    told = training(manifest(run))
    assert told == NOTHING | {"objective": "distillation", "seed": 3, "corpus": CORPUS, "teacher": "large"}
    named = manifest(run | {"teacher": {"name": "owner/large", "licence": "mit"}}, backbone="../../minilm")
    assert (told := training(named)) and (told["teacher"], told["backbone"]) == ("owner/large", "minilm")
    assert "/home" not in str(told)


def test_a_soup_has_the_corpus_that_all_in_it_have() -> None:
    one = {"share": 0.5, "run": {"corpus": CORPUS}}
    other = {"share": 0.5, "run": {"corpus": CORPUS | {"digest": "d2"}}}
    out = other | {"share": 0}
    recipe = {"about": "A soup of two."}
    assert training(manifest({"ingredients": [one, one, out], "recipe": recipe})) == NOTHING | {
        "about": "A soup of two.",
        "corpus": CORPUS,
    }
    assert training(manifest({"ingredients": [one, other]})) == NOTHING | {"about": "The average of 2 encoders"}


@pytest.mark.parametrize(
    "run",
    [
        {},
        {"about": ["x"], "recipe": "x", "seed": True, "corpus": None, "teacher": 3, "ingredients": {"share": 1}},
        {"about": " \n", "recipe": {"about": 1}, "seed": 10**400, "config": [], "ingredients": [None, {"share": 1}]},
    ],
)
def test_what_is_not_as_it_should_be_is_missing(run: dict[str, Any]) -> None:
    assert training(manifest(run)) == NOTHING


def test_nothing_is_said_of_an_encoder_without_a_record() -> None:
    assert training(manifest(None)) is None
    assert summary(manifest(None, scores={"onnx_parity": 1e-7})) == "mine: the untouched minilm"


def test_the_summary_is_one_line_with_the_means() -> None:
    scores = {"STSB": 82.0, "STS mean": 80.091, "scifact nDCG@10": 66.05, "onnx_parity": 1e-7}
    run = {"about": "minilm\nafter a \x1b[2Jsoup.", "seed": 0, "corpus": CORPUS, "teacher": {"name": "large"}}
    assert summary(manifest(run, scores=scores)) == (
        "mine: minilm after a [2Jsoup, taught by large, on wiki1m.txt, seed 0; STS mean 80.09, scifact nDCG@10 66.05"
    )
    assert summary(manifest({}, objective="dclr", scores={"STSB": 82.0})) == "mine: minilm by dclr; STSB 82"


def test_info_and_the_log_tell_it(
    make_service: Callable[..., Any],
    wait_until_ready: Callable[[TestClient], None],
    caplog: pytest.LogCaptureFixture,
) -> None:
    fake = ENGINES["fake"](Path())
    served = model(fake.load, run={"config": {"seed": 7, "corpus": []}}, objective="simcse", scores={"STS mean": 75.5})
    with caplog.at_level(logging.INFO), TestClient(create_app(make_service(served))) as client:
        wait_until_ready(client)
        info = client.get("/info").json()
    InfoAnswer.model_validate(info)
    assert info["training"]["seed"] == 7
    assert info["training"]["corpus"] == {"name": "python-docs", "sentences": None, "digest": None}
    assert "serving fake: hashed words by simcse, on python-docs, seed 7; STS mean 75.5 (" in caplog.text
