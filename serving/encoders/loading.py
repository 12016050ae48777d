"""Loading of encoders, each tested against its bundle's golden vectors."""

from __future__ import annotations

import asyncio
import concurrent.futures
import logging
import math
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import numpy as np

from models.bundle import GOLDEN_COSINE
from serving.encoders.embedder import Embedder
from serving.encoders.streams import Streams
from serving.engines import ENGINES
from serving.ports import EngineError, EngineOptions, Model
from serving.settings import Settings
from serving.telemetry.metrics import Metrics
from serving.training_record import summary

log = logging.getLogger(__name__)
T = TypeVar("T")
THREAD = "loading"


class Loader:
    """Loader of one server's encoders, with shared options, metrics and streams."""

    def __init__(self, settings: Settings, metrics: Metrics) -> None:
        self._settings = settings
        self._metrics = metrics
        self._streams = Streams(EngineOptions.of(settings).cpu_streams)

    async def open(self, folder: Path) -> Model:
        """Open the bundle in a folder.

        Raises:
            BundleError: the bundle is incomplete.
        """
        return await apart(lambda: ENGINES[self._settings.engine](folder))

    async def load(self, model: Model, report: Callable[[str], None] = log.debug) -> Embedder:
        """Load and test an encoder; `report` receives the current step.

        Raises:
            EngineError: the encoder does not reproduce the bundle's golden vectors, or can't run here.
        """
        report(f"loading {model.manifest.name}")
        engine = await apart(lambda: model.load(EngineOptions.of(self._settings)))
        embedder = Embedder(engine, model, self._settings, self._metrics, self._streams)
        report(f"testing the engine against the golden vectors of {model.manifest.name}")
        try:
            await _self_test(embedder)
        except BaseException:
            await embedder.close()
            raise
        log.info("serving %s (%s)", summary(model.manifest), engine.choice)
        return embedder


def apart(work: Callable[[], T]) -> asyncio.Future[T]:
    """Run `work` in a daemon thread, so that the server can stop during a load, which can't be interrupted."""
    outcome = concurrent.futures.Future[T]()
    outcome.set_running_or_notify_cancel()  # otherwise a waiter that is cancelled would cancel it under the thread

    def run() -> None:
        try:
            result = work()
        except BaseException as error:  # raised where the outcome is awaited
            outcome.set_exception(error)
        else:
            outcome.set_result(result)

    threading.Thread(target=run, name=THREAD, daemon=True).start()
    return asyncio.wrap_future(outcome)


async def _self_test(embedder: Embedder) -> None:
    """Compare the engine with the bundle's golden vectors. Metrics don't count this as a request."""
    golden = embedder.manifest.golden
    if not golden:
        return
    tokens = await asyncio.to_thread(embedder.engine.tokenize, [one.text for one in golden], "right")
    answer = await embedder.batcher.submit(tokens)
    for one, vector in zip(golden, answer.vectors, strict=True):
        expected = np.array(one.vector, dtype=np.float32)
        cosine = float(vector @ expected / max(float(np.linalg.norm(expected)), 1e-12))
        if not (math.isfinite(cosine) and cosine >= GOLDEN_COSINE):
            raise EngineError(
                f"the engine gives {one.text!r} a vector whose cosine to the bundle's is {cosine:.6f}, "
                f"below {GOLDEN_COSINE}"
            )
