"""Tests that evaluate a server with mteb, by the adapter in docs/clients.md, on minimal tasks."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import mteb
import numpy as np
import pytest
from datasets import Dataset
from mteb.abstasks import AbsTaskRetrieval, AbsTaskSTS
from mteb.abstasks.task_metadata import TaskMetadata
from mteb.types import PromptType
from scipy.stats import spearmanr
from sentence_transformers import SentenceTransformer

from tests.clients.conftest import BUNDLE, PYTHON, ROOT, TEXTS, Server, run_snippet, serving

PAIRS = [
    ("A man is playing a guitar.", "Someone plays the guitar.", 5.0),
    ("A dog runs on the beach.", "A dog is running along the shore.", 4.2),
    ("A woman slices an onion.", "A woman is cooking dinner.", 2.4),
    ("Children play football.", "A ball lies in the grass.", 1.4),
    ("The market fell on Monday.", "A cat sleeps on the sofa.", 0.0),
]
DOCUMENTS = {
    "guitar": "A guitar is a string instrument that is played with the fingers or a pick.",
    "volcano": "A volcano is a rupture in the crust of a planet through which lava escapes.",
    "bread": "Bread is made from a dough of flour and water, which is baked.",
    "whale": "Whales are large mammals that live in the sea.",
}
QUERIES = {
    "guitar": "a musical instrument with strings",
    "whale": "animals of the ocean",
    "volcano": "mountains that erupt",
}
"""Queries, by the only document that is relevant to each."""


def metadata(name: str, kind: str, main_score: str) -> TaskMetadata:
    return TaskMetadata(
        name=name,
        description="Here, in memory.",
        dataset={"path": "none/none", "revision": "1"},
        type=kind,
        category="t2t",
        eval_langs=["eng-Latn"],
        main_score=main_score,
    )


class Similarity(AbsTaskSTS):  # type: ignore[misc]
    metadata = metadata("Similarity", "STS", "cosine_spearman")

    def load_data(self, *_: Any, **__: Any) -> None:
        columns = ("sentence1", "sentence2", "score")
        self.dataset = {"test": Dataset.from_list([dict(zip(columns, pair, strict=True)) for pair in PAIRS])}
        self.data_loaded = True


class Lookup(AbsTaskRetrieval):  # type: ignore[misc]
    metadata = metadata("Lookup", "Retrieval", "ndcg_at_10")

    def load_data(self, *_: Any, **__: Any) -> None:
        split = {
            "corpus": Dataset.from_list([{"id": id, "text": text, "title": ""} for id, text in DOCUMENTS.items()]),
            "queries": Dataset.from_list([{"id": f"q-{id}", "text": text} for id, text in QUERIES.items()]),
            "relevant_docs": {f"q-{id}": {id: 1} for id in QUERIES},
            "top_ranked": None,
        }
        self.dataset = {"default": {"test": split}}
        self.data_loaded = True


@pytest.fixture
def served(snippet: Callable[[str], dict[str, Any]]) -> Any:
    return snippet("mteb")["served"]


def scores(model: Any) -> dict[str, float]:
    results = mteb.evaluate(model, [Similarity(), Lookup()], cache=None, show_progress_bar=False)
    return {result.task_name: result.get_score() for result in results.task_results}


def test_a_server_is_judged_as_its_bundle_is(served: Any) -> None:
    assert scores(served) == pytest.approx(scores(SentenceTransformer(str(BUNDLE), device="cpu")), abs=1e-4)


def test_the_scores_are_those_of_our_vectors(served: Any, server: Server) -> None:
    judged = scores(served)
    a, b, gold = (list(column) for column in zip(*PAIRS, strict=True))
    cosines = (server.embed(a) * server.embed(b)).sum(axis=1)
    assert judged["Similarity"] == pytest.approx(spearmanr(cosines, gold).statistic)
    found = server.embed([*QUERIES.values()]) @ server.embed([*DOCUMENTS.values()]).T
    before = [np.sum(row > row[[*DOCUMENTS].index(query)]) for query, row in zip(QUERIES, found, strict=True)]
    assert judged["Lookup"] == pytest.approx(np.mean(1 / np.log2(np.array(before) + 2)), abs=1e-5)


@pytest.fixture(scope="module")
def prompted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make the bundle with prompts that would mislead a search."""
    folder = tmp_path_factory.mktemp("bundle") / "prompted"
    prompts = ["query=Bread is made of flour and water. How is dough baked? ", "document=A text. "]
    command = [PYTHON, "-m", "models", "export", str(BUNDLE), "--out", str(folder), "--no-measure"]
    command += [part for prompt in prompts for part in ("--prompt", prompt)]
    subprocess.run(command, cwd=ROOT, check=True)
    return folder


@pytest.fixture(scope="module")
def served_with_prompts(prompted: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    with serving(prompted, tmp_path_factory.mktemp("server")) as server:
        yield run_snippet("mteb", server)["served"]


def test_queries_and_documents_have_their_prompts(prompted: Path, served: Any, served_with_prompts: Any) -> None:
    encoder = SentenceTransformer(str(prompted), device="cpu")
    for kind, expected in (
        (PromptType.query, encoder.encode_query(TEXTS)),
        (PromptType.document, encoder.encode_document(TEXTS)),
        (None, encoder.encode(TEXTS)),
    ):
        vectors = served_with_prompts.encode([{"text": TEXTS}], prompt_type=kind)
        assert np.sum(vectors * expected, axis=1).min() >= 0.9999
    judged = scores(served_with_prompts)
    assert judged == pytest.approx(scores(encoder), abs=1e-4)
    assert judged["Lookup"] < scores(served)["Lookup"]


def test_an_error_ends_the_evaluation(served: Any) -> None:
    served.client.headers["authorization"] = "Bearer wrong"
    with pytest.raises(httpx.HTTPStatusError, match="401"):
        scores(served)
