"""Connections to a Milvus server, or to a Milvus Lite in this process. Errors get messages of one line."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from grpc import RpcError
from pymilvus import MilvusClient
from pymilvus.exceptions import MilvusException

from models.errors import Failed
from serving.corpora.ports import StoreError
from serving.errors import NotFound, Unhealthy

TIMEOUT = 30.0
"""Maximum seconds of a request to Milvus. If Milvus can't be reached, each request waits for this time."""
CONNECT_SECONDS = 10.0
LOAD_SECONDS = 120.0
OLDEST = (2, 5)
"""The oldest version of a Milvus server that computes BM25."""
DEFAULT_PORT = 19530
RETRY_SECONDS = 2
MISSING = 100
"""Milvus' error code of a missing collection."""
NO_ADDRESS = (
    "--store: is not an address of the form milvus://[USER:PASSWORD@]HOST[:PORT][/DATABASE]. If the password has one "
    "of the characters / ? # @ [ ], percent-encode it, such as %2F for /"
)
_VERSION = re.compile(r"(\d+)\.(\d+)")


@dataclass(frozen=True)
class Address:
    """Address of a Milvus: the URI of a server, or the folder of a Milvus Lite."""

    uri: str
    user: str = ""
    password: str = ""
    database: str = ""
    lite: Path | None = None

    def __str__(self) -> str:
        """Return the address for messages, without user name and password."""
        if self.lite:
            return f"Milvus Lite in {self.lite}"
        return f"Milvus at {self.uri.partition('://')[2]}{self.database and '/'}{self.database}"

    @classmethod
    def of(cls, text: str) -> Address:
        """Parse the address of a server, or the path of a Milvus Lite.

        The address of a server is `milvus://[user:password@]host[:port][/database]`, or `milvus+tls://…` for TLS. A
        path ends in `.db`, with or without `milvus://` before it.

        Raises:
            StoreError: the text is neither an address nor a path.
        """
        if not text.startswith(("milvus://", "milvus+tls://")):
            return cls("", lite=Path(text))
        # The errors do not name the text, because any part of it may be a part of a password.
        try:
            parts = urlsplit(text)
            port = parts.port or DEFAULT_PORT
        except ValueError:
            raise StoreError(NO_ADDRESS) from None
        path = unquote(parts.path)
        if not parts.hostname:
            if not path.endswith(".db"):
                raise StoreError("--store: give a host, or the path of a Milvus Lite, which ends in .db")
            return cls("", lite=Path(path))
        if "@" in parts.path + parts.query + parts.fragment:
            raise StoreError(NO_ADDRESS)
        database = path.strip("/")
        if "/" in database:
            raise StoreError("--store: only the name of a database may follow the host")
        host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
        scheme = "https" if parts.scheme.endswith("tls") else "http"
        user, password = unquote(parts.username or ""), unquote(parts.password or "")
        return cls(f"{scheme}://{host}:{port}", user, password, database)


@dataclass(frozen=True)
class Connection:
    """A client of Milvus, and the function that closes it."""

    client: MilvusClient
    address: Address
    close: Callable[[], None]
    is_lite: bool
    """True for a Milvus Lite, in this process or in another process."""
    _loaded: set[str] = field(default_factory=set)

    def load(self, collection: str) -> None:
        """Load a collection for searches, unless this process has already loaded it.

        Each time Milvus Lite starts, its collections must be loaded again.
        """
        if collection not in self._loaded:
            self.client.load_collection(collection, timeout=LOAD_SECONDS)
            self._loaded.add(collection)

    def drop(self, collection: str) -> None:
        self.client.drop_collection(collection, timeout=TIMEOUT)
        self._loaded.discard(collection)

    @contextmanager
    def errors(self) -> Iterator[None]:
        """Convert an error of Milvus to `Unhealthy`, or to `NotFound` if a collection is missing."""
        try:
            yield
        except (MilvusException, RpcError) as error:  # pymilvus does not convert a deadline error of gRPC
            self._loaded.clear()
            if isinstance(error, MilvusException) and error.code == MISSING:
                raise NotFound(f"{self.address}: {_line(error)}") from error
            raise Unhealthy(f"{self.address}: {_line(error)}", retry_after=RETRY_SECONDS) from error


def connect(text: str) -> Connection:
    """Connect to a Milvus server, or start a Milvus Lite in this process.

    `text` is the address of the server or the path of the Milvus Lite; see `Address.of`.

    Raises:
        StoreError: the address is not valid, the server is too old, Milvus Lite is not installed, or its folder can't
            be used.
        Failed: the server can't be reached.
    """
    # These loggers log each error with its traceback, although they also raise it.
    for noisy in ("pymilvus", "milvus_lite", "grpc._server"):
        logging.getLogger(noisy).setLevel(logging.CRITICAL)
    address = Address.of(text)
    return _lite(address, address.lite) if address.lite else _server(address)


def _server(address: Address) -> Connection:
    try:
        client = MilvusClient(
            uri=address.uri,
            user=address.user,
            password=address.password,
            db_name=address.database,
            timeout=CONNECT_SECONDS,
        )
        version = client.get_server_version(timeout=CONNECT_SECONDS)
    except (MilvusException, RpcError) as error:
        raise Failed(f"--store: can't reach {address}: {_line(error)}") from None
    found = _VERSION.search(version)
    if found and tuple(map(int, found.groups())) < OLDEST:
        client.close()
        raise StoreError(f"--store: {address} has version {version}, but BM25 needs version 2.5 or newer")
    return Connection(client, address, client.close, "lite" in version.lower())


def _lite(address: Address, folder: Path) -> Connection:
    try:
        from milvus_lite import DataDirLockedError
        from milvus_lite.adapter.grpc.server import start_server_in_thread
    except ImportError as error:
        raise StoreError(f"--store: Milvus Lite is not installed ({error}): pip install 'isosphere[milvus]'") from None
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        server, database, port = start_server_in_thread(str(folder))
    except DataDirLockedError:
        raise StoreError(f"--store {folder}: is in use by another process: stop it, or choose another folder") from None
    except (OSError, RuntimeError) as error:
        raise StoreError(f"--store {folder}: can't be used: {error}") from None

    def close() -> None:
        client.close()
        server.stop(grace=None).wait()
        database.close()

    client = MilvusClient(uri=f"http://127.0.0.1:{port}", timeout=CONNECT_SECONDS)
    return Connection(client, address, close, is_lite=True)


def _line(error: Any) -> str:
    message = error.details() if isinstance(error, RpcError) else error.message
    return str(message).strip().partition("\n")[0] or type(error).__name__
