"""Tests of attached evaluations: which are accepted, and that refused ones change nothing."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from models.bundle import bundle
from models.bundle.bundle import Bundle
from tests.training.promotion.test_promote import tree
from training.promotion.evaluations import missing_tasks, scored_tasks
from training.promotion.ledger import PromotionError

Command = Callable[..., int]


def evaluation(fingerprint: str | None) -> dict[str, Any]:
    task = {"spearman": {"all": 70.0, "mean": 70.0, "wmean": 70.0}, "pairs": 10}
    return {
        "format": 1,
        "subject": {"name": "tiny", "fingerprint": fingerprint},
        "sts": {"tasks": {"STS14": task}},
        "retrieval": {"scifact": {"ndcg10": 64.5}},
    }


def test_an_attached_evaluation_counts_and_travels_with_the_copy(artifacts: Path, command: Command) -> None:
    file = artifacts / "evaluation.json"
    file.write_text(json.dumps(evaluation(bundle.load(artifacts / "other").manifest.fingerprint)))
    required = ("--require", "STS12,STS14,scifact,retrieval")
    assert command("promote", "other", *required, "--report", str(file)) == 0
    report = json.loads((artifacts / "default" / "report.json").read_text())
    assert report["evaluations"] == [json.loads(file.read_text())]
    copy = (artifacts / "default").resolve()
    assert command("promote", "tiny", "--margin", "100") == 0
    assert command("promote", str(copy), *required, "--margin", "100") == 0, "a copy has its own report"
    assert (artifacts / "default").readlink().name == f"{copy.name}-2"


def test_a_copy_of_before_prompts_were_part_of_its_fingerprint_is_promoted_again(
    artifacts: Path, command: Command, rewritten: Callable[..., Bundle]
) -> None:
    """Promote an old copy again, whose report has a fingerprint without prompts."""
    rewritten(artifacts / "other", prompts={"query": "q: "})
    file = artifacts / "evaluation.json"
    file.write_text(json.dumps(evaluation(bundle.load(artifacts / "other").manifest.fingerprint)))
    assert command("promote", "other", "--report", str(file)) == 0
    copy = (artifacts / "default").resolve()
    of_old = evaluation("0" * 64)
    (copy / bundle.REPORT).write_text(json.dumps({"format": 1, "evaluations": [of_old]}))
    rewritten(copy)
    assert command("promote", "tiny", "--margin", "100") == 0
    assert command("promote", str(copy), "--margin", "100") == 0


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("{", "not JSON"),
        ("[" * 100_000, "not JSON"),
        ('{"format": 2}', "not an evaluation of format 1"),
        (json.dumps(evaluation("0" * 64)), "evaluates another encoder"),
        (json.dumps(evaluation(None)), "contains no fingerprint of the evaluated encoder"),
        (json.dumps(evaluation(None) | {"sts": {"tasks": 3}}), "evaluation"),
        (json.dumps(evaluation(None) | {"sts": {"tasks": {"STS14": {"pairs": 1}}}, "curve": [1]}), "evaluation"),
        (json.dumps(evaluation(None) | {"command": "\ud800"}), "nicode"),
        (json.dumps(evaluation(None) | {"sts": {"mean": float("nan")}}), "nan"),
        ('{"format": 1, "evaluations": {"format": 1}}', "evaluations is not a list"),
        ('{"format": 1, "evaluations": 3}', "evaluations is not a list"),
        ('{"format": 1, "evaluations": []}', "no evaluation"),
        ('{"format": 1, "evaluations": [3]}', "evaluation"),
        ('{"format": 1, "evaluations": [{"format": 1}]}', "subject"),
    ],
)
def test_a_report_that_can_not_be_attached(artifacts: Path, command: Command, content: str, says: str) -> None:
    file = artifacts / "evaluation.json"
    file.write_text(content)
    (artifacts / "tiny").rename(artifacts / "default")
    before = tree(artifacts)
    with pytest.raises(PromotionError, match=says) as refused:
        command("promote", "other", "--report", str(file))
    assert str(refused.value).startswith(f"{file}: ") and "\n" not in str(refused.value)
    assert tree(artifacts) == before and not (artifacts / "promotions.jsonl").exists()


def test_a_page_that_can_not_be_made_is_noticed_before_anything_is_measured(
    artifacts: Path, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(_: object) -> str:
        raise KeyError("edges")

    def measured(*_: object) -> None:
        raise AssertionError

    file = artifacts / "evaluation.json"
    file.write_text(json.dumps(evaluation(bundle.load(artifacts / "tiny").manifest.fingerprint)))
    monkeypatch.setattr("training.promotion.evaluations.render", broken)
    monkeypatch.setattr("training.cli.promote.choose_yardstick", measured)
    with pytest.raises(PromotionError, match=r"evaluation\.json: can't be shown \(KeyError: 'edges'\)"):
        command("promote", "tiny", "--report", str(file))


@pytest.mark.parametrize(
    "score", [None, {}, {"spearman": {}}, {"spearman": {"all": "70"}}, {"spearman": {"all": True}}]
)
def test_a_task_counts_only_with_a_number(artifacts: Path, score: object) -> None:
    found = bundle.load(artifacts / "other")
    tasks = scored_tasks(found, [{"sts": {"tasks": {"STS14": score}}, "transfer": {"tasks": {"MR": {"C": 1}}}}])
    assert {"STS12", "STS13"} <= tasks
    assert missing_tasks(["STS14", "MR", "retrieval"], tasks) == ["STS14", "MR", "retrieval"]


def test_each_family_has_its_own_score(artifacts: Path) -> None:
    judged = {
        "sts": {"tasks": {"STS14": {"spearman": {"all": 70}}}, "mean": 70},
        "transfer": {"tasks": {"MR": {"accuracy": 80.5}, "CR": {"ndcg10": 1.0}}, "mean": 80.5},
        "retrieval": {"scifact": {"ndcg10": 64.5, "through": "exact search"}, "nfcorpus": {"accuracy": 1.0}},
        "geometry": {"alignment": 0.2},
    }
    found = bundle.load(artifacts / "other")
    added = scored_tasks(found, [judged]) - scored_tasks(found, [])
    assert added == {"STS14", "STS mean", "MR", "scifact nDCG@10", "scifact", "retrieval"}


def test_with_labels_sts_is_required_unless_something_else_is_named(
    artifacts: Path, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[object] = []

    def decided(_: object, __: object, terms: Any, *___: object, **____: object) -> None:
        asked.append(tuple(terms.require))
        raise PromotionError("enough")

    monkeypatch.setattr("training.cli.promote.decide", decided)
    for given in (["--data", "x"], ["--data", "x", "--require", ""], ["--data", "x", "--require", "MR,sts"], []):
        with pytest.raises(PromotionError, match="enough"):
            command("promote", "tiny", *given)
    assert asked == [("sts",), (), ("MR", "sts"), ()]
