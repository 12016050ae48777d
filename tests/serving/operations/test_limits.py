"""Tests of a key's rates and concurrency: how much passes, when the next request passes, and `Retry-After`."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient
from hypothesis import given
from hypothesis import strategies as st

from serving.app import create_app
from serving.corpora.corpora import Corpora
from serving.corpora.filter_language import LARGE
from serving.corpora.library import SLICE_TEXTS
from serving.corpora.search import SearchOptions
from serving.errors import Overloaded
from serving.inference.fake_engine import DIM
from serving.operations.keys import Key, changed_keys, digest
from serving.operations.limits import SECOND, Bucket, Caller, Limits, charge
from serving.service import Service
from serving.settings import Settings
from tests.conftest import PATIENCE
from tests.serving.engines import Gate, model

Wait = Callable[[TestClient], None]
Limited = Callable[..., tuple[TestClient, "Clock"]]


class Clock:
    def __init__(self) -> None:
        self.now = 7 * SECOND

    def __call__(self) -> int:
        return self.now


def key(**options: Any) -> Key:
    return Key(name="a", sha256=digest("secret"), scopes=("read", "write"), **options)


rates = st.floats(0.01, 100_000)
steps = st.lists(st.tuples(st.integers(0, 3 * SECOND), st.integers(1, 10_000)), max_size=60)


@given(rates, steps)
def test_no_window_lets_more_through_than_its_rate_and_one_request(rate: float, steps: list[tuple[int, int]]) -> None:
    """Check any two moments: at most rate times time, one second's saved amount, and one more request."""
    clock = Clock()
    bucket, taken = Bucket(rate, clock), list[tuple[int, int]]()
    for pause, amount in steps:
        clock.now += pause
        if not bucket.wait():
            bucket.take(amount)
            taken.append((clock.now, amount))
    for first in range(len(taken)):
        total = 0
        for moment, amount in taken[first:]:
            seconds = (moment - taken[first][0]) / SECOND
            assert total <= rate * (1 + seconds) * (1 + 1e-6) + 1e-6, "what came before it"
            total += amount


@given(rates, steps)
def test_who_waits_as_told_passes_and_not_before(rate: float, steps: list[tuple[int, int]]) -> None:
    clock = Clock()
    bucket = Bucket(rate, clock)
    for pause, amount in steps:
        clock.now += pause
        if wait := bucket.wait():
            clock.now += wait - 1
            assert bucket.wait() == 1
            clock.now += 1
        assert bucket.wait() == 0
        bucket.take(amount)


@pytest.mark.parametrize(("rate", "at_once"), [(1, 1), (3, 3), (10, 10), (7.5, 7), (0.5, 1)])
def test_a_second_s_worth_may_come_at_once(rate: float, at_once: int) -> None:
    bucket = Bucket(rate, Clock())
    passed = 0
    while not bucket.wait():
        bucket.take(1)
        passed += 1
    assert passed == at_once


def test_a_request_larger_than_a_second_s_worth_passes_and_is_paid_afterwards() -> None:
    clock = Clock()
    caller = Caller(key(tokens_per_second=100), Limits(), clock)
    caller.charge(1000)
    with pytest.raises(Overloaded) as refused:
        caller.charge(1)
    assert refused.value.retry_after == pytest.approx(9.01)
    clock.now += int(9.01 * SECOND)
    caller.charge(1)


def test_a_key_s_own_limits_come_before_the_server_s() -> None:
    with ExitStack() as running:
        caller = Caller(key(concurrency=2), Limits(concurrency=1))
        running.enter_context(caller.admitted())
        running.enter_context(caller.admitted())
        with pytest.raises(Overloaded, match="limit is 2"):
            running.enter_context(caller.admitted())
    with Caller(key(), Limits(concurrency=1)).admitted() as _, caller.admitted():
        pass


def test_what_is_refused_takes_nothing() -> None:
    clock = Clock()
    caller = Caller(key(requests_per_second=1, concurrency=1), Limits(), clock)
    with caller.admitted():
        clock.now += SECOND
        for _ in range(9):
            with pytest.raises(Overloaded, match="running"), caller.admitted():
                pass
    with caller.admitted():
        pass


def test_tokens_are_charged_to_whoever_is_being_answered() -> None:
    clock = Clock()
    one, two = (Caller(key(tokens_per_second=1), Limits(), clock) for _ in range(2))
    charge(10**9)  # This concurrency belongs to no key.
    with one.admitted():
        charge(5)
        with two.admitted():
            charge(1)
        with pytest.raises(Overloaded, match="'a' has used up its 1 tokens per second"):
            charge(1)


@pytest.fixture
def limited(make_service: Callable[..., Service], tmp_path: Path) -> Limited:
    def limited(**options: Any) -> tuple[TestClient, Clock]:
        file, clock = tmp_path / "keys.json", Clock()
        with changed_keys(file) as keys:
            keys.append(key())
        app = create_app(make_service(api_keys_file=file, **options), clock)
        return TestClient(app, headers={"authorization": "Bearer secret"}), clock

    return limited


def test_requests_a_second_over_http(limited: Limited, wait_until_ready: Wait) -> None:
    client, clock = limited(key_requests_per_second=2)
    with client:
        wait_until_ready(client)
        assert [client.post("/embed", json={"inputs": "a"}).status_code for _ in range(3)] == [200, 200, 429]
        refused = client.post("/v1/embeddings", json={"input": "a"})
        assert refused.json()["error"]["type"] == "rate_limit_error"
        assert (refused.headers["retry-after"], refused.headers["retry-after-ms"]) == ("1", "500")
        assert refused.headers["x-request-id"]
        clock.now += (int(refused.headers["retry-after-ms"]) - 1) * SECOND // 1000
        assert client.post("/embed", json={"inputs": "a"}).status_code == 429
        clock.now += SECOND // 1000
        assert client.post("/embed", json={"inputs": "a"}).status_code == 200


def test_tokens_a_second_over_http(limited: Limited, wait_until_ready: Wait) -> None:
    """Charge the tokens of the texts on every route. GET requests cost nothing."""
    client, clock = limited(key_tokens_per_second=10)
    body = {"inputs": ["one two three four"] * 5}
    with client:
        wait_until_ready(client)
        tokens = int(client.post("/embed", json=body).headers["x-compute-tokens"])
        refused = client.post("/similarity", json={"inputs": {"source_sentence": "a", "sentences": ["b"]}})
        assert (refused.status_code, refused.json()["error_type"]) == (429, "Overloaded")
        assert int(refused.headers["retry-after-ms"]) == 1000 * (tokens - 9) / 10
        assert client.get("/info").status_code == 200
        clock.now += int(refused.headers["retry-after"]) * SECOND
        assert client.post("/embed", json=body).status_code == 200


@pytest.mark.parametrize(
    ("path", "body"), [("/tokenize", {"inputs": ["one two three four"] * 5}), ("/decode", {"ids": [list(range(30))]})]
)
def test_the_tokenizer_costs_the_tokens_that_it_reads(
    limited: Limited, wait_until_ready: Wait, path: str, body: dict[str, Any]
) -> None:
    client, clock = limited(key_tokens_per_second=10)
    with client:
        wait_until_ready(client)
        assert client.post(path, json=body).status_code == 200
        refused = client.post(path, json=body)
        assert (refused.status_code, refused.headers["retry-after"]) == (429, "3"), "30 of them, and 10 were there"
        clock.now += 3 * SECOND
        assert client.post(path, json=body).status_code == 200


def test_an_upload_asks_once_and_what_its_later_slices_take_is_owed(limited: Limited, wait_until_ready: Wait) -> None:
    """Charge an upload once, and let its later parts owe tokens, because refusing one would restart the upload."""
    client, clock = limited(key_tokens_per_second=100)
    long, path = " ".join(f"w{i}" for i in range(20 * SLICE_TEXTS)), "/corpora/c/documents"
    with client:
        wait_until_ready(client)
        client.put("/corpora/c").raise_for_status()
        answer = client.post(path, params={"chunk_tokens": 16}, json={"documents": [{"id": "a", "text": long}]})
        assert answer.status_code == 200, answer.text
        assert client.get("/corpora/c").json()["passages"] > SLICE_TEXTS
        refused = client.post(path, json={"documents": [{"id": "b", "text": "b"}]})
        assert refused.status_code == 429
        assert int(refused.headers["retry-after"]) > 20 * SLICE_TEXTS / 100, "all of them are owed"
        clock.now += (int(refused.headers["retry-after"]) + 1) * SECOND
        assert client.post(path, json={"documents": [{"id": "b", "text": "b"}]}).status_code == 200


def test_requests_at_once_over_http(limited: Limited, wait_until_ready: Wait) -> None:
    engine = Gate()
    engine.open.set()
    client, _ = limited(model=model(lambda _: engine), key_concurrency=1)
    with client, ThreadPoolExecutor(1) as pool:
        wait_until_ready(client)
        engine.open.clear()
        first = pool.submit(client.post, "/embed", json={"inputs": "a"})
        while "isosphere_queued_tokens 0.0" in client.get("/metrics").text:
            assert not first.done()
        second = client.get("/info")
        assert (second.status_code, second.headers["retry-after"]) == (429, "1")
        engine.open.set()
        assert first.result().status_code == 200
        assert client.get("/info").status_code == 200


@pytest.mark.parametrize(
    ("asked", "sent"),
    [
        ("POST search", {"json": {"queries": ["a", "b"], "mode": "lexical"}}),
        ("POST search", {"json": {"vector": [1.0] * DIM}}),
        ("GET documents", {"params": {"filter": '{"a": 1}'}}),
        ("GET fields", {}),
        ("GET map", {}),
        ("DELETE documents", {"json": {"filter": {"a": 1}}}),
    ],
)
def test_what_looks_through_a_corpus_costs_a_token_for_each_millisecond_of_its_thread(
    limited: Limited,
    wait_until_ready: Wait,
    monkeypatch: pytest.MonkeyPatch,
    asked: str,
    sent: dict[str, Any],
) -> None:
    client, clock = limited(key_tokens_per_second=100)
    method, what = asked.split()
    path = f"/corpora/c/{what}"
    with client:
        wait_until_ready(client)
        client.put("/corpora/c").raise_for_status()
        client.post("/corpora/c/documents", json={"documents": [{"text": "a"}]}).raise_for_status()
        clock.now += 9 * SECOND
        monkeypatch.setattr("serving.operations.threads.SLICE_SECONDS", 60)  # The clock is read twice.
        monkeypatch.setattr("serving.operations.threads.thread_time", count(step=0.5).__next__)
        assert client.request(method, path, **sent).status_code == 200
        refused = client.request(method, path, **sent)
        assert refused.status_code == 429, "the first took half a second of a thread, 500 tokens"
        assert int(refused.headers["retry-after-ms"]) == 1000 * (500 - 99) / 100
        assert client.get("/corpora/c").status_code == 200, "a look at one row is free"
        clock.now += 4 * SECOND
        assert client.request(method, path, **sent).status_code == 429
        clock.now += SECOND
        assert client.request(method, path, **sent).status_code == 200


def test_a_filter_is_paid_though_it_is_refused(
    limited: Limited, wait_until_ready: Wait, monkeypatch: pytest.MonkeyPatch
) -> None:
    client, clock = limited(key_tokens_per_second=100)
    with client:
        wait_until_ready(client)
        client.put("/corpora/c").raise_for_status()
        clock.now += 9 * SECOND
        monkeypatch.setattr("serving.operations.threads.SLICE_SECONDS", 60)  # The clock is read twice.
        monkeypatch.setattr("serving.operations.threads.thread_time", count(step=0.5).__next__)
        wrong = {"a": {"$in": [*range(LARGE)]}, "b": {"$gt": []}}
        assert client.post("/corpora/c/search", json={"query": "a", "filter": wrong}).status_code == 422
        assert client.post("/corpora/c/search", json={"vector": [1.0] * DIM}).status_code == 429


def test_a_search_by_text_is_paid_by_its_tokens_first_and_refused_by_them_alone(
    limited: Limited, wait_until_ready: Wait
) -> None:
    """Charge a search's text first. The embedding may cost more than a second's amount, and the ranking is owed."""
    client, clock = limited(key_tokens_per_second=1)
    with client:
        wait_until_ready(client)
        client.put("/corpora/c").raise_for_status()
        client.post("/corpora/c/documents", json={"documents": [{"text": "a"}]}).raise_for_status()
        clock.now += 99 * SECOND
        assert client.post("/corpora/c/search", json={"query": "one two three", "filter": {"a": 1}}).status_code == 200
        assert client.post("/corpora/c/search", json={"query": "a"}).status_code == 429


@pytest.mark.parametrize(("cpu_quota", "threads"), [(1, 1), (2, 1), (6, 3), (64, 4)])
def test_a_key_reads_in_half_as_many_threads_as_there_are_cpus(
    monkeypatch: pytest.MonkeyPatch, cpu_quota: int, threads: int
) -> None:
    monkeypatch.setattr("models.cpus.available", lambda: cpu_quota)
    assert Settings().key_limits.threads == threads
    assert Settings(key_threads=9).key_limits.threads == 9


def test_slow_searches_of_one_key_leave_threads_for_another(
    make_service: Callable[..., Service], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wait_until_ready: Wait
) -> None:
    file, many = tmp_path / "keys.json", 16
    with changed_keys(file) as keys:
        keys += [Key(name=name, sha256=digest(name), scopes=("read", "write")) for name in ("greedy", "modest")]
    begun, finish, search = threading.Event(), threading.Event(), Corpora.search

    def slow(corpora: Corpora, name: str, queries: Any, wanted: SearchOptions, *arguments: Any) -> Any:
        if wanted.where:
            begun.set()
            assert finish.wait(PATIENCE)
        return search(corpora, name, queries, wanted, *arguments)

    monkeypatch.setattr(Corpora, "search", slow)
    app = create_app(make_service(api_keys_file=file))
    with TestClient(app, headers={"authorization": "Bearer modest"}) as client, ThreadPoolExecutor(many) as pool:
        wait_until_ready(client)
        client.put("/corpora/c").raise_for_status()
        body = {"query": "a", "mode": "lexical", "filter": {"a": 1}}
        greedy = {"authorization": "Bearer greedy"}
        searches = [pool.submit(client.post, "/corpora/c/search", json=body, headers=greedy) for _ in range(many)]
        assert begun.wait(PATIENCE)
        try:
            assert client.post("/corpora/c/search", json={"query": "a"}).status_code == 200
            assert not any(search.done() for search in searches)
        finally:
            finish.set()
        assert [search.result().status_code for search in searches] == [200] * many
