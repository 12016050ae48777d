"""Tests of the checks that `--force` overrides, and of those that it does not."""

from __future__ import annotations

import io
import json
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import pytest

from models.bundle import bundle
from models.bundle.bundle import FP32, Bundle
from models.bundle.prompts import NO_PROMPTS
from training.evaluation.bootstrap import Comparison
from training.evaluation.vectors import Encode, EvaluationError
from training.promotion.checks import Decision
from training.promotion.engines import Machine
from training.promotion.place import Place
from training.promotion.promote import Terms, promote
from training.promotion.yardsticks import Scored

Rewritten = Callable[..., Bundle]


class Given:
    """Yardstick with given scores for one encoder after another."""

    metric = "given"

    def __init__(self, *scores: float | Exception, sample: str = "a") -> None:
        self.sample = sample
        self.named: str | None = None
        self.limits: Mapping[str, float] = {"given": 0.2}
        self._scores = list(scores)
        self.behind: list[Mapping[str, str]] = []

    def judge(self, encode: Encode, prompts: Mapping[str, str] = NO_PROMPTS) -> Scored:
        self.behind.append(prompts)
        score = self._scores.pop(0)
        if isinstance(score, Exception):
            raise score
        return Scored(score, np.zeros(2))

    def compare(self, a: Scored, b: Scored) -> Comparison:
        return Comparison(a.score - b.score, a.score - b.score, a.score - b.score, 0.5)

    def scores(self, encode: Encode, prompts: Mapping[str, str] = NO_PROMPTS) -> Mapping[str, float]:
        return {"given": 80.0}


def decided(artifacts: Path, name: str, yardstick: Given, *, force: bool = False) -> Decision:
    place = Place(artifacts / "default")
    terms = Terms(force=force)
    return promote(artifacts / name, place, terms, lambda: yardstick, stream=io.StringIO(), machine=Machine())


@pytest.mark.parametrize("score", [np.nan, np.inf, EvaluationError("a vector holds NaN")])
@pytest.mark.parametrize("broken", [False, True])
def test_an_encoder_that_can_not_be_judged_is_not_forced(
    artifacts: Path, score: float | Exception, broken: bool
) -> None:
    shutil.copytree(artifacts / "tiny", artifacts / "default")
    if broken:
        (artifacts / "default" / "tokenizer.json").write_text("{}")
    decision = decided(artifacts, "other", Given(score, 80.0), force=True)
    assert decision.outcome == "refused"
    assert [check.name for check in decision.failed] == ["not worse"]
    assert not (artifacts / "default").is_symlink()


def test_each_is_judged_by_its_own_prompts(artifacts: Path, rewritten: Rewritten) -> None:
    shutil.copytree(artifacts / "tiny", artifacts / "default")
    for name in ("default", "other"):
        rewritten(artifacts / name, prompts={"query": f"{name}: "})
    yardstick = Given(80.0, 80.0)
    assert decided(artifacts, "other", yardstick).outcome == "promoted"
    assert yardstick.behind == [{"query": "other: "}, {"query": "default: "}]


def test_a_reduced_precision_that_fails_is_not_forced(
    artifacts: Path, rewritten: Rewritten, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copy(artifacts / "tiny" / bundle.ONNX, artifacts / "tiny" / "onnx/model_bf16.onnx")
    rewritten(artifacts / "tiny")
    scores = iter([80.0, 70.0])
    monkeypatch.setattr(Given, "scores", lambda *_: {"given": next(scores)})
    decision = decided(artifacts, "tiny", Given(80.0), force=True)
    assert (decision.outcome, [check.name for check in decision.failed]) == ("refused", ["engines"])

    def crashed(_: Given, encode: Encode, prompts: Mapping[str, str]) -> Mapping[str, float]:
        raise RuntimeError("no kernel")

    monkeypatch.setattr(Given, "scores", crashed)
    decision = decided(artifacts, "tiny", Given(80.0), force=True)
    assert decision.outcome == "refused" and decision.failed[0].says == "the check failed with an error: no kernel"
    assert list(bundle.load(artifacts / "tiny").graphs) == [FP32, "bf16"]


def test_an_incumbent_that_can_not_be_judged_needs_force(artifacts: Path) -> None:
    shutil.copytree(artifacts / "tiny", artifacts / "default")
    broken = EvaluationError("a vector holds NaN")
    decision = decided(artifacts, "other", Given(80.0, broken))
    assert decision.outcome == "refused" and "the served bundle can't be evaluated" in decision.failed[0].says
    assert decided(artifacts, "other", Given(80.0, broken), force=True).outcome == "promoted"
    assert bundle.load(artifacts / "default").manifest.name == "other"


def test_margins_do_not_add_up(artifacts: Path) -> None:
    assert decided(artifacts, "tiny", Given(81.0)).outcome == "promoted"
    assert decided(artifacts, "other", Given(80.6, 81.0)).outcome == "promoted"
    refused = decided(artifacts, "tiny", Given(80.2, 80.6))
    assert refused.outcome == "refused" and "below the best score that was served, 81.00" in refused.failed[0].says
    elsewhere = decided(artifacts, "tiny", Given(80.2, 80.6, sample="b"))
    assert elsewhere.outcome == "promoted", "scores on other data say nothing"
    assert decided(artifacts, "other", Given(80.4, 80.2)).outcome == "refused"
    assert decided(artifacts, "other", Given(80.4, 80.2), force=True).outcome == "promoted"


def test_what_a_rollback_took_back_sets_no_bar(artifacts: Path) -> None:
    place = Place(artifacts / "default")
    for outcome, copy, score in (("promoted", "a", 80.0), ("promoted", "b", 90.0), ("rolled back", "a", None)):
        numbers = {"metric": "given", "sample": "a", "candidate": score}
        place.ledger.append({"outcome": outcome, "copy": copy, "checks": [{"numbers": numbers}]})
    assert place.ledger.best("given", "a") == 80.0
    assert place.ledger.best("given", "b") is None
    place.ledger.append(
        {
            "outcome": "promoted",
            "copy": "c",
            "incumbent": {"copy": "a"},
            "checks": [{"numbers": {"metric": "given", "sample": "a", "candidate": None, "incumbent": 85.0}}, {}],
        }
    )
    assert place.ledger.best("given", "a") == 85.0, "what was served before the first promotion counts"


def test_an_encoder_that_no_server_would_start_is_refused(artifacts: Path, rewritten: Rewritten) -> None:
    config = artifacts / "other" / "config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | {"matryoshka_dimensions": [64]}))
    rewritten(artifacts / "other")
    decision = decided(artifacts, "other", Given(80.0), force=True)
    assert decision.outcome == "refused"
    assert "matryoshka_dimensions must be a list of widths from 1 to 32" in decision.failed[0].says
