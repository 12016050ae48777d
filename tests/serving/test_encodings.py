"""Tests of quantised vectors: the values of `encoding_format` and `embedding_types` other than floats."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from fastapi.testclient import TestClient

from models.runtimes.base import Floats
from serving.app import create_app
from serving.inference.engines import ENGINES
from serving.inference.fake_engine import DIM, INT8_LIMIT
from serving.service import Service

TEXTS = ["one two three", "one two four", "something else altogether"]
MakeService = Callable[..., Service]
CODINGS = {"int8": np.int8, "uint8": np.uint8, "binary": np.int8, "ubinary": np.uint8}


def floats(client: TestClient, **options: Any) -> Floats:
    return np.array(client.post("/embed", json={"inputs": TEXTS, **options}).json(), dtype=np.float32)


def coded(client: TestClient, coding: str, **options: Any) -> Any:
    answer = client.post("/embed", json={"inputs": TEXTS, "encoding_format": coding, **options})
    assert answer.status_code == 200, answer.text
    return np.array(answer.json())


def test_int8_is_the_number_in_steps_of_the_calibrated_range(client: TestClient) -> None:
    unit = floats(client)
    expected = np.rint(unit * 127 / INT8_LIMIT).clip(-127, 127)
    assert np.array_equal(coded(client, "int8"), expected)
    assert np.array_equal(coded(client, "uint8"), expected + 128)


def test_the_limit_that_turns_codes_into_numbers_is_told(client: TestClient) -> None:
    assert client.get("/info").json()["int8_limit"] == INT8_LIMIT


def test_codes_have_nearly_the_cosines_of_the_vectors(client: TestClient) -> None:
    unit, codes = floats(client), coded(client, "int8").astype(float)
    codes /= np.linalg.norm(codes, axis=1, keepdims=True)
    assert np.abs(codes @ codes.T - unit @ unit.T).max() < 0.02


def test_bits_are_the_signs(client: TestClient) -> None:
    bits = np.unpackbits(coded(client, "ubinary").astype(np.uint8), axis=1)
    assert np.array_equal(bits.astype(bool), floats(client) > 0)
    assert np.array_equal(coded(client, "binary"), coded(client, "ubinary") - 128)


@pytest.mark.parametrize("coding", CODINGS)
def test_codes_of_fewer_dimensions_are_the_first_of_all_codes(client: TestClient, coding: str) -> None:
    whole, cut = coded(client, coding), coded(client, coding, dimensions=32)
    assert np.array_equal(cut, whole[:, : cut.shape[1]])
    assert cut.shape == (3, 4 if coding.endswith("binary") else 32)
    assert np.array_equal(coded(client, coding, normalize=False), whole), "codes are of the unit vector"


@pytest.mark.parametrize("coding", CODINGS)
def test_codes_come_as_raw_bytes_too(client: TestClient, coding: str) -> None:
    body = {"inputs": TEXTS, "encoding_format": coding.upper()}
    answer = client.post("/embed", json=body, headers={"accept": "application/octet-stream"})
    expected = coded(client, coding)
    assert answer.headers["x-embedding-dtype"] == np.dtype(CODINGS[coding]).name
    assert answer.headers["x-embedding-shape"] == "{},{}".format(*expected.shape)
    assert np.array_equal(np.frombuffer(answer.content, CODINGS[coding]).reshape(expected.shape), expected)


def test_floats_as_raw_bytes_say_so(client: TestClient) -> None:
    answer = client.post("/embed", json={"inputs": TEXTS}, headers={"accept": "application/octet-stream"})
    assert (answer.headers["x-embedding-dtype"], answer.headers["x-embedding-shape"]) == ("float32", f"3,{DIM}")


@pytest.mark.parametrize("coding", CODINGS)
def test_openai_takes_codes_too(client: TestClient, coding: str) -> None:
    data = client.post("/v1/embeddings", json={"input": TEXTS, "encoding_format": coding}).json()["data"]
    assert np.array_equal([one["embedding"] for one in data], coded(client, coding))


def test_a_bundle_without_a_range_says_how_to_get_one(
    make_service: MakeService, tmp_path: Any, wait_until_ready: Callable[[TestClient], None]
) -> None:
    service = make_service(replace(ENGINES["fake"](tmp_path), int8_limit=None))
    with TestClient(create_app(service)) as client:
        wait_until_ready(client)
        for coding in ("int8", "uint8"):
            for path, body in (
                ("/embed", {"inputs": TEXTS, "encoding_format": coding}),
                ("/v1/embeddings", {"input": TEXTS, "encoding_format": coding}),
                ("/v2/embed", {"texts": TEXTS, "embedding_types": ["float", coding]}),
            ):
                answer = client.post(path, json=body)
                assert answer.status_code == 422
                assert "isosphere export" in json.dumps(answer.json())
        assert coded(client, "ubinary").shape == (3, DIM // 8)


@pytest.mark.parametrize(
    ("widths", "warned"), [((), True), ((8, 32), False), ((32,), True), (range(1, DIM + 1), False)]
)
def test_who_was_trained_to_be_cut_is_cut_without_a_warning(
    make_service: MakeService, tmp_path: Any, wait_until_ready: Callable[[TestClient], None], widths: Any, warned: bool
) -> None:
    service = make_service(replace(ENGINES["fake"](tmp_path), matryoshka=widths))
    with TestClient(create_app(service)) as client:
        wait_until_ready(client)
        answer = client.post("/embed", json={"inputs": TEXTS, "dimensions": 8})
        assert ("x-embedding-warning" in answer.headers) == warned
        assert np.allclose(np.linalg.norm(answer.json(), axis=1), 1, atol=1e-6)
