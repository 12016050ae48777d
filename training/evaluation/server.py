"""Evaluation of a running server of Isosphere, or of any server with the same routes `/embed` and `/info`."""

from __future__ import annotations

import base64
import json
import logging
import math
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from itertools import islice
from typing import Any

import httpx
import numpy as np
from numpy.typing import NDArray

from models.remotes.base import secrets, without_secrets, without_user
from training.evaluation.beir import Collection
from training.evaluation.retrieval import DEPTH
from training.evaluation.vectors import EvaluationError

log = logging.getLogger(__name__)

TEXTS = 32
"""Number of texts per request. Every server with `/embed` accepts this many."""
DOCUMENTS = 256
QUERIES = 64
PATIENCE = 120.0
"""Maximum seconds to wait for an answer, and for a busy server to accept a request."""
PAUSE = 0.05
"""Minimum seconds between two requests to a busy server, and between two requests for the state of a job."""
BUSY = frozenset((429, 503))
INFO = {
    "model_id": str,
    "objective": str,
    "backbone": str,
    "fingerprint": str,
    "model_type": dict,
    "dim": int,
    "max_input_length": int,
    "engine": str,
    "precision": str,
    "model_dtype": str,
    "device": str,
}
"""Fields that are read from `/info`. Each may be null or absent."""
KINDS = {str: "text", int: "a whole number", dict: "an object"}


class Server:
    """Client of an embedding server.

    A user and a password in the URL are sent, but never stored or printed.

    Raises:
        EvaluationError: the server doesn't answer or lacks the interface; the message names URL and route.
    """

    def __init__(self, url: str, *, key: str | None = None, transport: httpx.BaseTransport | None = None) -> None:
        self.url = without_user(url).rstrip("/")
        self._secrets = secrets(url)
        headers = {"authorization": f"Bearer {key}"} if key else {}
        try:
            self._client = httpx.Client(base_url=url, headers=headers, timeout=PATIENCE, transport=transport)
        except httpx.InvalidURL as error:
            raise EvaluationError(f"{self.url}/info: {without_secrets(str(error), self._secrets)}") from error
        try:
            self.info = self._described(self._ask("GET", "/info"))
        except EvaluationError:
            self.close()
            raise

    def close(self) -> None:
        self._client.close()

    def encode(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """Encode texts to unit vectors (N, D), with `TEXTS` texts per request."""
        vectors = [vector for batch in _batches(texts, TEXTS) for vector in self._embed(batch)]
        widths = sorted({len(vector) for vector in vectors})
        if len(widths) > 1:
            raise EvaluationError(f"{self.url}/embed: vectors of different widths, {widths[0]} and {widths[-1]}")
        return np.stack(vectors) if vectors else np.empty((0, 0), dtype=np.float32)

    def rankings(self, collection: Collection) -> dict[str, list[str]]:
        """Rank documents with the server's own search.

        The documents are uploaded to a temporary corpus, which is deleted afterwards.
        """
        corpus = f"/corpora/evaluation-{uuid.uuid4().hex[:12]}"
        self._ask("PUT", corpus, {})
        try:
            for batch in _batches(list(collection.documents.items()), DOCUMENTS):
                documents = [{"id": identity, "text": text} for identity, text in batch]
                self._upload(f"{corpus}/documents", documents)
            found = {
                identity: hits
                for asked in _batches(list(collection.queries.items()), QUERIES)
                for identity, hits in self._search(corpus, asked)
            }
        except BaseException:
            try:
                self._ask("DELETE", corpus)
            except EvaluationError as error:
                log.warning("the temporary corpus could not be deleted: %s", error)
            raise
        self._ask("DELETE", corpus)
        return found

    def _upload(self, route: str, documents: Sequence[Mapping[str, str]]) -> None:
        """Store documents. If the server makes a job of the upload, wait until the job has ended."""
        answer = self._ask("POST", route, {"documents": documents})
        job: dict[str, Any] = answer if isinstance(answer, dict) and "state" in answer else {"state": "succeeded"}
        while job["state"] in ("queued", "running"):
            time.sleep(PAUSE)
            job = self._ask("GET", f"/jobs/{job['id']}")
        if job["state"] != "succeeded":
            reasons = "; ".join(str(each["error"]) for each in job["errors"])
            ended = f"{self.url}{route}: the job {job['id']} has the state {job['state']!r}. {reasons}"
            raise EvaluationError(ended.rstrip())

    def _search(self, corpus: str, asked: Sequence[tuple[str, str]]) -> Iterator[tuple[str, list[str]]]:
        """Yield each query's id with the ids of its hits, without a hit that has the query's own id."""
        wanted = {"queries": [text for _, text in asked], "k": DEPTH + 1, "with_text": False}
        answer = self._ask("POST", f"{corpus}/search", wanted)
        try:
            ranked = [[hit["id"] for hit in result["hits"]] for result in answer["results"]]
        except (KeyError, TypeError) as error:
            raise EvaluationError(f"{self.url}{corpus}/search: the answer has no hits with ids") from error
        if len(ranked) != len(asked):
            raise EvaluationError(f"{self.url}{corpus}/search: {len(asked)} queries gave {len(ranked)} results")
        for (identity, _), hits in zip(asked, ranked, strict=True):
            yield identity, [hit for hit in hits if hit != identity][:DEPTH]

    def _embed(self, texts: Sequence[str]) -> Iterator[NDArray[np.float32]]:
        """Yield the vector of each text.

        The request asks for base64. A server that does not know this option answers with lists of numbers.
        """
        answer = self._ask("POST", "/embed", {"inputs": list(texts), "encoding_format": "base64"})
        if not isinstance(answer, list) or len(answer) != len(texts):
            raise EvaluationError(
                f"{self.url}/embed: {len(texts)} texts sent, but the answer has another number of vectors"
            )
        for text, vector in zip(texts, answer, strict=True):
            try:
                yield _vector(vector)
            except (ValueError, OverflowError) as error:
                raise EvaluationError(f"{self.url}/embed: no vector for {text[:50]!r}: {error}") from error

    def _described(self, info: object) -> dict[str, Any]:
        """Check `info`, the server's answer to `/info`, and return it.

        Raises:
            EvaluationError: `info` is not an object, a field has another type than in `INFO`, or the description of the
                embedding in `model_type` is malformed.
        """
        where = f"{self.url}/info"
        if not isinstance(info, dict):
            raise EvaluationError(f"{where}: expected an object, got {json.dumps(info)[:50]}")
        for name, kind in INFO.items():
            if not isinstance(info.get(name), kind | None):
                raise EvaluationError(f"{where}: {name} is {json.dumps(info[name])[:50]}, not {KINDS[kind]}")
        embedding = (info.get("model_type") or {}).get("embedding")
        if embedding is not None and not (
            isinstance(embedding, dict) and isinstance(embedding.get("pooling"), str | None)
        ):
            raise EvaluationError(f"{where}: model_type embedding is {json.dumps(embedding)[:50]}, it has no pooling")
        return info

    def _ask(self, method: str, route: str, body: Any = None) -> Any:
        """Send a request and return the JSON answer. If the server is busy, retry for up to `PATIENCE` seconds."""
        until = time.monotonic() + PATIENCE
        while True:
            try:
                answer = self._client.request(method, route, json=body)
            except (httpx.HTTPError, httpx.InvalidURL) as error:
                said = without_secrets(str(error), self._secrets) or type(error).__name__
                raise EvaluationError(f"{self.url}{route}: {said}") from error
            if answer.status_code not in BUSY:
                break
            try:
                pause = max(PAUSE, _seconds(answer.headers.get("retry-after", "1")))
            except ValueError as error:
                raise EvaluationError(f"{self.url}{route}: {answer.status_code} with {error}") from error
            if time.monotonic() + pause > until:
                break
            time.sleep(pause)
        if not answer.is_success:
            raise EvaluationError(
                f"{self.url}{route}: {answer.status_code} {without_secrets(answer.text, self._secrets)[:200]}"
            )
        try:
            return answer.json() if answer.content else None
        except ValueError as error:
            raise EvaluationError(f"{self.url}{route}: the answer is not JSON") from error


def _vector(given: object) -> NDArray[np.float32]:
    """Decode one vector (D,) of a server's answer.

    Raises:
        ValueError: `given` is neither base64 of float32 nor a list of numbers, or it is empty.
        OverflowError: a number is beyond float64.
    """
    if isinstance(given, str):
        vector = np.frombuffer(base64.b64decode(given, validate=True), dtype="<f4").astype(np.float32)
    elif isinstance(given, list) and all(type(each) in (int, float) for each in given):
        with np.errstate(over="ignore"):  # Numbers beyond float32 become infinite and are rejected later.
            vector = np.array(given, dtype=np.float64).astype(np.float32)
    else:
        raise ValueError("neither base64 nor a list of numbers")
    if not len(vector):
        raise ValueError("it is empty")
    return vector


def _seconds(said: str) -> float:
    """Return the seconds to wait according to a Retry-After header (RFC 9110, section 10.2.3).

    The header is a number of seconds or a date. A past date means 0.

    Raises:
        ValueError: the header is neither a number nor a date.
    """
    try:
        seconds = float(said)
    except ValueError:
        try:
            date = parsedate_to_datetime(said).replace(tzinfo=UTC)
        except (ValueError, OverflowError):
            raise ValueError(f"Retry-After {said!r}, neither seconds nor a date") from None
        return max(0.0, (date - datetime.now(UTC)).total_seconds())
    if not (seconds >= 0 and math.isfinite(seconds)):
        raise ValueError(f"Retry-After {said!r}, neither seconds nor a date")
    return seconds


def _batches(items: Sequence[Any], size: int) -> Iterator[list[Any]]:
    rest = iter(items)
    while batch := list(islice(rest, size)):
        yield batch
