"""Connections to Milvus: addresses, a server that is not there, and folders and collections of others."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pymilvus", reason="the extra 'milvus' is not installed")
from unittest.mock import Mock

import grpc
from milvus_lite.adapter.grpc.server import start_server_in_thread
from pymilvus import MilvusClient
from pymilvus.exceptions import MilvusException

from models.errors import Failed
from serving.corpora.ports import StoreError
from serving.corpora.stores.milvus import connection, registry, table
from serving.corpora.stores.milvus.connection import Address, connect
from serving.corpora.stores.milvus.corpora import MilvusCorpora
from serving.corpora.stores.milvus.registry import REGISTRY
from serving.corpora.values import Corpus
from serving.errors import Conflict, Unhealthy
from serving.settings import Settings, SettingsError, read_settings
from tests.conftest import PATIENCE
from tests.serving.corpora.stores.contents import content


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("milvus://host", Address("http://host:19530")),
        ("milvus://u:p%40s@host:1/db", Address("http://host:1", "u", "p@s", "db")),
        ("milvus+tls://[::1]:443", Address("https://[::1]:443")),
        ("milvus:///folder/a.db", Address("", lite=Path("/folder/a.db"))),
        ("folder/a.db", Address("", lite=Path("folder/a.db"))),
    ],
)
def test_an_address_names_a_server_or_a_folder(text: str, address: Address) -> None:
    assert Address.of(text) == address
    assert "p@s" not in str(address)


@pytest.mark.parametrize(
    "text",
    [
        "milvus://",
        "milvus://host:port",
        "milvus://host/a/b",
        "milvus:///folder",
        "milvus://[::1",
        "milvus://user:secret/secret@host",
        "milvus://user:1/secret@host",
        "milvus://user:secret#secret@host",
        "milvus://user:secret[secret@host",
        "milvus://user:secret@/folder",
    ],
)
def test_other_addresses_are_refused_without_their_password(text: str) -> None:
    with pytest.raises(StoreError, match="--store") as refused:
        Address.of(text)
    assert "secret" not in str(refused.value)


@pytest.mark.slow
def test_a_milvus_that_is_not_ready_is_an_error_of_the_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def not_ready(*_: Any, **__: Any) -> None:
        raise MilvusException(1, "service not ready")

    with monkeypatch.context() as patch:
        patch.setattr(MilvusClient, "has_collection", not_ready)
        with pytest.raises(Failed, match=r"^--store: .*: service not ready$"):
            MilvusCorpora(Settings(data=tmp_path, store=str(tmp_path / "m.db")))
    MilvusCorpora(Settings(data=tmp_path, store=str(tmp_path / "m.db"))).close()
    (tmp_path / "milvus" / "uploads.sqlite").write_bytes(b"damaged" * 100)
    with pytest.raises(StoreError, match=r"--data: .*uploads"):
        MilvusCorpora(Settings(data=tmp_path, store=str(tmp_path / "m.db")))


def test_a_store_of_another_name_is_refused() -> None:
    with pytest.raises(SettingsError, match="milvus://HOST:PORT"):
        read_settings(["--store", "mivlus://host"])


def test_a_server_that_hangs_is_an_error_of_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    class DeadlineError(grpc.RpcError):  # type: ignore[misc]
        def details(self) -> str:
            return "Deadline Exceeded"

    monkeypatch.setattr(connection, "MilvusClient", Mock(side_effect=DeadlineError))
    with pytest.raises(Failed, match="Deadline Exceeded"):
        connect("milvus://127.0.0.1:1/db")


def test_one_line_says_that_there_is_no_server() -> None:
    with pytest.raises(Failed, match=r"^--store: can't reach Milvus at 127\.0\.0\.1:1/db: .*") as refused:
        connect("milvus://user:secret@127.0.0.1:1/db")
    assert "secret" not in str(refused.value)
    assert "\n" not in str(refused.value)


def test_a_file_is_no_milvus_lite(tmp_path: Path) -> None:
    (tmp_path / "file.db").write_text("of another program")
    with pytest.raises(StoreError, match=r"file\.db: can't be used"):
        connect(str(tmp_path / "file.db"))


@pytest.mark.slow
def test_one_server_uses_a_folder_at_a_time(tmp_path: Path) -> None:
    first = MilvusCorpora(Settings(data=tmp_path / "a", store=str(tmp_path / "m.db")))
    for data in ("a", "b"):
        with pytest.raises(StoreError, match="in use by another"):
            MilvusCorpora(Settings(data=tmp_path / data, store=str(tmp_path / "m.db")))
    first.close()
    MilvusCorpora(Settings(data=tmp_path / "b", store=str(tmp_path / "m.db"))).close()


@pytest.mark.slow
def test_a_server_that_goes_is_an_error_of_one_line_and_may_come_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (table, registry):
        monkeypatch.setattr(module, "TIMEOUT", 1.0)
    server, database, port = start_server_in_thread(str(tmp_path / "m.db"))
    corpora = MilvusCorpora(Settings(data=tmp_path / "data", store=f"milvus://127.0.0.1:{port}"))
    corpora.create(Corpus("c"))
    corpora.put("c", content([("a", "text", {})]))
    server.stop(grace=None).wait(PATIENCE)
    database.close()
    for ask in (corpora.names, lambda: corpora.document("c", "a"), lambda: corpora.delete("c", "a")):
        with pytest.raises(Unhealthy, match=rf"^Milvus at 127\.0\.0\.1:{port}: [^\n]+$"):
            ask()
    server, database, _ = start_server_in_thread(str(tmp_path / "m.db"), port=port)
    until = time.monotonic() + PATIENCE
    while True:
        try:
            assert corpora.document("c", "a").text == "text"
            break
        except Unhealthy:
            assert time.monotonic() < until
    corpora.close()
    server.stop(grace=None).wait(PATIENCE)
    database.close()


@pytest.mark.slow
def test_collections_of_other_programs_are_left_alone(tmp_path: Path) -> None:
    connection = connect(str(tmp_path / "m.db"))
    connection.client.create_collection("isosphere_theirs", dimension=2)
    connection.close()
    corpora = MilvusCorpora(Settings(data=tmp_path / "data", store=str(tmp_path / "m.db")))
    with pytest.raises(Conflict, match="isosphere_theirs that does not belong to Isosphere"):
        corpora.create(Corpus("theirs"))
    assert corpora.names() == []
    corpora.create(Corpus("ours"))
    corpora.close()
    connection = connect(str(tmp_path / "m.db"))
    assert connection.client.has_collection("isosphere_theirs")
    connection.client.drop_collection(REGISTRY)
    connection.client.create_collection(REGISTRY, dimension=2)
    connection.close()
    with pytest.raises(StoreError, match="does not belong to Isosphere: give another database"):
        MilvusCorpora(Settings(data=tmp_path / "data", store=str(tmp_path / "m.db")))
