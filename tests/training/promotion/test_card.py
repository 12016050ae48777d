"""Tests of the served bundle's card: it has the scores of the report for the hub, and repeats everything else."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from huggingface_hub import ModelCard

from models.bundle import bundle
from models.bundle.bundle import CARD
from tests.training.promotion.conftest import Command
from training.checkpoints.publish import STS_MEAN
from training.evaluation import sts
from training.evaluation.labelled import TRANSFER_TASKS
from training.evaluation.pairs import STS_TASKS


def evaluation(fingerprint: str, offset: float) -> dict[str, Any]:
    """Return an evaluation with a different score for each task of the suite."""
    accuracies = {name: {"accuracy": 80 + offset + i} for i, name in enumerate(TRANSFER_TASKS)}
    spearman = {
        name: {"spearman": dict.fromkeys(("all", "mean", "wmean"), 60 + offset + i), "pairs": 10}
        for i, name in enumerate(STS_TASKS)
    }
    return {
        "format": 1,
        "subject": {"name": "other", "fingerprint": fingerprint},
        "sts": {"tasks": spearman, "mean": 63 + offset},
        "transfer": {"tasks": accuracies, "mean": 83 + offset},
        "retrieval": {"scifact": {"ndcg10": 64.5 + offset}, "zoo": {"ndcg10": 31.0 + offset}},
    }


def model_index(folder: Path) -> dict[tuple[str, str], float]:
    """Return the scores of a card by data and split, as the hub's client reads them."""
    card: Any = ModelCard((folder / CARD).read_text())
    return {(one.dataset_name, one.dataset_split): one.metric_value for one in card.data.eval_results or []}


def test_the_scores_of_the_report_are_in_the_card(artifacts: Path, command: Command, tmp_path: Path) -> None:
    source = bundle.load(artifacts / "other")
    files = [tmp_path / "first.json", tmp_path / "second.json"]
    for offset, file in enumerate(files):
        file.write_text(json.dumps(evaluation(source.manifest.fingerprint, offset / 4)))
    assert command("promote", "other", "--require", "sts,transfer,scifact", "--report", *map(str, files)) == 0
    made = bundle.load(artifacts / "default")
    assert (made.manifest.scores or {}) == {
        **(source.manifest.scores or {}),
        **{name: 60.0 + i for i, name in enumerate(STS_TASKS)},
        **{name: 80.0 + i for i, name in enumerate(TRANSFER_TASKS)},
        STS_MEAN: 63.0,
        "scifact nDCG@10": 64.5,
        "zoo nDCG@10": 31.0,
    }, "of several evaluations the first counts"
    found = model_index(made.folder)
    assert len(found) == 7 + 1 + 7 + 2
    expected = {"STS12": 60.0, "SciFact (BEIR)": 64.5, "zoo": 31.0, "Mean of the seven STS tasks": 63.0}
    for data, score in expected.items():
        assert score in [value for (name, _), value in found.items() if name.startswith(data)]
    before, after = ((each.folder / CARD).read_text() for each in (source, made))
    assert before.partition("## Training")[2] == after.partition("## Training")[2]


def test_the_score_it_was_compared_by_is_known_of_it_from_then_on(
    artifacts: Path, command: Command, stsb_data: Path
) -> None:
    assert command("promote", "other", "--data", str(stsb_data), "--require", "STS12") == 0
    (line,) = (artifacts / "promotions.jsonl").read_text().splitlines()
    (judged,) = [check["numbers"]["candidate"] for check in json.loads(line)["checks"] if check["name"] == "not worse"]
    made = bundle.load(artifacts / "default")
    assert (made.manifest.scores or {})[sts.STSB_DEV_METRIC] == judged
    assert model_index(made.folder) == {
        ("STS12 (SentEval)", "test"): 50.0,
        ("STS13 (SentEval)", "test"): 51.0,
        ("STS-B (SentEval)", "dev"): round(judged, 2),
    }


def test_where_nothing_more_is_known_the_card_is_the_same_to_the_byte(artifacts: Path, command: Command) -> None:
    assert command("promote", "other") == 0
    assert (artifacts / "default" / CARD).read_bytes() == (artifacts / "other" / CARD).read_bytes()
