"""A running server as an encoder and as a search: Isosphere's own, or any that answers `/embed` and `/info` alike."""

from __future__ import annotations

import base64
import time
import uuid
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any

import httpx
import numpy as np
from numpy.typing import NDArray

from training.evaluation.beir import Collection
from training.evaluation.retrieval import DEPTH
from training.evaluation.vectors import EvaluationError

TEXTS = 32
"""Of one request: what every server with this route takes."""
DOCUMENTS = 256
QUERIES = 64
PATIENCE = 120.0
"""Seconds for an answer, and for a server that is busy to take a request."""
BUSY = frozenset((429, 503))


class Server:
    """What a URL answers.

    Raises:
        EvaluationError: nobody answers there, or not as such a server does; the message names URL and route.
    """

    def __init__(self, url: str, *, key: str | None = None, transport: httpx.BaseTransport | None = None) -> None:
        self.url = url.rstrip("/")
        headers = {"authorization": f"Bearer {key}"} if key else {}
        self._client = httpx.Client(base_url=self.url, headers=headers, timeout=PATIENCE, transport=transport)
        try:
            self.info: dict[str, Any] = self._ask("GET", "/info")
        except EvaluationError:
            self.close()
            raise

    def close(self) -> None:
        """Ends the connections."""
        self._client.close()

    def encode(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """Unit vectors (N, D), `TEXTS` of them a request."""
        vectors = [vector for batch in _batches(texts, TEXTS) for vector in self._embed(batch)]
        return np.array(vectors, dtype=np.float32)

    def rankings(self, collection: Collection) -> dict[str, list[str]]:
        """The nearest documents of each query by the server's own search, in a corpus that is deleted afterwards."""
        corpus = f"/corpora/evaluation-{uuid.uuid4().hex[:12]}"
        self._ask("PUT", corpus, {})
        try:
            for batch in _batches(list(collection.documents.items()), DOCUMENTS):
                documents = [{"id": identity, "text": text} for identity, text in batch]
                self._ask("POST", f"{corpus}/documents", {"documents": documents})
            found: dict[str, list[str]] = {}
            for asked in _batches(list(collection.queries.items()), QUERIES):
                wanted = {"queries": [text for _, text in asked], "k": DEPTH + 1, "with_text": False}
                answers = self._ask("POST", f"{corpus}/search", wanted)["results"]
                for (identity, _), answer in zip(asked, answers, strict=True):
                    hits = [hit["id"] for hit in answer["hits"] if hit["id"] != identity]
                    found[identity] = hits[:DEPTH]
            return found
        finally:
            self._ask("DELETE", corpus)

    def _embed(self, texts: Sequence[str]) -> Iterator[Any]:
        """As base64 where the server knows it, else as lists of numbers."""
        answer = self._ask("POST", "/embed", {"inputs": list(texts), "encoding_format": "base64"})
        if not isinstance(answer, list) or len(answer) != len(texts):
            raise EvaluationError(f"{self.url}/embed: {len(texts)} texts did not give as many vectors")
        for vector in answer:
            yield np.frombuffer(base64.b64decode(vector), dtype="<f4") if isinstance(vector, str) else vector

    def _ask(self, method: str, route: str, body: Any = None) -> Any:
        """The JSON of an answer; a server that is busy is asked again when it says so, for `PATIENCE` seconds."""
        until = time.monotonic() + PATIENCE
        while True:
            try:
                answer = self._client.request(method, route, json=body)
            except httpx.HTTPError as error:
                raise EvaluationError(f"{self.url}{route}: {error or type(error).__name__}") from error
            if answer.status_code not in BUSY or time.monotonic() > until:
                break
            time.sleep(float(answer.headers.get("retry-after", 1)))
        if not answer.is_success:
            raise EvaluationError(f"{self.url}{route}: {answer.status_code} {answer.text[:200]}")
        try:
            return answer.json() if answer.content else None
        except ValueError as error:
            raise EvaluationError(f"{self.url}{route}: the answer is not JSON") from error


def _batches(items: Sequence[Any], size: int) -> Iterator[list[Any]]:
    rest = iter(items)
    while batch := list(islice(rest, size)):
        yield batch
