"""Tests of encoders without layers: their initialisation, their training and their files."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from models.bundle import bundle
from models.encoder.encoder import Encoder
from models.export.export import export, unit_vectors
from models.runtimes.graph import Graph
from training import cli
from training.encoding import static
from training.encoding.static import without_layers


@pytest.fixture
def student(tiny_bundle: Path, sentences: list[str]) -> Encoder:
    base = Encoder.load(tiny_bundle)
    made = without_layers(base)
    static.start(made, base, sentences)
    return made


def test_the_start_is_nearer_to_the_base_than_the_mean_of_its_token_vectors(
    student: Encoder, tiny_bundle: Path, sentences: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    base = Encoder.load(tiny_bundle)
    plain = without_layers(base)
    monkeypatch.setattr(static, "_ridge", lambda x, _: torch.eye(x.shape[1]))
    monkeypatch.setattr(static, "SMOOTHING", 1e9)
    static.start(plain, base, sentences)
    target = unit_vectors(base, sentences)
    fitted, unfitted = (float((unit_vectors(each, sentences) * target).sum(1).mean()) for each in (student, plain))
    assert fitted > unfitted + 0.01


def test_a_text_is_the_mean_of_its_tokens_and_special_tokens_do_not_count(student: Encoder) -> None:
    table = student.backbone.get_input_embeddings().get_parameter("weight").detach().numpy()
    (tokens,) = student.tokenizer.encode(["a dog sees a cat"])
    expected = table[tokens.ids[1:-1]].sum(axis=0)
    found = unit_vectors(student, ["a dog sees a cat", ""])
    assert found[0] @ expected / np.linalg.norm(expected) == pytest.approx(1, abs=1e-5)
    assert np.linalg.norm(found[1]) == pytest.approx(1, abs=1e-5), "an empty text has a direction, too"


def test_training_moves_every_token_but_the_special_ones(student: Encoder) -> None:
    student.train()
    ids, mask = student.tensors(student.tokenizer.encode(["a dog"]))
    student(ids, mask).sum().backward()  # type: ignore[no-untyped-call]
    gradient = student.backbone.get_input_embeddings().get_parameter("weight").grad
    assert gradient is not None
    moved = set(gradient.abs().sum(dim=1).nonzero().flatten().tolist())
    assert moved == set(ids[0, 1:-1].tolist())


@pytest.mark.slow
def test_sentence_transformers_has_the_same_vectors(student: Encoder, tmp_path: Path) -> None:
    from sentence_transformers import SentenceTransformer

    made = export(student, tmp_path / "static", name="static", backbone="tiny")
    texts = ["a dog sees a cat", "A man plays.", "no"]
    ours = Graph(made).encode(texts)
    theirs = SentenceTransformer(str(made.folder)).encode(texts)
    assert (ours * theirs).sum(axis=1) == pytest.approx(np.ones(3), abs=1e-5)


def test_a_run_comes_nearer_to_the_backbone_and_leaves_a_bundle(
    tiny_bundle: Path, corpus_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    command = ["train", "static", "--backbone", str(tiny_bundle), "--corpus", str(corpus_file), "--seed", "0"]
    command += ["--set", "batch_size=32", "--set", "eval_every=10", "--max-steps", "20"]
    assert cli.main(command) == 0
    lines = [json.loads(line) for line in Path("runs/static/metrics.jsonl").read_text().splitlines()]
    losses = [line["loss"] for line in lines if line["kind"] == "train"]
    assert sum(losses[-5:]) < sum(losses[:5])
    made = bundle.load(Path("artifacts/static"))
    assert (made.manifest.objective, made.manifest.pooling, made.manifest.dim) == ("static", "mean", 32)
    loaded = Encoder.load("artifacts/static")
    golden = made.manifest.golden
    vectors = unit_vectors(loaded, [one.text for one in golden])
    assert (vectors * np.array([one.vector for one in golden])).sum(axis=1) == pytest.approx(np.ones(len(golden)))
