"""A replica of the server on Ray: the server's application and its encoders, in a process of Ray Serve.

A replica serves only the routes for inference. A corpus, a job or a snapshot would exist in one replica only, but the
next request may go to another replica.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from models.bundle.sources import as_bundle
from models.runtimes.base import cache_folder
from serving.api import INFERENCE
from serving.app import create_app
from serving.commands.loading import opened_models
from serving.commands.starting import opened_service
from serving.operations import logs
from serving.service import Service
from serving.settings import Settings


class UnhealthyReplica(RuntimeError):
    """The replica can't answer requests. Ray Serve replaces it."""


class Application:
    """ASGI application that reports its start after its encoders are loaded.

    Ray Serve does not pass the state of the ASGI lifespan to requests, so this class adds the state to each request.
    """

    def __init__(self, service: Service) -> None:
        self.service = service
        self._app: ASGIApp = create_app(service, routers=INFERENCE)
        self._state: dict[str, Any] = {}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle an ASGI call: a request, or the start and stop of the service."""
        if scope["type"] != "lifespan":
            await self._app({**scope, "state": self._state.copy()}, receive, send)
            return

        async def when_loaded(message: Message) -> None:
            if message["type"] == "lifespan.startup.complete":
                await self.service.loaded.wait()
                if self.service.health.state == "failed":
                    message = {"type": "lifespan.startup.failed", "message": self.service.health.reason}
            await send(message)

        await self._app({**scope, "state": self._state}, receive, when_loaded)


def build(settings: Settings) -> Application:
    """Build the application in the process of a replica.

    Raises:
        BundleError, SourceError, EngineError, Failed: this node can't serve an encoder.
    """
    logs.configure(settings.log_format)
    cache = (cache_folder() or Path(tempfile.gettempdir())) / "encoders"  # for encoders that are given by name
    own = settings.model_copy(
        update={
            # A store that all replicas share would be opened here. All routers would then replace `INFERENCE`.
            "store": "memory",
            "no_demo": True,
            "data": Path(tempfile.mkdtemp(prefix="isosphere-replica-")),
            "bundle": ":".join(str(as_bundle(str(folder), cache)) for folder in settings.bundles),
        }
    )
    return Application(opened_service(own, opened_models(own)))
