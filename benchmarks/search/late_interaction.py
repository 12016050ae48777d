"""Late interaction on SciFact (BEIR): nDCG@10 and milliseconds per query.

Dense search and hybrid search are each measured without and with reranking. `python -m
benchmarks.search.late_interaction --data DATA BUNDLE …` embeds each document once, as token vectors. Their mean is the
document's vector, so the encoders must use mean pooling. Search uses the server's own code. The figures are written to
benchmarks/results/late_interaction.json.
"""

from __future__ import annotations

import asyncio
import json
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.search.scifact import Rankings, gain_in_ndcg10
from benchmarks.surroundings import RESULTS, read, surroundings, write
from models.bundle.tokenizer import Tokens
from models.cli.command_line import Parser
from serving.commands.loading import opened_models
from serving.commands.starting import opened_service
from serving.corpora.backend import Backend
from serving.corpora.reranking import Reranking
from serving.corpora.search import Query, SearchOptions, SearchResult
from serving.corpora.values import Content, Corpus, Document
from serving.inference.embeddings import AS_DOCUMENTS, AS_QUERIES, EmbedOptions
from serving.inference.relevance import MOST_COMPONENTS, late_interaction
from serving.service import Service
from serving.settings import read_settings
from training.evaluation import beir, retrieval
from training.evaluation.beir import Collection

FILE = RESULTS / "late_interaction.json"
CORPUS = "scifact"
BLOCK = 128
"""Number of documents in one request for token vectors."""
CANDIDATES = (10, 50, 100)
TIMED, TIMED_CANDIDATES = 9, 100
"""Number of queries that are timed, and number of candidates that are reranked for each of these queries."""
WAYS: Mapping[str, dict[str, Any]] = {
    "dense": {"mode": "dense", "exact": True},
    "hybrid, weighted, stems": {"mode": "hybrid", "fusion": "weighted"},
}


class TokenVectors:
    """Unit token vectors of many texts, in float16."""

    def __init__(self) -> None:
        self._vectors: list[NDArray[np.float16]] = []
        self.tokens: list[Tokens] = []

    async def add(self, service: Service, texts: Sequence[str], role: EmbedOptions) -> NDArray[np.float32]:
        """Embed texts in blocks, store their token vectors, and return the unit vectors (N, D) of the texts."""
        means = []
        for at in range(0, len(texts), BLOCK):
            with service.encoder() as embedder:
                found = await embedder.embed_tokens(texts[at : at + BLOCK], role, most=MOST_COMPONENTS)
            self.tokens += found.texts
            self._vectors += [(one / np.linalg.norm(one, axis=1)[:, None]).astype(np.float16) for one in found.by_text]
            means += [one.mean(axis=0) for one in found.by_text]
            print(at, len(texts), file=sys.stderr, flush=True)
        vectors = np.array(means, dtype=np.float32)
        vectors /= np.linalg.norm(vectors, axis=1)[:, None]
        return vectors

    def of(self, rows: Sequence[int]) -> tuple[NDArray[np.float32], list[Tokens]]:
        """Return the token vectors and the tokens of the texts in `rows`."""
        return np.concatenate([self._vectors[row] for row in rows]).astype(np.float32), [
            self.tokens[row] for row in rows
        ]


async def _measured(service: Service, collection: Collection) -> dict[str, Any]:
    async with service.running():
        await service.loaded.wait()
        documents, questions = TokenVectors(), TokenVectors()
        asked = await questions.add(service, list(collection.queries.values()), AS_QUERIES)
        vectors = await documents.add(service, list(collection.documents.values()), AS_DOCUMENTS)
        corpora, fingerprint = service.library.corpora, service.encoders.default.model.manifest.fingerprint
        rows = [Document(name, text, {}) for name, text in collection.documents.items()]
        await service.library.run(lambda _: corpora.create(Corpus(CORPUS, stemming="porter")), of=CORPUS)
        await service.library.run(
            lambda _: corpora.put(CORPUS, Content(rows, vectors, fingerprint, None, None)), of=CORPUS
        )
        figures: dict[str, Any] = {"ndcg10": {}, "ms": {}}
        for way, given in WAYS.items():
            options = SearchOptions(k=retrieval.DEPTH, **given)
            queries = [Query(*one) for one in zip(collection.queries.values(), asked, strict=True)]
            found = await service.library.read(partial(_search, queries=queries, options=options), CORPUS)
            ids = [[hit.passage.document.id for hit in hits] for hits in found.hits]
            before = dict(zip(collection.queries, ids, strict=True))
            figures["ndcg10"][way] = {"first": _ndcg10(before, collection)}
            for special in (service.encoders.default.ready_embedder.preparation.special_ids, []):
                for candidates in CANDIDATES:
                    after = dict(
                        _reranked(before, collection, questions, documents, special=special, candidates=candidates)
                    )
                    name = f"{candidates} reranked" + ("" if special else ", special tokens too")
                    gain = gain_in_ndcg10(after, before, collection)
                    figures["ndcg10"][way][name] = {"ndcg10": _ndcg10(after, collection), "gain": gain}
            print(json.dumps(figures), file=sys.stderr, flush=True)
            figures["ms"][way] = await _milliseconds(service, list(collection.queries.values()), given)
        return figures


def _search(corpora: Backend, queries: Sequence[Query], options: SearchOptions) -> SearchResult:
    return corpora.search(CORPUS, queries, options)


def _reranked(
    before: Rankings,
    collection: Collection,
    questions: TokenVectors,
    documents: TokenVectors,
    *,
    special: Sequence[int],
    candidates: int,
) -> Iterator[tuple[str, list[str]]]:
    row_of = {name: row for row, name in enumerate(collection.documents)}
    for row, (query, ranking) in enumerate(before.items()):
        first = ranking[:candidates]
        asked, answers = questions.of([row]), documents.of([row_of[name] for name in first])
        vectors = np.concatenate([asked[0], answers[0]])
        scores = late_interaction(vectors, np.linalg.norm(vectors, axis=1), asked[1] + answers[1], special)
        yield query, [first[i] for i in np.argsort(-scores, kind="stable")] + ranking[candidates:]


async def _milliseconds(service: Service, queries: Sequence[str], given: dict[str, Any]) -> dict[str, float]:
    """Return the median elapsed and CPU milliseconds of one query after another, without and with reranking."""
    options = SearchOptions(**given)
    reranking = Reranking("late_interaction", TIMED_CANDIDATES)
    seconds: dict[str, list[float]] = {"first": [], "first, CPU": [], "reranked": [], "reranked, CPU": []}
    for query in queries[:TIMED]:
        for name, search in (
            ("first", service.library.search(CORPUS, [query], options)),
            ("reranked", service.library.reranked(CORPUS, [query], options, reranking)),
        ):
            began, cpu = time.perf_counter(), time.process_time()
            await search
            seconds[name].append(time.perf_counter() - began)
            seconds[f"{name}, CPU"].append(time.process_time() - cpu)
    return {name: round(1000 * median(found), 1) for name, found in seconds.items()}


def _ndcg10(rankings: Rankings, collection: Collection) -> float:
    return round(retrieval.score(rankings, collection).ndcg10, 2)


def main() -> None:
    """Measure each bundle and store its figures."""
    parser = Parser(prog="python -m benchmarks.search.late_interaction", description=__doc__)
    parser.add_argument("bundles", nargs="+", type=Path, metavar="BUNDLE", help="folder of a bundle")
    parser.add_argument("--data", type=Path, required=True, metavar="DIR", help="folder with retrieval/scifact")
    asked = parser.parse_args()
    collection = beir.find(asked.data, "scifact")
    about = surroundings()  # Read at the start, because each stored result modifies the checkout.
    for folder in asked.bundles:
        with tempfile.TemporaryDirectory() as data:
            settings = read_settings(["--bundle", str(folder), "--data", data, "--no-demo"])
            service = opened_service(settings, opened_models(settings))
            figures = asyncio.run(_measured(service, collection))
        command = f"python -m benchmarks.search.late_interaction --data DATA {folder.name}"
        row = {"command": command, **about, "queries": len(collection.queries), **figures}
        write(FILE, read(FILE) | {service.encoders.default.model.manifest.name: row})
        print(json.dumps(figures, indent=2))


if __name__ == "__main__":
    main()
