"""The encoder in service, and how another one takes its place while requests go on."""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from models.bundle import GOLDEN_COSINE, BundleError
from serving.embedder import Embedder, EmbedOptions
from serving.engines import ENGINES
from serving.errors import Backend, Conflict, Invalid, Unhealthy
from serving.metrics import Metrics
from serving.ports import EngineError, Model
from serving.settings import Settings

log = logging.getLogger(__name__)


class Reloaded(NamedTuple):
    """The fingerprints of the bundle that served and of the one that serves now."""

    old: str
    new: str


class Encoders:
    """One encoder in service at a time: an `Embedder`, which is engine, queue, manifest and report in one object.

    Another one is loaded and tested beside it and put in its place in one assignment. Whoever holds the old one
    finishes on it; then it is closed.
    """

    def __init__(self, settings: Settings, model: Model, metrics: Metrics) -> None:
        self.current: Embedder | None = None
        """None until the first one is loaded."""
        self._settings = settings
        self._model = model
        self._metrics = metrics
        self._reloading: asyncio.Task[Reloaded] | None = None
        self._retiring: set[asyncio.Task[None]] = set()

    @property
    def model(self) -> Model:
        """What is in service; before anything is, what is being loaded."""
        return self.current.model if self.current else self._model

    async def load(self, report: Callable[[str], None]) -> None:
        """Load and test the first encoder; `report` hears what is being done.

        Raises:
            EngineError: it does not give the bundle's golden vectors, or can't run here.
        """
        self.current = await self._tested(self._model, report)

    async def reload(self) -> Reloaded:
        """Read the bundle that the settings name once more; on return it serves. A caller who leaves stops nothing.

        Raises:
            Conflict: a reload is running.
            Invalid: the folder is not a whole bundle; the old one goes on.
            Backend: it does not run here, or not as its golden vectors say; the old one goes on.
            Unhealthy: the server began to drain meanwhile, or has no encoder yet.
        """
        if self._reloading:
            raise Conflict("a reload is running")
        task = self._reloading = asyncio.create_task(self._replace())
        task.add_done_callback(self._ended)
        await asyncio.wait([task])
        if task.cancelled():
            raise Unhealthy("the server is shutting down", retry_after=1)
        return task.result()

    async def settled(self) -> None:
        """Return when no reload is running."""
        if self._reloading:
            await asyncio.wait([self._reloading])

    def stop_reloading(self) -> None:
        """Give up the reload that is running; the encoder in service stays."""
        if self._reloading:
            self._reloading.cancel()

    async def close(self) -> None:
        """Close every encoder; whoever still waits for one is told that the server is going away."""
        self.stop_reloading()
        await self.settled()
        for task in self._retiring:
            task.cancel()
        if self._retiring:
            await asyncio.wait(self._retiring)
        if self.current:
            await self.current.close()

    async def _replace(self) -> Reloaded:
        if not (old := self.current):
            raise Unhealthy("no encoder is loaded yet", retry_after=1)
        try:
            model = await asyncio.to_thread(ENGINES[self._settings.engine], self._settings.bundle)
            self.current = await self._tested(model, log.debug)
        except BundleError as error:
            raise Invalid(str(error), field="bundle") from error
        except Exception as error:  # what a runtime raises over a graph has no class of its own
            raise Backend(f"{self._settings.bundle}: {error}") from error
        retiring = asyncio.create_task(_retire(old))
        self._retiring.add(retiring)
        retiring.add_done_callback(self._retiring.discard)
        return Reloaded(old.manifest.fingerprint, self.current.manifest.fingerprint)

    def _ended(self, task: asyncio.Task[Reloaded]) -> None:
        """Whoever asked may be gone: what came of it is in the log and the metrics all the same."""
        self._reloading = None
        failure = None if task.cancelled() else task.exception()
        self._metrics.reloads.labels("failed" if task.cancelled() or failure else "done").inc()
        if failure:
            log.error("not reloaded, %s goes on: %s", self.model.manifest.name, failure)
        elif not task.cancelled():
            log.info("reloaded: %s serves (fingerprint %s)", self.model.manifest.name, task.result().new)

    async def _tested(self, model: Model, report: Callable[[str], None]) -> Embedder:
        report(f"loading {model.manifest.name}")
        engine = await asyncio.to_thread(model.load, self._settings.engine_options)
        log.info("%s runs on %s", model.manifest.name, engine.choice)
        embedder = Embedder(engine, model, self._settings, self._metrics)
        report("testing the engine against the bundle's golden vectors")
        try:
            await _self_test(embedder)
        except BaseException:
            await embedder.close()
            raise
        return embedder


async def _retire(embedder: Embedder) -> None:
    try:
        await embedder.released()
    finally:
        await embedder.close()


async def _self_test(embedder: Embedder) -> None:
    golden = embedder.manifest.golden
    if not golden:
        return
    embeddings = await embedder.embed([one.text for one in golden], EmbedOptions())
    for one, vector in zip(golden, embeddings.vectors, strict=True):
        expected = np.array(one.vector, dtype=np.float32)
        cosine = float(vector @ expected / max(float(np.linalg.norm(expected)), 1e-12))
        if not (math.isfinite(cosine) and cosine >= GOLDEN_COSINE):
            raise EngineError(
                f"the engine gives {one.text!r} a vector whose cosine to the bundle's is {cosine:.6f}, "
                f"below {GOLDEN_COSINE}"
            )
