"""One replica: the server's application, its encoders and their queues in a process of Ray Serve.

Only the inference half is served. A corpus, a job or a snapshot would exist in one replica, while the next request goes
to another one.
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
from serving.commands.starting import opened_models, opened_service
from serving.operations import logs
from serving.service import Service
from serving.settings import Settings


class UnhealthyReplica(RuntimeError):
    """The replica can't answer. Ray Serve replaces it."""


class Application:
    """The application, which reports that it has started once its encoders are loaded.

    Requests get the state of the lifespan, which Ray Serve does not pass on.
    """

    def __init__(self, service: Service) -> None:
        self.service = service
        self._app: ASGIApp = create_app(service, routers=INFERENCE)
        self._state: dict[str, Any] = {}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, or start and stop the service."""
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
        BundleError, SourceError, EngineError: an encoder can't be served on this node.
    """
    logs.configure(settings.log_format)
    own = settings.model_copy(
        update={
            # A store that all replicas share would be opened here, and `INFERENCE` would become all routers.
            "store": "memory",
            "no_demo": True,
            "data": Path(tempfile.mkdtemp(prefix="isosphere-replica-")),
            "bundle": bundles(settings),
        }
    )
    return Application(opened_service(own, opened_models(own)))


def bundles(settings: Settings) -> str:
    """Return the folders of the encoders on this node. Named encoders are written to the user's cache."""
    cache = cache_folder() or Path(tempfile.gettempdir())
    return ":".join(str(as_bundle(str(folder), cache / "encoders")) for folder in settings.bundles)
