"""Costly requests that a key with the scopes `read` and `write` over one corpus can send."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import sqlite3
import tarfile
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from backports import zstd

from serving.corpora.snapshots import CONTENT, MANIFEST
from serving.operations.bounds import MAX_COLUMN

CORPUS = "costly"
SEARCH, DOCUMENTS = f"/corpora/{CORPUS}/search", f"/corpora/{CORPUS}/documents"
WIDE = 160_000
"""Number of control characters in a text. Each of them takes six bytes in JSON."""
HUGE = 250_000_000
"""Characters of the text in a forged snapshot."""
UNPACKED = 31_000_000
"""Unpacked size in bytes of a packed body, which is nearly the maximum."""
JSON, LINES, ZSTD = ({"content-type": f"application/{name}"} for name in ("json", "x-ndjson", "zstd"))
HTML = {"content-type": "text/html"}
IDS = [str(number) for number in range(1_000)]
TAGGED = {"tags": {"$in": ["red"]}}
WORDS: Mapping[str, Any] = {"mode": "lexical", "k": 1}
NUMBER = "{number}"
"""Placeholder for a number that differs in each request. It can be in the path, a header or a short body."""


@dataclass(frozen=True)
class Costly:
    """A request that callers repeat as soon as it is answered."""

    method: str
    path: str
    content: bytes = b""
    headers: Mapping[str, str] = field(default_factory=dict)
    read: bool = True
    """True if callers read the answer."""

    def numbered(self, number: int) -> tuple[str, bytes, dict[str, str]]:
        """Return path, body and headers of one request, with its number inserted."""
        content = self.content.replace(NUMBER.encode(), b"%d" % number) if len(self.content) < 1000 else self.content
        path = self.path.replace(NUMBER, str(number))
        return path, content, {name: value.replace(NUMBER, str(number)) for name, value in self.headers.items()}


def requests(snapshot: bytes, job: str) -> dict[str, Costly]:
    """Return one costly request of every kind, by name. `snapshot` is a snapshot's content, and `job` a job's id."""
    pairs = [["red", str(number)] for number in range(33_000)]
    refused = "".join(json.dumps({"text": number}) + "\n" for number in range(100)).encode()
    skipping = f"{DOCUMENTS}?on_error=skip&text_column={'x' * MAX_COLUMN}"
    unpacked = b'{"inputs": "a", "unknown": "' + b"x" * UNPACKED + b'"}'
    page = "".join(f"<h2>{n}</h2><p>{'<b>word </b>' * 50}</p>" for n in range(300)).encode()
    numbers = b'{"inputs": "a", "unknown": [' + b"1," * 7_900_000 + b"1]}"
    elements = [{"tags": {"$elemMatch": {"$eq": number}}} for number in range(900)]
    words = " ".join(f"w{number % 997}" for number in range(15_000))
    return {
        "lists in a filter": _posted(SEARCH, query="a", filter={"tags": {"$in": pairs}}),
        "lists in a negated filter": _posted(SEARCH, query="a", filter={"$not": {"tags": {"$in": pairs}}}),
        "many conditions": _posted(SEARCH, query="a", filter={"$or": elements}),
        "many lexical queries": _posted(SEARCH, queries=[f"red {n}" for n in range(2_000)], k=1, mode="lexical"),
        "a long lexical query": _posted(SEARCH, query=words, mode="lexical"),
        "answers that nobody reads": Costly("POST", SEARCH, _json(query="wide", k=20), JSON, read=False),
        "rows that are refused": Costly("POST", skipping, refused, LINES),
        "answers that are kept": Costly("POST", skipping, refused, LINES | {"idempotency-key": NUMBER}),
        "uploads that wait": Costly("POST", f"{DOCUMENTS}?async=true", b'{"id": "{number}", "text": "red"}\n', LINES),
        "snapshots": Costly("POST", f"/corpora/{CORPUS}/snapshots"),
        "a forged snapshot": Costly("PUT", f"/corpora/{CORPUS}/restore", forged(snapshot), ZSTD),
        "many numbers": Costly("POST", "/embed", numbers, JSON),
        "packed bodies": Costly("POST", "/embed", gzip.compress(unpacked), JSON | {"content-encoding": "gzip"}),
        "long texts": _posted("/embed", inputs=["word " * 500] * 256),
        "jobs": Costly("GET", "/jobs"),
        "a map": Costly("GET", f"/corpora/{CORPUS}/map"),
        "fields": Costly("GET", f"/corpora/{CORPUS}/fields"),
        "deletions by filter": Costly("DELETE", DOCUMENTS, _json(filter={"$or": elements}), JSON),
        "events of jobs": Costly("GET", f"/jobs/{job}/events", read=False),
        "misspelt words": _posted(SEARCH, queries=[f"rde bleu grene word{n}" for n in range(500)], typos=True, **WORDS),
        "words to complete": _posted(SEARCH, queries=[f"red word{n % 10}" for n in range(500)], prefix=True, **WORDS),
        "groups and counts": _posted(SEARCH, query="a", k=1000, group_by="$id", facets=["tags"], total=True),
        "hits of great diversity": _posted(SEARCH, query="a", k=200, diversity=0.5, explain=True),
        "many examples": _posted(SEARCH, like={"positive": IDS[:100], "negative": IDS[100:200]}, k=1000),
        "many hits reranked": _posted(SEARCH, query="a", rerank={"method": "late_interaction", "candidates": 1000}),
        "short texts": _posted("/embed", inputs=[f"a short text of {n}" for n in range(1_000)]),
        "vectors of tokens": _posted("/embed_all", inputs=["word " * 500] * 20),
        "metadata merged by filter": Costly("PATCH", DOCUMENTS, _json(metadata={"seen": NUMBER}, filter=TAGGED), JSON),
        "stop words": Costly("PUT", f"/corpora/{CORPUS}", _json(stop_words=[f"word{NUMBER}"]), JSON),
        "pages of HTML": Costly("POST", f"{DOCUMENTS}?source={NUMBER}", page, HTML),
        "corpora that come": Costly("PUT", f"/corpora/{CORPUS}-{NUMBER}", b"{}", JSON),
    }


def documents() -> bytes:
    """Return the documents for these requests as JSON lines."""
    tagged: list[dict[str, Any]] = [
        {"text": f"red blue green word{7919 * number}", "metadata": {"tags": ["red", "blue"]}}
        for number in range(1_000)
    ]
    wide = [{"text": f"wide {number} " + "\x01" * WIDE} for number in range(20)]
    return "".join(json.dumps({"id": str(n), **document}) + "\n" for n, document in enumerate(tagged + wide)).encode()


def forged(snapshot: bytes) -> bytes:
    """Return the snapshot with one huge text and valid checksums, as a malicious owner could make it."""
    with TemporaryDirectory() as folder:
        with tarfile.open(fileobj=io.BytesIO(zstd.decompress(snapshot))) as archive:
            archive.extractall(folder, filter="data")
        manifest, content = Path(folder, MANIFEST), Path(folder, CONTENT)
        with closing(sqlite3.connect(content)) as database, database:
            database.execute("UPDATE documents SET text = printf('%.*c', ?, 'x') WHERE id = '0'", (HUGE,))
        body = content.read_bytes()
        facts = json.loads(manifest.read_bytes())
        facts["content"] = {"bytes": len(body), "sha256": hashlib.sha256(body).hexdigest()}
        manifest.write_bytes(json.dumps(facts).encode())
        packed = io.BytesIO()
        with tarfile.open(fileobj=packed, mode="w", format=tarfile.GNU_FORMAT) as archive:
            for file in (manifest, content):
                archive.add(file, file.name)
        return zstd.compress(packed.getvalue())


def _posted(path: str, **body: Any) -> Costly:
    return Costly("POST", path, _json(**body), JSON)


def _json(**body: Any) -> bytes:
    return json.dumps(body).encode()
