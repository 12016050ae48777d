"""Tests of JSON bodies: the values equal the standard library's, and the number of parts is limited."""

from __future__ import annotations

import asyncio
import gc
import json
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractAsyncContextManager
from typing import Any

import orjson
import pytest
from fastapi.testclient import TestClient
from hypothesis import given
from hypothesis import strategies as st

from serving.api.routing.request_body import MANY_CONTAINERS
from serving.errors import Malformed, TooLarge
from serving.operations import json_body
from serving.operations.json_body import (
    LARGE,
    LEAST,
    MAX_CONTAINERS,
    MOST,
    check_containers,
    parse_exact,
    parse_json,
)
from serving.operations.threads import CorpusThreads
from tests.conftest import PATIENCE

READERS = [parse_json, parse_exact]
Read = Callable[[bytes], Any]
texts = st.text(st.sampled_from('[]{}"\\\\aé\n'), max_size=30)
values = st.recursive(
    st.none() | st.integers(-(2**60), 2**60) | texts,
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(texts, inner, max_size=5),
    max_leaves=30,
)


def containers(value: Any) -> int:
    """Count the lists and objects in a simple way."""
    if isinstance(value, dict):
        return 1 + sum(map(containers, value.values()))
    return 1 + sum(map(containers, value)) if isinstance(value, list) else 0


@given(value=values, ascii=st.booleans())
def test_lists_and_objects_are_counted_and_brackets_in_texts_are_not(value: Any, ascii: bool) -> None:
    limit = containers(value)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(json_body, "SLICE", 3)
        check_containers(json.dumps(value, ensure_ascii=ascii).encode(), limit, "request")
        if limit:
            with pytest.raises(TooLarge, match=f"^more than {limit - 1} lists and objects"):
                check_containers(json.dumps(value, ensure_ascii=ascii).encode(), limit - 1, "request")


def commas(value: Any) -> int:
    """Count the commas between values in a simple way."""
    inside = [*value.values()] if isinstance(value, dict) else value if isinstance(value, list) else []
    return max(0, len(inside) - 1) + sum(map(commas, inside))


@given(value=values, ascii=st.booleans())
def test_values_are_counted_and_commas_in_texts_are_not(value: Any, ascii: bool) -> None:
    limit, body = commas(value), json.dumps([value, ",[,"], ensure_ascii=ascii).encode()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(json_body, "SLICE", 3)
        patch.setattr(json_body, "LARGE", 0)
        patch.setattr(json_body, "MAX_VALUES", 1)
        parse_json(body, tokens=limit)
        if limit:
            with pytest.raises(TooLarge, match=f"^more than {limit} values"):
                parse_json(body, tokens=limit - 1)


def test_backslashes_cost_about_as_much_as_letters() -> None:
    def cost(letters: bytes) -> float:
        body, began = b'"' + letters * 2_000_000 + b'"', time.process_time()
        check_containers(body, 1, "request")
        return time.process_time() - began

    assert min(cost(rb"\\") for _ in range(3)) < 10 * max(cost(b"ab") for _ in range(3))


@pytest.mark.parametrize("read", READERS)
@given(value=values)
def test_a_large_body_is_read_as_a_small_one(read: Read, value: Any) -> None:
    body = json.dumps(value).encode()
    assert read(body) == read(b" " * LARGE + body) == value


@pytest.mark.parametrize("read", READERS)
@pytest.mark.parametrize("digits", [20, 639, 640, 5000])
def test_an_integer_however_long_is_one_that_does_not_fit(read: Read, digits: int) -> None:
    for sign, compare in (("", int.__gt__), ("-", int.__lt__)):
        value = read(f"[NaN, {sign}{'9' * digits}]".encode())[1]
        assert compare(value, MOST if not sign else LEAST)


@pytest.mark.parametrize("read", READERS)
@pytest.mark.parametrize("junk", [b"[],", b'{"a":0},', b"[NaN],"])
def test_too_many_are_refused_before_they_are_made(read: Read, junk: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(json_body, "MAX_CONTAINERS", 100_000)
    assert len(read(b"[" + junk * 99_999 + b"0]")) == 100_000
    for name in ("_read", "_read_fast"):
        monkeypatch.setattr(json_body, name, lambda _: pytest.fail("it was read"))
    with pytest.raises(TooLarge, match="more than 100000 lists and objects"):
        read(b"[" + junk * 100_000 + b"0]")


@pytest.mark.parametrize("junk", [b"1", b"1.5", b"NaN", b'"a"', b'"\\ud800"'])
def test_what_nobody_reads_is_not_parsed_if_it_is_too_much(
    client: TestClient, refuses: Callable[..., None], junk: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("_read", "_read_fast"):
        monkeypatch.setattr(json_body, name, lambda _: pytest.fail("it was read"))
    body = b'{"inputs": "a", "ignored": [' + (junk + b",") * 550_000 + b'0], "more": 1}'
    refusal = (413, "Validation", "more than 500000 values, the maximum of one request")
    refuses(refusal, "POST", "/embed", content=body, headers={"content-type": "application/json"})


def test_a_large_body_is_parsed_off_the_event_loop(client: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    """Check that `/livez`, which uses the event loop, does not wait for a large body."""
    where: list[tuple[int, bool]] = []
    read = json_body._read_fast

    def noted(body: bytes) -> Any:
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            where.append((len(body), False))
        else:
            where.append((len(body), True))
        return read(body)

    monkeypatch.setattr(json_body, "_read_fast", noted)
    client.put("/corpora/c")
    for path in ("/embed", "/corpora/c/search", "/v1/embeddings"):
        asked = {"query": "a"} if "search" in path else {"inputs": "a", "input": "a"}
        for size in (0, LARGE):
            body = json.dumps(asked).encode() + b" " * size
            answer = client.post(path, content=body, headers={"content-type": "application/json"})
            assert answer.status_code == 200, answer.text
    assert [on_the_loop for size, on_the_loop in where if size >= LARGE] == [False] * 3
    assert [on_the_loop for size, on_the_loop in where if size < LARGE] == [True] * 3


@pytest.mark.parametrize("enabled", [True, False])
def test_the_garbage_collector_is_as_it_was(enabled: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Check the garbage collector, which is disabled only while a large body is read."""
    seen, read = list[bool](), orjson.loads

    def loads(body: bytes) -> Any:
        seen.append(gc.isenabled())
        return read(body)

    monkeypatch.setattr(orjson, "loads", loads)
    if not enabled:
        gc.disable()
    try:
        parse_json(b"[]")
        parse_json(b"[]" + b" " * LARGE)
        with pytest.raises(Malformed):
            parse_json(b"[" * LARGE)
        assert gc.isenabled() == enabled
    finally:
        gc.enable()
    assert seen[:2] == [enabled, False]


def test_the_garbage_collector_rests_until_the_last_thread_has_read(monkeypatch: pytest.MonkeyPatch) -> None:
    both, first_left, seen = threading.Barrier(2, timeout=PATIENCE), threading.Event(), list[bool]()

    def loads(body: bytes) -> Any:
        both.wait()
        if body.startswith(b"[1"):
            first_left.wait(PATIENCE)
            seen.append(gc.isenabled())
        return []

    monkeypatch.setattr(orjson, "loads", loads)
    with ThreadPoolExecutor(2) as threads:
        last = threads.submit(parse_json, b"[1]" + b" " * LARGE)
        threads.submit(parse_json, b"[2]" + b" " * LARGE).result(PATIENCE)
        first_left.set()
        last.result(PATIENCE)
    assert seen == [False] and gc.isenabled()


LISTS = b"[]," * (MAX_CONTAINERS + 1) + b"[]"


@pytest.mark.parametrize(
    ("path", "body", "media"),
    [
        ("/embed", b'{"inputs": "a", "ignored": [' + LISTS + b"]}", "application/json"),
        ("/corpora/c/documents", b'{"documents": [{"text": "a", "ignored": [' + LISTS + b"]}]}", "application/json"),
        (
            "/corpora/c/documents",
            (b'{"text": "a", "ignored": [' + LISTS[: 3 * MAX_CONTAINERS // 2] + b"0]}\n") * 3,
            "application/x-ndjson",
        ),
    ],
    ids=["texts", "documents", "lines"],
)
@pytest.mark.slow
def test_a_body_of_lists_is_a_413(
    refuses: Callable[..., None], client: TestClient, path: str, body: bytes, media: str
) -> None:
    client.put("/corpora/c")
    refuses(
        (413, "Validation", "lists and objects, the maximum of one"),
        "POST",
        path,
        content=body,
        headers={"content-type": media},
    )


def test_a_text_of_brackets_is_a_text(client: TestClient) -> None:
    assert client.post("/embed", json={"inputs": ["[{" * 400_000] * 2, "truncate": True}).status_code == 200


def test_only_bodies_with_many_lists_wait_for_each_other(client: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    held, hold = list[int](), CorpusThreads.containers

    def counted(threads: CorpusThreads) -> AbstractAsyncContextManager[None]:
        held.append(1)
        return hold(threads)

    monkeypatch.setattr(CorpusThreads, "containers", counted)
    for lists in (1, MANY_CONTAINERS):
        client.post("/embed", json={"inputs": "a", "unknown": [[]] * lists}).raise_for_status()
    assert len(held) == 1
