"""Retrieval on SciFact (BEIR) by the server's own code: dense search, keyword search, and hybrid search."""

from __future__ import annotations

import asyncio
import os
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.encodings import BUNDLE, DATA
from serving.commands.loading import opened_models
from serving.commands.starting import opened_service
from serving.corpora.arranging import Fusion
from serving.corpora.search import Mode, SearchOptions
from serving.corpora.values import Corpus, Document, Stemming
from serving.operations.context import BULK, holding
from serving.service import Service
from serving.settings import read_settings
from training.evaluation import beir, retrieval
from training.evaluation.beir import Collection
from training.evaluation.bootstrap import resample_means

Rankings = dict[str, list[str]]
"""Document ids by query id, best document first."""
BLOCK, AT_ONCE = 256, 6
"""Number of documents per upload, and number of concurrent uploads."""
Way = tuple[Mode, Fusion, bool]
"""A way of searching: mode, fusion, and whether the search is exact."""
WAYS: dict[str, Way] = {
    "dense": ("dense", "rrf", False),
    "dense, exact": ("dense", "rrf", True),
    "lexical": ("lexical", "rrf", False),
    "hybrid, rrf": ("hybrid", "rrf", False),
    "hybrid, weighted": ("hybrid", "weighted", False),
}


def measure() -> dict[str, Any]:
    """Measure nDCG@10 × 100 of each way of searching on the test queries, and facts about the index."""
    collection = beir.load(Path(os.environ[DATA]) / "retrieval" / "scifact")
    with tempfile.TemporaryDirectory() as data:
        given = ["--bundle", str(BUNDLE), "--data", data, "--no-demo", "--exact-below", "1000"]
        settings = read_settings(given)
        service = opened_service(settings, opened_models(settings))
        return {"figures": asyncio.run(_measured(service, collection))}


async def _measured(service: Service, collection: Collection) -> dict[str, Any]:
    async with service.running():
        await service.loaded.wait()
        began = time.perf_counter()
        await _stored(service, collection, "none")
        figures: dict[str, Any] = {
            "ingest_documents_per_s": round(len(collection.documents) / (time.perf_counter() - began), 1)
        }
        report = await service.library.run(lambda corpora: corpora.build_now("none"), of="none")
        assert report is not None, "it contains documents"
        figures["index"] = {"kind": report.kind, "parameters": report.parameters, "recall": report.recall}
        found = {way: await _rankings(service, collection, "none", asked) for way, asked in WAYS.items()}
        figures["ways"] = {way: _score(rankings, collection) for way, rankings in found.items()}
        await _stored(service, collection, "porter")
        for way, asked in WAYS.items():
            if asked[0] != "dense":
                rankings = await _rankings(service, collection, "porter", asked)
                gain = gain_in_ndcg10(rankings, found[way], collection)
                figures["ways"][f"{way}, stems"] = _score(rankings, collection) | {"gain": gain}
    return figures


async def _stored(service: Service, collection: Collection, stemming: Stemming) -> None:
    """Store the collection in a corpus that is named after its stemming."""
    await service.library.run(lambda corpora: corpora.create(Corpus(stemming, stemming=stemming)), of=stemming)
    documents = [Document(name, text, {}) for name, text in collection.documents.items()]
    gate = asyncio.Semaphore(AT_ONCE)

    async def store(block: Sequence[Document]) -> None:
        async with gate:
            with holding(BULK, True):
                await service.library.add(stemming, block)

    await asyncio.gather(*(store(documents[at : at + BLOCK]) for at in range(0, len(documents), BLOCK)))


async def _rankings(service: Service, collection: Collection, corpus: str, way: Way) -> Rankings:
    names, texts = list(collection.queries), list(collection.queries.values())
    mode, fusion, exact = way
    wanted = SearchOptions(k=retrieval.DEPTH, mode=mode, fusion=fusion, exact=exact)
    found = await service.library.search(corpus, texts, wanted)
    return {name: [hit.passage.document.id for hit in hits] for name, hits in zip(names, found.hits, strict=True)}


def _score(rankings: Rankings, collection: Collection) -> dict[str, Any]:
    score = retrieval.score(rankings, collection)
    return {"ndcg10": round(score.ndcg10, 2), "mrr10": round(score.mrr10, 2), "recall100": round(score.recall100, 2)}


def gain_in_ndcg10(rankings: Rankings, before: Rankings, collection: Collection) -> list[float]:
    """Return the mean gain in nDCG@10, and the bounds of its 95 % interval over queries."""
    ndcg10 = [
        retrieval.by_query(one, collection)[:, retrieval.MEASURES.index(retrieval.NDCG10)] for one in (rankings, before)
    ]
    after, former = (resample_means([{"queries": each}]) for each in ndcg10)
    gain = after.against(former)
    return [round(each, 2) for each in (gain.difference, gain.low, gain.high)]
