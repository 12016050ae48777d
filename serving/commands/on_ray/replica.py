"""A replica of the server on Ray: the server's application and its encoders, in a process of Ray Serve.

A replica serves only the routes for inference. A corpus, a job or a snapshot would exist in one replica only, but the
next request may go to another replica.
"""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory, gettempdir
from typing import Any

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from models.runtimes.base import cache_folder
from serving.api import INFERENCE
from serving.app import create_app
from serving.commands.loading import opened_models, with_bundles
from serving.commands.starting import opened_service
from serving.operations import logs
from serving.service import Service
from serving.settings import Settings


class UnhealthyReplica(RuntimeError):
    """Error of a replica that can't answer requests. Ray Serve then replaces the replica."""


class Application:
    """ASGI application that reports its start only when its encoders are loaded.

    Ray Serve does not pass the state of the ASGI lifespan to requests, so this class adds the state to each request.
    """

    def __init__(self, service: Service, folder: TemporaryDirectory[str] | None = None) -> None:
        """Create the application of `service`. `folder` is removed when the service has stopped."""
        self.service = service
        self._folder = folder
        self._app: ASGIApp = create_app(service, routers=INFERENCE)
        self._state: dict[str, Any] = {}
        self._started = False
        self._config: Any = None

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

        try:
            await self._app({**scope, "state": self._state}, receive, when_loaded)
        finally:
            if self._folder:
                self._folder.cleanup()

    async def reconfigure(self, config: Any) -> None:
        """Reload the encoders if `config` has changed. The old encoders answer requests meanwhile.

        Before the first `check_health`, the encoders are not reloaded, because they have just been loaded. Ray Serve
        also calls this method with an unchanged `config`, when it numbers the replicas again.
        """
        if self._started and config != self._config:
            await self.service.reload()
        self._config = config

    async def check_health(self) -> None:
        """Raise `UnhealthyReplica` if the encoders could not be loaded, or if an engine fails batch after batch."""
        self._started = True
        health = await self.service.probed()
        if health.state in ("failed", "failing"):
            raise UnhealthyReplica(str(health))


def build(settings: Settings) -> Application:
    """Build the application of a replica. This function runs in the process of the replica.

    Raises:
        BundleError, SourceError, EngineError, Failed: this node can't serve an encoder.
    """
    logs.configure(settings.log_format)
    # The cache has the bundles of encoders that are given by name. All replicas of a node use them.
    named = with_bundles(settings.model_copy(update={"data": cache_folder() or Path(gettempdir())}))
    folder = TemporaryDirectory(prefix="isosphere-replica-", ignore_cleanup_errors=True)
    # A store that all replicas share would be opened here. All routers would then replace `INFERENCE`.
    own = named.model_copy(update={"store": "memory", "no_demo": True, "data": Path(folder.name)})
    return Application(opened_service(own, opened_models(own)), folder)
