"""Tests of compressed bodies: contents are read, and bodies that become too large are refused."""

from __future__ import annotations

import gzip
import json
import random
import sys
import tracemalloc
from collections.abc import Callable
from typing import Any

import pytest
from fastapi.testclient import TestClient
from hypothesis import given
from hypothesis import strategies as st

from serving.errors import Malformed, ServiceError, TooLarge
from serving.operations.encoding import CODINGS, MAX_PARTS, MAX_RATIO, PIECE, RATIO_EXEMPT_BYTES, inflated

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

PACK: dict[str, Callable[[bytes], bytes]] = {"gzip": gzip.compress, "zstd": zstd.compress}
LIMIT = 32_000_000
BODY = json.dumps({"inputs": ["a text", "another"]}).encode()
Refuses = Callable[..., None]


def headers(coding: str) -> dict[str, str]:
    return {"content-type": "application/json", "content-encoding": coding}


@pytest.mark.parametrize("coding", CODINGS)
@given(body=st.binary(max_size=2000), parts=st.integers(1, 3))
def test_unpacking_is_the_inverse_of_packing(coding: str, body: bytes, parts: int) -> None:
    assert inflated(PACK[coding](body) * parts, coding, LIMIT) == body * parts, "members and frames may follow others"


EMPTY = [("gzip", gzip.compress(b"")), ("zstd", zstd.compress(b"")), ("zstd", b"\x50\x2a\x4d\x18" + bytes(4))]
"""Empty bodies. The last one is a skippable frame (RFC 8878, 3.1.2)."""


@pytest.mark.parametrize(("coding", "part"), EMPTY, ids=["members", "frames", "skippable"])
def test_parts_that_hold_nothing_come_to_an_end(coding: str, part: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    assert inflated(PACK[coding](b"a") + part * (MAX_PARTS - 1), coding, LIMIT) == b"a"
    begun, begin = 0, CODINGS[coding]

    def counted() -> Any:
        nonlocal begun
        begun += 1
        return begin()

    monkeypatch.setitem(CODINGS, coding, counted)
    with pytest.raises(TooLarge, match=f"more than {MAX_PARTS} members or frames"):
        inflated(part * 20 * MAX_PARTS, coding, LIMIT)
    assert begun == MAX_PARTS


@pytest.mark.parametrize("coding", CODINGS)
@given(seed=st.integers(0, 255), sizes=st.lists(st.sampled_from([0, 1, PIECE - 1, PIECE, 3 * PIECE]), max_size=4))
def test_parts_longer_than_a_piece_are_whole(coding: str, seed: int, sizes: list[int]) -> None:
    """Send incompressible bytes, so that a part can end anywhere in the data that are read."""
    bodies = [random.Random(seed).randbytes(size) for size in sizes]
    assert inflated(b"".join(map(PACK[coding], bodies)), coding, LIMIT) == b"".join(bodies)
    padded = b"".join(PACK[coding](body) + bytes(seed * PIECE // 64) for body in bodies)
    assert inflated(padded, coding, LIMIT) == b"".join(bodies)


@pytest.mark.parametrize("coding", CODINGS)
@given(body=st.binary(min_size=1, max_size=500), data=st.data())
def test_what_is_cut_short_is_never_taken_for_whole(coding: str, body: bytes, data: st.DataObject) -> None:
    """Refuse a truncated body, because half of an upload of lines would also be valid lines."""
    packed = PACK[coding](body)
    cut = data.draw(st.integers(1, len(packed) - 1))
    with pytest.raises(Malformed, match=f"the body is not {coding}: "):
        inflated(packed[:cut], coding, LIMIT)


@pytest.mark.parametrize("coding", CODINGS)
@given(st.binary(max_size=200))
def test_any_bytes_are_unpacked_or_refused(coding: str, body: bytes) -> None:
    try:
        inflated(body, coding, LIMIT)
    except ServiceError as error:
        assert error.status == 400


@pytest.mark.parametrize("coding", CODINGS)
def test_a_bomb_is_refused_before_it_is_in_memory(coding: str) -> None:
    bomb = PACK[coding](bytes(100_000_000))
    tracemalloc.start()
    try:
        with pytest.raises(TooLarge, match=f"more than {MAX_RATIO} times"):
            inflated(bomb, coding, LIMIT)
        assert tracemalloc.get_traced_memory()[1] < MAX_RATIO * len(bomb) + 20_000_000
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("coding", CODINGS)
def test_the_bound_of_a_body_is_that_of_what_it_holds(coding: str) -> None:
    body = bytes(range(256)) * 4
    assert inflated(PACK[coding](body), coding, len(body)) == body
    with pytest.raises(TooLarge, match="more than the 1023 bytes"):
        inflated(PACK[coding](body), coding, len(body) - 1)


@pytest.mark.parametrize("coding", CODINGS)
def test_the_ratio_of_a_small_body_does_not_matter(coding: str) -> None:
    body = bytes(RATIO_EXEMPT_BYTES)
    assert len(PACK[coding](body)) * MAX_RATIO < len(body)
    assert inflated(PACK[coding](body), coding, LIMIT) == body


@pytest.mark.parametrize("coding", ["gzip", "zstd", "GZIP", "x-gzip"])
@pytest.mark.parametrize("path", ["/embed", "/"])
def test_compressed_requests(client: TestClient, coding: str, path: str) -> None:
    packed = PACK[coding.lower().removeprefix("x-")](BODY)
    answer = client.post(path, content=packed, headers=headers(coding))
    assert answer.json() == client.post("/embed", content=BODY, headers=headers("identity")).json()


def test_compressed_uploads(client: TestClient) -> None:
    client.put("/corpora/c")
    lines = b"\n".join(json.dumps({"text": f"text {i}"}).encode() for i in range(50))
    media = {"content-type": "application/x-ndjson", "content-encoding": "gzip"}
    assert client.post("/corpora/c/documents", content=gzip.compress(lines), headers=media).json()["count"] == 50


@pytest.mark.parametrize(
    ("refusal", "coding", "content"),
    [
        ((415, "Validation", "content-encoding: 'br' is not supported, only gzip and zstd"), "br", b"x"),
        ((415, "Validation", "content-encoding: 'gzip, gzip' is not supported"), "gzip, gzip", b"x"),
        ((400, "Validation", "the body is not gzip"), "gzip", BODY),
        ((400, "Validation", "the body is not zstd"), "zstd", BODY),
        (
            (413, "Validation", "unpacks to more than 100 times as much"),
            "gzip",
            gzip.compress(bytes(20_000_000), mtime=0),
        ),
        ((400, "Validation", "not JSON"), "gzip", gzip.compress(b"{", mtime=0)),
    ],
)
def test_refusals(refuses: Refuses, refusal: tuple[int, str, str], coding: str, content: bytes) -> None:
    refuses(refusal, "POST", "/embed", content=content, headers=headers(coding))


def test_v1_is_told_in_its_own_shape(client: TestClient) -> None:
    answer = client.post("/v1/embeddings", content=b"x", headers=headers("br"))
    error: dict[str, Any] = answer.json()["error"]
    assert (answer.status_code, error["param"]) == (415, "content-encoding")
