"""Tests of the description of a training run in the card of its bundle."""

from __future__ import annotations

import io
import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from huggingface_hub import ModelCard

from models.bundle import bundle, card
from models.bundle.bundle import Manifest
from models.bundle.origin import Origin
from models.encoder.encoder import Encoder
from training.checkpoints.checkpoint import Best
from training.checkpoints.publish import STS_MEAN, Outcome, publish, sts_scores
from training.checkpoints.record import METRICS
from training.config import RunConfig, from_preset
from training.data.corpus import Census
from training.evaluation import sts, vectors
from training.evaluation.labelled import TRANSFER_TASKS
from training.evaluation.pairs import STS_TASKS, sts_tasks
from training.evaluation.retrieval import NDCG10
from training.objectives import OBJECTIVES


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_the_run_in_the_card_can_be_repeated_and_its_paper_is_cited(objective: str) -> None:
    config = from_preset(objective).override({"seed": 7, "max_steps": 20})
    corpus = {"sentences": 1234, "digest": "d1"}
    manifest = Manifest(
        name="trained",
        objective=objective,
        backbone="minilm",
        dim=32,
        max_length=64,
        pooling="mean",
        files={},
        fingerprint="f" * 64,
        run={"config": json.loads(config.to_json()), "corpus": corpus, "best_step": 10, "curve": [{"step": 0}]},
        golden=[],
    )
    text = card.text(manifest, Origin(), [OBJECTIVES[objective].citation])
    assert "Corpus of 1,234 sentences (digest `d1`). The weights are those of step 10. Seed 7." in text
    (printed,) = re.findall(r"```json\n(.*?)```", text, re.DOTALL)
    assert RunConfig.from_json(printed) == config
    (cited,) = re.findall(r"```bibtex\n(@\w+{.*?^})\n```", text, re.DOTALL | re.MULTILINE)
    assert cited.count("{") == cited.count("}")
    assert all(f"  {field} = {{" in cited for field in ("title", "author", "booktitle", "year"))


def test_a_published_run_cites_its_objective_and_tells_its_scores(
    tiny_backbone: Path, stsb_data: Path, tmp_path: Path
) -> None:
    (tmp_path / METRICS).touch()
    out, run = str(tmp_path / "out"), str(tmp_path)
    config = replace(from_preset("dclr"), out=out, run=run, backbone=str(tiny_backbone))
    census = Census(sentences=9, held_out=(), duplicates=0, blank=0, digest="d2", threshold=0)
    encoder = Encoder.load(tiny_backbone)
    tasks = sts_tasks(stsb_data)
    outcome = Outcome(encoder, Best(step=3, score=61.25), 9, sts.STSB_DEV_METRIC, census, tasks)
    scores = sts_scores(encoder, tasks, io.StringIO())
    made = publish(config, outcome, scores)
    read: Any = ModelCard.load(made.folder / bundle.CARD)
    results = {(one.dataset_name, one.dataset_split): one.metric_value for one in read.data.eval_results}
    test = round(scores["STSB"].spearman.all, 2)
    assert results == {("STS-B (SentEval)", "dev"): 61.25, ("STS-B (SentEval)", "test"): test}
    text = (made.folder / bundle.CARD).read_text()
    assert OBJECTIVES["dclr"].citation.strip() in text
    assert "| STS-B (SentEval), dev | Spearman × 100; this score selects the weights of a run | 61.25 |" in text
    assert "Unknown: the model cards of the source weights name no licence" in text, "the backbone came without one"


def test_every_task_has_its_words_in_the_card() -> None:
    for name in (*STS_TASKS, STS_MEAN, sts.STSB_DEV_METRIC, *TRANSFER_TASKS, f"scifact {NDCG10}"):
        assert card.measure(name), name
    assert card.measure(vectors.METRIC) is None, "of a corpus of one's own: nobody else could compare it"
