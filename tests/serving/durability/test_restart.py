"""What is there after `kill -9`, and before each statement of a write."""

from __future__ import annotations

import random
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.conftest import PATIENCE
from tests.serving.durability.server import NotReadyError, home
from tests.serving.durability.traffic import Traffic

BATCH = 40
KILLED_INSIDE = """
import itertools, os, signal, sqlite3, sys
connect, statements = sqlite3.connect, itertools.count(1)

def count(statement):
    if not statement.startswith(("SELECT", "PRAGMA", "CREATE")) and next(statements) == int(os.environ["STATEMENT"]):
        os.kill(os.getpid(), signal.SIGKILL)

def traced(*arguments, **options):
    connection = connect(*arguments, **options)
    connection.set_trace_callback(count)
    return connection

sqlite3.connect = traced
from serving.__main__ import main
sys.exit(main(sys.argv[1:]))
"""
"""A server that kills itself before the statement whose number it is given."""


@pytest.mark.slow
def test_killed_before_any_statement_it_keeps_each_write_whole(tmp_path: Path) -> None:
    rng, traffic = random.Random(0), Traffic.of(2)
    at, inside = home(tmp_path), home(tmp_path / "inside", module="killed_inside")
    (tmp_path / "killed_inside.py").write_text(KILLED_INSIDE)
    inside.folder = at.folder
    for _ in range(6):
        statement = rng.randint(30, 400)
        with inside.server({"STATEMENT": str(statement), "PYTHONPATH": str(tmp_path)}, wait=False) as server:
            with suppress(NotReadyError, httpx.TransportError):  # its number may come while it starts or is read
                server.wait_until_ready()
                traffic.check(server)
                traffic.run(server, 1, 20)
            assert server.process.wait(PATIENCE) == -9
    with at.server() as server:
        traffic.check(server)
    assert not traffic.verdict.wrong, traffic.verdict.examples
    assert traffic.verdict.reads > 15


@pytest.mark.slow
def test_a_deleted_document_and_a_deleted_corpus_stay_deleted(launch: Callable[..., Any], tmp_path: Path) -> None:
    server = launch()
    server.client.put("/corpora/c")
    documents = [{"id": f"1-{i}", "text": f"document {i}"} for i in range(BATCH)]
    server.client.post("/corpora/c/documents", json={"documents": documents}).raise_for_status()
    assert server.client.delete("/corpora/c/documents/1-3").status_code == 204
    server.client.put("/corpora/gone")
    server.client.delete("/corpora/gone")
    server.kill()
    server = launch()
    assert server.client.get("/corpora/c").json()["documents"] == BATCH - 1
    assert server.client.get("/corpora/c/documents/1-3").status_code == 404
    assert server.client.get("/corpora/gone").status_code == 404
    assert sorted(path.name for path in (tmp_path / "corpora").glob("gone*")) == []
