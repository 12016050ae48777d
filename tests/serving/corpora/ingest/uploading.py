"""Helpers of tests that upload over HTTP: the corpus `c`."""

from __future__ import annotations

import json
import time
from typing import Any

from fastapi.testclient import TestClient

DOCUMENTS = "/corpora/c/documents"
FORM = "multipart/form-data; boundary=x"


def of(media: str) -> dict[str, str]:
    return {"content-type": media}


NDJSON = of("application/x-ndjson")


def lines(count: int, **more: Any) -> bytes:
    return b"".join(json.dumps({"id": f"d{i}", "text": f"text {i}", **more}).encode() + b"\n" for i in range(count))


def ended(client: TestClient, location: str) -> dict[str, Any]:
    deadline = time.monotonic() + 30
    while (job := client.get(location).json())["state"] in ("queued", "running"):
        assert time.monotonic() < deadline, job
        time.sleep(0.01)
    return dict(job)


def stored(client: TestClient) -> int:
    return int(client.get("/corpora/c").json()["documents"])
