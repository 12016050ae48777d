"""Tests of the model card: it contains exactly the facts of the manifest and of the source's card."""

from __future__ import annotations

import json
import logging
import re
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from huggingface_hub import ModelCard
from hypothesis import given
from hypothesis import strategies as st

from models.__main__ import main
from models.bundle import bundle, card, origin
from models.bundle.bundle import Manifest
from models.bundle.origin import Origin
from models.bundle.sources import minilm
from models.encoder.encoder import Encoder
from models.export.export import export

MANIFEST = Manifest(
    name="tiny",
    objective="dclr",
    backbone="minilm",
    dim=32,
    max_length=64,
    pooling="mean",
    files={card.READABLE: "00"},
    fingerprint="f" * 64,
    scores={
        "STS12": 70.123,
        "MR": 81.0,
        "scifact nDCG@10": 64.5,
        "zoo nDCG@10": 31,
        "onnx_parity": 2e-6,
        "loss of mine": 0.25,
    },
    golden=[],
)


SCORED = (*card.MEASURES, "scifact nDCG@10", "scifact:train nDCG@10", "my own questions nDCG@10")
"""Names of scores that have a description for the hub."""


def _read(text: str) -> Any:
    """Read the metadata like the hub's client, including fields that its types do not have."""
    return ModelCard(text)


def _card(**facts: Any) -> Any:
    return _read(card.text(replace(MANIFEST, **facts), origin.read("minilm", minilm())))


def test_the_hub_reads_what_the_manifest_says() -> None:
    read = _card()
    said = read.data
    assert (said.license, said.language, said.pipeline_tag) == ("apache-2.0", ["en"], "sentence-similarity")
    assert (said.library_name, said.base_model) == (
        "sentence-transformers",
        ["sentence-transformers/all-MiniLM-L6-v2"],
    )
    assert {"dclr", "onnx"} <= set(said.tags)
    results = {one.dataset_name: (one.task_type, one.metric_type, one.metric_value) for one in said.eval_results}
    assert results == {
        "STS12 (SentEval)": ("semantic-similarity", "spearman_cosine", 70.12),
        "MR (SentEval)": ("text-classification", "accuracy", 81.0),
        "SciFact (BEIR)": ("information-retrieval", "ndcg_at_10", 64.5),
        "zoo": ("information-retrieval", "ndcg_at_10", 31),
    }
    train = card.measure("zoo:train nDCG@10")
    assert train and (train.data, train.split) == ("zoo", "train"), "questions that others train on are told as such"
    assert "| `loss of mine` | as recorded by the training | 0.25 |" in read.text
    assert "at most 2e-06" in read.text


@given(
    scores=st.dictionaries(st.sampled_from([*SCORED, "my own", "nDCG@10"]), st.floats(-100, 100)),
    name=st.text(min_size=1, max_size=40).filter(lambda text: text.strip() == text and text.isprintable()),
)
def test_every_score_of_the_manifest_is_in_the_card_once(scores: dict[str, float], name: str) -> None:
    read = _read(card.text(replace(MANIFEST, scores=scores, name=name), Origin()))
    results = {(one.dataset_name, one.dataset_split): one.metric_value for one in read.data.eval_results or []}
    known = {m[1:3]: round(scores[key], 2) for key in SCORED if key in scores and (m := card.measure(key))}
    assert results == known
    assert len(re.findall(r"^\| .+ \| .+ \| -?[\d.e-]+ \|$", read.text, re.MULTILINE)) == len(scores)


def test_what_nobody_said_is_unknown() -> None:
    read = _read(card.text(replace(MANIFEST, objective=None, scores=None), Origin()))
    assert (read.data.license, read.data.language, read.data.base_model) == ("unknown", None, None)
    assert read.data.eval_results is None
    for words in (
        "Unknown: the model cards",
        "No scores are known.",
        "No citation is known",
        "No training is recorded",
    ):
        assert words in read.text


def test_any_other_record_is_shown_but_for_its_bulk() -> None:
    run = {"ingredients": [{"name": "a", "share": 0.5}], "curve": [1, 2], "environment": {"torch": "2"}}
    (printed,) = re.findall(r"```json\n(.*?)```", _card(run=run).text, re.DOTALL)
    assert json.loads(printed) == {"ingredients": [{"name": "a", "share": 0.5}]}


def test_of_averaged_weights_it_tells_what_each_was_trained_on() -> None:
    corpus = {"sentences": 40_000, "digest": "abc"}
    teacher = {"name": "large", "backbone": "org/large", "fingerprint": "f00", "licence": "mit"}
    taught = {"config": {"seed": 7}, "corpus": corpus, "teacher": teacher, "best_step": 25}
    ingredients = [
        {"source": "one", "share": 0.75, "objective": "distillation", "run": taught},
        {"source": "start", "share": 0.25, "objective": None, "run": None},
        {"source": "left out", "share": 0.0, "objective": "simcse", "run": taught},
    ]
    recipe = {"file": "my recipe.toml", "about": "For pairs.", "limits": ["Not for search.", "Nor for verse."]}
    text = _card(objective=None, run={"ingredients": ingredients, "recipe": recipe}).text
    prose = text.partition("```json")[0]
    assert (
        "| 0.75 | `one` | Objective: `distillation`. Teacher: `large` (of `org/large`, fingerprint `f00`, "
        "licence `mit`). Corpus of 40,000 sentences (digest `abc`). The weights are those of step 25. Seed 7. |"
    ) in prose
    assert "| 0.25 | `start` | not recorded |" in prose and "`left out`" not in prose
    assert "Encoders left out: 1." in prose
    assert "isosphere rebuild 'my recipe.toml' --data" in prose
    assert prose.index("For pairs.") < prose.index("## Scores")
    assert "- Not for search.\n- Nor for verse.\n- " in text.partition("## Limits")[2]


def test_a_fitted_transform_is_repeated_by_its_command() -> None:
    run = {"postprocess": "whitening", "source": "my encoder", "params": {"dims": 16}, "seed": 3}
    command = "isosphere postprocess whitening 'my encoder' --out DIR --seed 3 --set dims=16"
    assert command in _card(run=run, transform={"kind": "affine"}).text
    pooled = command.replace("--seed", "--pooling cls --max-length 16 --seed")
    assert pooled in _card(run={**run, "pooling": "cls", "max_length": 16}, transform={"kind": "affine"}).text


@pytest.mark.parametrize("lost", ["source", "params", "seed"])
def test_of_a_fitting_that_was_recorded_in_part_there_is_the_record_alone(lost: str) -> None:
    run = {"postprocess": "whitening", "source": "mine", "params": {"dims": 16}, "seed": 3}
    for record in ({**run, lost: None}, {key: value for key, value in run.items() if key != lost}):
        text = _card(run=record).text
        assert "To fit the transform again" not in text and '"postprocess": "whitening"' in text


def test_a_trained_bundle_has_its_card_hashed(tiny_backbone: Path, tmp_path: Path) -> None:
    cited = "@article{mine}"
    made = export(
        Encoder.load(tiny_backbone), tmp_path / "made", name="made", backbone="tiny", citations=[cited, cited]
    )
    text = (made.folder / bundle.CARD).read_text()
    assert made.manifest.files[bundle.CARD] == bundle.sha256(made.folder / bundle.CARD)
    assert made.manifest.fingerprint in text
    assert text.count(cited) == 1


@pytest.mark.slow
def test_a_card_is_handed_on(tiny_backbone: Path, tmp_path: Path) -> None:
    source = Path(shutil.copytree(tiny_backbone, tmp_path / "source"))
    (source / bundle.CARD).write_text(
        "---\nlicense: other\nlicense_name: mine\nlanguage: [de, false]\nbase_model: org/base\n---\n"
        "# Tiny\n```bibtex\n@article{tiny}\n```\n"
    )
    expected = Origin(
        base_models=("org/base",),
        licence={"license": "other", "license_name": "mine"},
        languages=("de",),
        citations=("@article{tiny}",),
    )
    encoder = Encoder.load(source)
    assert encoder.origin == expected
    export(encoder, tmp_path / "trained", name="trained", backbone="tiny", citations=["@article{paper}"])
    assert main(["export", str(tmp_path / "trained"), "--out", str(tmp_path / "again"), "--no-measure"]) == 0
    again = Encoder.load(tmp_path / "again").origin
    assert again == replace(expected, citations=("@article{paper}", "@article{tiny}"))


def test_several_sources_have_a_licence_if_it_is_one() -> None:
    free = Origin(licence={"license": "mit"}, languages=("de",), citations=("@a{a}", "@b{b}"))
    same = Origin(licence={"license": "mit"}, languages=("en", "de"), citations=("@b{b}", "@c{c}"))
    assert origin.merged([free]) == free
    assert origin.merged([free, same]) == Origin(
        licence={"license": "mit"}, languages=("de", "en"), citations=("@a{a}", "@b{b}", "@c{c}")
    )
    for other in (Origin(), Origin(licence={"license": "apache-2.0"})):
        assert origin.merged([free, other]).licence == origin.merged([other, free]).licence == {}


def test_an_unknown_licence_stays_unknown_however_often_it_is_handed_on(tmp_path: Path) -> None:
    text = card.text(MANIFEST, Origin())
    (tmp_path / bundle.CARD).write_text(text)
    assert card.text(MANIFEST, origin.read(str(tmp_path), tmp_path)) == text
    assert "## Licence\n\nUnknown: the model cards" in text


def test_a_broken_card_is_told_and_says_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / bundle.CARD).write_text("---\nlicense: [\n---\n")
    with caplog.at_level(logging.WARNING):
        assert origin.read(str(tmp_path), tmp_path) == Origin()
    assert "licence and languages are treated as unknown" in caplog.text


@pytest.mark.slow
def test_scores_of_another_pooling_are_not_claimed(tiny_backbone: Path, tmp_path: Path) -> None:
    export(Encoder.load(tiny_backbone, pooling="mean"), tmp_path / "mean", name="t", backbone="b", scores={"STS12": 50})
    for pooling, kept in (("mean", True), ("cls", False)):
        out = tmp_path / f"again-{pooling}"
        assert main(["export", str(tmp_path / "mean"), "--out", str(out), "--no-measure", "--pooling", pooling]) == 0
        assert ("STS12" in (bundle.load(out).manifest.scores or {})) is kept
        assert ("STS12" in (out / bundle.CARD).read_text()) is kept


def test_what_sentence_transformers_can_not_open_is_not_called_its_own() -> None:
    read = _card(files={}, transform={"kind": "flow"})
    assert (read.data.library_name, read.data.pipeline_tag) == ("onnx", "feature-extraction")
    assert "SentenceTransformer(" not in read.text and "then a flow transform" in read.text


@pytest.mark.parametrize("prompts", [{"query": "query: "}, {"query": "", "passage": "passage: "}])
def test_where_queries_and_documents_have_words_before_them_its_usage_puts_them_there(prompts: dict[str, str]) -> None:
    used = card.text(replace(MANIFEST, prompts=prompts), origin.read("minilm", minilm())).split("## Use")[1]
    assert "encoder.encode_document([" in used and "encoder.encode_query(" in used and "encoder.encode(" not in used


@pytest.mark.parametrize("prompts", [{}, {"query": "", "document": ""}, {"clustering": "Topic: "}])
def test_elsewhere_its_usage_is_plain(prompts: dict[str, str]) -> None:
    used = card.text(replace(MANIFEST, prompts=prompts), origin.read("minilm", minilm())).split("## Use")[1]
    assert "encoder.encode([" in used and "encode_" not in used
