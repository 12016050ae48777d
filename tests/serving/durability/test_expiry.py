"""`kill -9` while expired documents are removed: nothing else is lost, and nothing expired comes back."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from serving.__main__ import main
from tests.conftest import PATIENCE
from tests.serving.durability.server import Server, home
from tests.serving.durability.traffic import DIM

STAY, EXPIRE = 400, 1300
"""Documents of each kind. The expired ones are removed in three commits."""


def there(server: Server) -> tuple[int, set[str]]:
    with server.client() as client:
        listed, cursor = set[str](), None
        while True:
            query = {"limit": 1000} | ({"cursor": cursor} if cursor else {})
            page = client.get("/corpora/c/documents", params=query).raise_for_status().json()
            listed |= {document["id"] for document in page["documents"]}
            if (cursor := page["cursor"]) is None:
                break
        found = {"vector": [1.0] * DIM, "k": 1000, "with_text": False}
        hits = client.post("/corpora/c/search", json=found).raise_for_status().json()["hits"]
        assert {hit["id"] for hit in hits} <= listed
        return int(client.get("/corpora/c").raise_for_status().json()["documents"]), listed


@pytest.mark.slow
def test_a_kill_while_expired_documents_are_removed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    at = home(tmp_path)
    stay = {f"s{i}" for i in range(STAY)}
    with at.server() as server, server.client() as client:
        client.put("/corpora/c").raise_for_status()
        soon = (datetime.now(UTC) + timedelta(seconds=4)).isoformat()
        rows = [{"id": name, "text": f"text of {name}"} for name in sorted(stay)]
        rows += [{"id": f"e{i}", "text": f"text of e{i}", "expires_at": soon} for i in range(EXPIRE)]
        for start in range(0, len(rows), 200):
            client.post("/corpora/c/documents", json=rows[start : start + 200]).raise_for_status()
        server.stop()
    time.sleep(4)
    for place in ("store.before-commit=kill@2", "store.after-commit=kill@2", "store.before-commit=kill@3"):
        with at.server({"ISOSPHERE_FAILPOINTS": place}, wait=False) as server:
            server.wait_until_ready()
            assert there(server) == (STAY, stay)
            assert server.process.wait(PATIENCE) == -9
    with at.server() as server:
        assert there(server) == (STAY, stay)
        server.stop()
    assert main(["verify", "--data", str(at.data)]) == 0
    assert f"{STAY} documents" in capsys.readouterr().out
