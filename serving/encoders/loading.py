"""From a bundle to an encoder at work, which has given the bundle's own vectors."""

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
from serving.ports import EngineError, Model
from serving.settings import Settings
from serving.telemetry.metrics import Metrics
from serving.training_record import summary

log = logging.getLogger(__name__)
T = TypeVar("T")
THREAD = "loading"


class Loader:
    """Makes the encoders of one server: the same options, the same metrics, and streams that they share."""

    def __init__(self, settings: Settings, metrics: Metrics) -> None:
        self._settings = settings
        self._metrics = metrics
        self._streams = Streams(settings.engine_options.cpu_streams)

    async def open(self, folder: Path) -> Model:
        """What the folder holds now.

        Raises:
            BundleError: no whole bundle.
        """
        return await apart(lambda: ENGINES[self._settings.engine](folder))

    async def load(self, model: Model, report: Callable[[str], None] = log.debug) -> Embedder:
        """Load and test it; `report` hears what is being done.

        Raises:
            EngineError: it does not give the bundle's golden vectors, or can't run here.
        """
        report(f"loading {model.manifest.name}")
        engine = await apart(lambda: model.load(self._settings.engine_options))
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
    """What `work` gives, from a thread that the end of the loop does not wait for: nothing can interrupt a load."""
    outcome = concurrent.futures.Future[T]()
    outcome.set_running_or_notify_cancel()  # or whoever stops waiting would cancel it under the thread

    def run() -> None:
        try:
            result = work()
        except BaseException as error:  # it is raised where the outcome is awaited
            outcome.set_exception(error)
        else:
            outcome.set_result(result)

    threading.Thread(target=run, name=THREAD, daemon=True).start()
    return asyncio.wrap_future(outcome)


async def _self_test(embedder: Embedder) -> None:
    """No caller's request, so not counted as one."""
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
