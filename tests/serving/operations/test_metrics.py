"""Tests of the metrics, whose counts follow Prometheus, the engine and text-embeddings-inference."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from fastapi.testclient import TestClient
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client import Histogram as Theirs

from models.runtimes.openvino import LENGTH_STEP, padded
from serving.app import create_app
from serving.corpora.ports import IndexSize
from serving.errors import Backend, Empty, ForeignTokens, Invalid, Overloaded, Unhealthy
from serving.operations.bounds import check_corpus_name
from serving.operations.metrics import OTHERS, Histogram, Metrics
from serving.service import Service
from serving.settings import Settings

BOUNDS = [float(2**i) for i in range(15)]
CORPORA = st.sampled_from([f"c{i}" for i in range(8)])
Wait = Callable[[TestClient], None]


def samples(metrics: Metrics | TestClient) -> dict[str, float]:
    """Return the exposed samples, by name and labels."""
    text = metrics.text().decode() if isinstance(metrics, Metrics) else metrics.get("/metrics").text
    lines = [line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#")]
    assert len(dict(lines)) == len(lines), "no sample is there twice"
    return {name: float(number) for name, number in lines}


@given(st.lists(st.lists(st.integers(0, 40_000) | st.sampled_from([2**i for i in range(15)]), max_size=20), max_size=5))
def test_values_are_counted_as_prometheus_counts_them(requests: list[list[int]]) -> None:
    registries = [CollectorRegistry() for _ in range(3)]
    at_once, weighted = (Histogram("tokens", "Tokens", BOUNDS, registry) for registry in registries[:2])
    theirs = Theirs("tokens", "Tokens", buckets=BOUNDS, registry=registries[2])
    for request in requests:
        at_once.observe_all(request)
        for one in set(request):
            weighted.observe(one, times=request.count(one))
        for one in request:
            theirs.observe(one)
    expected = [line for line in generate_latest(registries[2]).splitlines() if b"_created" not in line]
    assert [generate_latest(registry).splitlines() for registry in registries[:2]] == [expected, expected]


@given(st.lists(st.integers(1, 500), min_size=1, max_size=20), st.sampled_from([256, 500, 512]))
def test_padding_is_counted_as_the_engine_pads(lengths: list[int], longest: int) -> None:
    lengths = [min(length, longest) for length in lengths]
    metrics = Metrics()
    metrics.batch(lengths, length_step=LENGTH_STEP, max_length=longest, max_tokens=1024)
    computed = padded(np.zeros((len(lengths), max(lengths)), np.int64), longest).size
    found = samples(metrics)
    assert found["isosphere_padded_tokens_total"] == found["te_batch_next_tokens_sum"] == computed
    assert found["isosphere_useful_tokens_total"] == sum(lengths)
    assert found["isosphere_batch_fill_ratio_sum"] == pytest.approx(computed / 1024)


@given(st.lists(CORPORA, max_size=30), st.sets(CORPORA), st.integers(0, 4))
def test_few_corpora_are_named_and_every_search_is_counted(searched: list[str], left: set[str], limit: int) -> None:
    metrics = Metrics(limit)

    def by_corpus(name: str) -> dict[str, float]:
        start = f'{name}{{corpus="'
        return {key[len(start) : -2]: n for key, n in samples(metrics).items() if key.startswith(start)}

    for corpus in searched:
        with metrics.search(corpus):
            pass
    counts = by_corpus("isosphere_search_duration_seconds_count")
    assert sum(counts.values()) == len(searched)
    assert len(counts.keys() - {OTHERS}) <= limit
    metrics.indexes({corpus: IndexSize(2, 100) for corpus in left})
    counts = by_corpus("isosphere_search_duration_seconds_count")
    assert counts.keys() - {OTHERS} <= left, "what is known of a corpus goes with it"
    vectors = by_corpus("isosphere_index_vectors")
    assert sum(vectors.values()) == 2 * len(left)
    assert len((vectors.keys() | counts.keys()) - {OTHERS}) <= limit


def test_others_are_no_corpus() -> None:
    with pytest.raises(Invalid):
        check_corpus_name(OTHERS)


def test_a_search_that_fails_takes_no_label() -> None:
    metrics = Metrics(1)
    with pytest.raises(Backend), metrics.search("nowhere"):
        raise Backend("no")
    with metrics.search("here"):
        pass
    assert samples(metrics)['isosphere_search_duration_seconds_count{corpus="here"}'] == 1


@pytest.mark.parametrize(
    ("error", "name"),
    [
        (Invalid("x"), "validation"),
        (Empty("x"), "validation"),
        (ForeignTokens("x"), "tokenization"),
        (Overloaded("x"), "overloaded"),
        (Backend("x"), "inference"),
        (Unhealthy("x"), "unhealthy"),
        (asyncio.CancelledError(), "dropped"),
        (RuntimeError("a bug"), "internal"),
    ],
)
def test_failures_have_the_names_of_text_embeddings_inference(error: BaseException, name: str) -> None:
    metrics = Metrics()
    with pytest.raises(type(error)), metrics.request(3):
        raise error
    found = samples(metrics)
    assert found[f'te_request_failure{{err="{name}"}}'] == found['te_request_count{method="batch"}'] == 1
    assert found['te_request_success{method="batch"}'] == found["te_embed_success"] == 0


def test_each_text_counts_in_te_embed_and_each_request_in_te_request(client: TestClient) -> None:
    stages = ("duration", "tokenization_duration", "queue_duration", "inference_duration")
    names = [f"te_{of}_{stage}_count" for of in ("request", "embed") for stage in stages]
    before = samples(client)
    assert client.post("/embed", json={"inputs": ["a", "b", "c"]}).status_code == 200
    assert client.post("/embed", json={"inputs": "a"}).status_code == 200
    after = samples(client)
    for name in [*names, "te_embed_count", "te_embed_success"]:
        assert after[name] - before[name] == (2 if "request" in name else 4), name


def test_sizes_of_indexes_follow_what_is_written(make_service: Callable[..., Service], wait_until_ready: Wait) -> None:
    with TestClient(create_app(make_service(index="exact"))) as client:
        wait_until_ready(client)
        client.put("/corpora/empty", json={})
        client.put("/corpora/mine", json={})
        documents = [{"id": f"d{i}", "text": f"number {i}"} for i in range(10)]
        assert client.post("/corpora/mine/documents", json={"documents": documents}).status_code == 200
        client.post("/corpora/mine/search", json={"query": "number"})
        found = samples(client)
        assert found["isosphere_corpora"] == 2
        assert found['isosphere_index_vectors{corpus="mine"}'] == 10
        assert found['isosphere_index_vectors{corpus="empty"}'] == 0
        assert found['isosphere_index_bytes{corpus="mine"}'] >= 10 * (64 * 4 + 8)
        assert found['isosphere_search_duration_seconds_count{corpus="mine"}'] == 1
        client.delete("/corpora/mine/documents/d3")
        assert samples(client)['isosphere_index_vectors{corpus="mine"}'] == 9
        client.delete("/corpora/mine")
        assert not any('corpus="mine"' in name for name in samples(client))


def test_names_of_corpora_are_told_only_where_everybody_may_see_them(tmp_path: Path) -> None:
    assert Settings().named_corpora > 0
    assert Settings(api_keys_file=tmp_path / "keys.json").named_corpora == 0
    assert Settings(api_keys_file=tmp_path / "keys.json", metrics_corpora=7).named_corpora == 7


def test_the_cache_is_counted(make_service: Callable[..., Service], wait_until_ready: Wait) -> None:
    with TestClient(create_app(make_service(cache_bytes=1_000_000))) as client:
        wait_until_ready(client)
        before = samples(client)
        for _ in range(3):
            client.post("/embed", json={"inputs": ["twice", "twice", "once"]})
        after = samples(client)
        more = {result: f'isosphere_cache_total{{result="{result}"}}' for result in ("hit", "miss")}
        assert {result: after[name] - before[name] for result, name in more.items()} == {"hit": 6, "miss": 3}


def test_the_self_test_of_a_bundle_is_nobodys_request(local: TestClient) -> None:
    text = local.get("/metrics").text
    for name in ('te_request_count{method="batch"}', 'te_request_count{method="single"}', "te_embed_count"):
        assert f"\n{name} 0.0\n" in text
    assert "\nte_request_duration_count 0.0\n" in text
