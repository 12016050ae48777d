"""The whole server in this process on a folder, with the fake engine, so that a start takes milliseconds."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
from fastapi.testclient import TestClient

from serving.app import create_app
from serving.commands.starting import opened_models, opened_service
from serving.settings import Settings


class FailedError(RuntimeError):
    """The server reported that it failed. The message is its own."""


@contextmanager
def serving(data: Path) -> Iterator[httpx.Client]:
    """Start a server that is ready.

    Raises:
        StoreError, FailedError: it can't be started.
    """
    settings = Settings(data=data, no_demo=True, engine="fake")
    app = create_app(opened_service(settings, opened_models(settings)))
    with TestClient(app, raise_server_exceptions=False) as client:
        while (answer := client.get("/readyz")).status_code != 200:
            if "failed" in answer.text:
                raise FailedError(answer.text)
            time.sleep(0.001)
        yield client  # type: ignore[misc]
