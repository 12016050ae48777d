"""Contract tests of every post-processing in the table."""

from __future__ import annotations

import inspect
import io
import re
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
import torch

from models.bundle import bundle
from models.encoder.encoder import Encoder
from models.encoder.transform import TRANSFORMS, Transform
from models.export.export import export
from serving.inference.engine import EngineOptions
from serving.inference.engines import ENGINES
from training import cli
from training.data.corpus import Corpus
from training.postprocess import POSTPROCESSES
from training.postprocess.base import Fitted, PostprocessError

TEXTS = ["the dog can see the river .", "a", "", "the teacher will read the long book in the morning ."]


@pytest.fixture(scope="module", params=POSTPROCESSES)
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


class Made(NamedTuple):
    """A bundle, the encoder that was exported to it, and the fitted transform."""

    folder: Path
    encoder: Encoder
    transform: Transform


@pytest.fixture(scope="module")
def made(name: str, tiny_backbone: Path, corpus: Corpus, tmp_path_factory: pytest.TempPathFactory) -> Made:
    """Fit and export once for all tests."""
    encoder = Encoder.load(tiny_backbone, pooling="mean")
    transform = apply(name, encoder, corpus)
    folder = tmp_path_factory.mktemp("made") / name
    export(encoder, folder, name=name, backbone="tiny")
    return Made(folder, encoder, transform)


def apply(name: str, encoder: Encoder, corpus: Corpus, seed: int = 3) -> Transform:
    chosen = POSTPROCESSES[name]
    fitted = chosen.apply(encoder, corpus, chosen.params, seed=seed, stream=io.StringIO())
    assert fitted.transform is encoder.transform
    assert fitted.facts["sentences"] == corpus.census.sentences
    return fitted.transform


def test_the_same_seed_gives_the_same_transform(name: str, tiny_backbone: Path, corpus: Corpus) -> None:
    first, second = (apply(name, Encoder.load(tiny_backbone, pooling="mean"), corpus) for _ in range(2))
    weights = second.state_dict()
    assert all(torch.equal(tensor, weights[key]) for key, tensor in first.state_dict().items())


@pytest.mark.parametrize("fitted", ["flow", "dcl"])
def test_the_seed_orders_the_corpus(fitted: str, encoder: Encoder, corpus: Corpus) -> None:
    chosen = POSTPROCESSES[fitted]

    def weights(seed: int) -> list[torch.Tensor]:
        torch.manual_seed(0)
        transform = chosen.fit(encoder, corpus, chosen.params, seed, io.StringIO()).transform
        return list(transform.state_dict().values())

    first, again, other = weights(0), weights(0), weights(1)
    assert all(map(torch.equal, first, again)) and not all(map(torch.equal, first, other))


def test_what_a_fit_draws_comes_of_the_seed(encoder: Encoder, corpus: Corpus) -> None:
    drawn = []

    def fit(encoder: Encoder, *_rest: object) -> Fitted:
        drawn.append(torch.rand(()).item())
        raise PostprocessError("seen")

    for seed in (0, 1, 1):
        with pytest.raises(PostprocessError, match="seen"):
            replace(POSTPROCESSES["dcl"], fit=fit).apply(encoder, corpus, None, seed=seed, stream=io.StringIO())
    assert drawn[0] != drawn[1] == drawn[2]


def test_it_changes_the_vectors_and_not_the_backbone(name: str, encoder: Encoder, corpus: Corpus) -> None:
    pooled, before = encoder.encode(TEXTS), {key: value.clone() for key, value in encoder.backbone.state_dict().items()}
    transform = apply(name, encoder, corpus)
    assert all(torch.equal(before[key], value) for key, value in encoder.backbone.state_dict().items())
    expected = transform(torch.from_numpy(pooled)).numpy()
    assert encoder.dim == transform.out == expected.shape[1]
    np.testing.assert_allclose(encoder.encode(TEXTS), expected, atol=1e-4)
    assert expected.shape != pooled.shape or not np.allclose(expected, pooled)


@pytest.mark.slow
def test_it_is_served_from_its_bundle(made: Made) -> None:
    model = ENGINES["onnxruntime"](made.folder)
    engine = model.load(EngineOptions(device="cpu"))
    embedded = engine.embed(engine.tokenize(TEXTS, "right"))
    assert model.manifest.dim == made.transform.out
    expected = made.encoder.encode(TEXTS)
    np.testing.assert_allclose(embedded.vectors * embedded.norms[:, None], expected, rtol=1e-3, atol=1e-3)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # sentence-transformers' own
def test_sentence_transformers_agrees_where_it_can_open_the_bundle(made: Made) -> None:
    from sentence_transformers import SentenceTransformer

    if "1_Pooling/config.json" not in bundle.load(made.folder).manifest.files:
        pytest.skip("its files have no words for this transform; tests/models/test_transform.py")
    theirs = SentenceTransformer(str(made.folder), device="cpu").encode(TEXTS)
    ours = made.encoder.encode(TEXTS)
    ours /= np.linalg.norm(ours, axis=1, keepdims=True)
    assert (ours * theirs).sum(axis=1).min() >= 0.9999


def test_a_corpus_that_is_too_small_is_refused_and_told_how_many_are_needed(
    name: str, encoder: Encoder, short_corpus: Corpus
) -> None:
    with pytest.raises(
        PostprocessError, match=r"short: 20 different sentences are too few .* at least \d\d are needed"
    ):
        apply(name, encoder, short_corpus)
    assert encoder.transform is None


def test_an_encoder_that_has_a_transform_is_refused(name: str, encoder: Encoder, corpus: Corpus) -> None:
    encoder.attach(TRANSFORMS["affine"](dim=32, out=32))
    with pytest.raises(PostprocessError, match=r"already has a transform \(affine\)"):
        apply(name, encoder, corpus)


def test_it_says_how_far_it_is_in_plain_lines(
    name: str, encoder: Encoder, corpus: Corpus, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("training.postprocess.base.LINE_EVERY", 0.0)
    said, chosen = io.StringIO(), POSTPROCESSES[name]
    chosen.apply(encoder, corpus, chosen.params, seed=0, stream=said)
    assert said.getvalue().splitlines()[-1].endswith("of 240 sentences")


def test_the_manifest_knows_the_transform(made: Made) -> None:
    known = {"kind": made.transform.kind, **made.transform.sizes}
    assert bundle.load(made.folder).manifest.transform == known


@pytest.mark.slow
def test_its_paper_is_named_where_it_is_written_and_cited_in_the_card(
    name: str, tiny_backbone: Path, corpus_file: Path, tmp_path: Path
) -> None:
    chosen = POSTPROCESSES[name]
    source = " ".join((inspect.getdoc(inspect.getmodule(chosen.fit)) or "").split())
    (title,) = re.findall(r"^  title = {(.+)},$", chosen.citation, re.MULTILINE)
    (author,) = re.findall(r"^  author = {(.+)},$", chosen.citation, re.MULTILINE)
    assert title in source and re.search(r"arXiv:\d{4}\.\d{5}", source)
    assert all(each.split(",")[0] in source for each in author.split(" and "))
    out = tmp_path / name
    arguments = ["postprocess", name, str(tiny_backbone), "--out", str(out), "--corpus", str(corpus_file)]
    assert cli.main([*arguments, "--pooling", "mean"]) == 0
    assert chosen.citation.strip() in (out / bundle.CARD).read_text()
