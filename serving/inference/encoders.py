"""Registry of served models. Models can be loaded, replaced and removed while the server answers requests.

Before a model serves requests, its vectors are compared with the golden vectors of its bundle.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections import Counter
from collections.abc import Callable, Coroutine, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np

from models.bundle.bundle import CROSS_ENCODER, ENCODER, GOLDEN_COSINE, BundleError, Golden
from models.cli.ending import in_native_thread
from models.runtimes.graph import GOLDEN_DIFFERENCE, largest_difference
from serving.errors import Backend, Conflict, Forbidden, Invalid, NotFound, ServiceError, Unhealthy, shutting_down
from serving.inference.embedder import Embedder, check_kind
from serving.inference.engine import EngineError, EngineOptions, Model
from serving.inference.engines import ENGINES
from serving.inference.fair_queue import EngineSlots
from serving.inference.relevance import Method
from serving.inference.training_record import summary
from serving.operations.metrics import Metrics
from serving.settings import Settings

log = logging.getLogger(__name__)
T = TypeVar("T")


class Encoders:
    """The served models, one for each bundle. The first is the default model.

    A new encoder is loaded and tested, and then replaces the old encoder in one assignment. Running requests keep the
    old encoder. The old encoder is closed after the last of these requests. Only one change of the served models runs
    at a time.

    Raises:
        BundleError: two bundles have the same name, or the first model is a cross-encoder.
    """

    def __init__(self, settings: Settings, models: Sequence[Model], metrics: Metrics) -> None:
        self._served = [ServedModel(*one) for one in zip(settings.bundles, models, strict=True)]
        if said := clash(self._served) or unfit(self._served[0]):
            raise BundleError(said)
        self._binding = len(models) > 1
        """True if `requested` refuses unknown names. A server with one model accepts any name, because many clients
        send a fixed name of their own. After the server has had a second model, an unknown name may be the name of a
        removed model."""
        self._roots = {root for folder in settings.bundles if (root := folder.absolute().parent.resolve()).name}
        self._roots.add(settings.adapted.resolve())
        self._settings = settings
        self._metrics = metrics
        self._streams = EngineSlots(EngineOptions.of(settings).cpu_streams)
        """Streams that all encoders share."""
        self._changing: asyncio.Task[Any] | None = None
        self._retiring: set[asyncio.Task[None]] = set()

    @property
    def served(self) -> tuple[ServedModel, ...]:
        """All served models, the default model first."""
        return tuple(self._served)

    @property
    def default(self) -> ServedModel:
        """The model for requests that name no model."""
        return self._served[0]

    @property
    def loaded(self) -> list[Embedder]:
        """The loaded encoders, the default encoder first."""
        return [served.embedder for served in self._served if served.embedder]

    @property
    def fingerprints(self) -> list[str]:
        """Fingerprints of the served bundles, the default bundle first."""
        return [served.model.manifest.fingerprint for served in self._served]

    def named(self, name: str) -> ServedModel:
        """Return the model of this name.

        Raises:
            NotFound: the name is unknown; the message lists the known names.
        """
        for served in self._served:
            if served.name == name:
                return served
        names = ", ".join(repr(served.name) for served in self._served)
        raise NotFound(f"there is no model {name!r}; this server runs {names}", field="model")

    def requested(self, name: str | None) -> ServedModel:
        """Return the model that a request names. None returns the default model.

        A server that has never had a second model returns its only model for any name.

        Raises:
            NotFound: the name is unknown.
        """
        return self.named(name) if self._binding and name is not None else self.default

    def corpus_encoder(self, name: str | None) -> ServedModel:
        """Return the encoder of this name for the vectors of a corpus. None returns the default model.

        Unlike `requested`, this method accepts no other names on a server of one model, because the vectors are stored.

        Raises:
            Invalid: the model is a cross-encoder.
            NotFound: the name is unknown.
        """
        served = self.default if name is None else self.named(name)
        check_kind(served.model.manifest, ENCODER)
        return served

    def cross_encoder(self, name: str | None) -> ServedModel:
        """Return the model of this name. None returns the first cross-encoder.

        If the model of this name is not a cross-encoder, `Embedder.score` refuses the pairs of texts later.

        Raises:
            NotFound: the name is unknown, or `name` is None and the server has no cross-encoder.
        """
        if name is not None:
            return self.named(name)
        for served in self._served:
            if served.model.manifest.kind == CROSS_ENCODER:
                return served
        raise NotFound(
            "this server has no cross-encoder: export one by `isosphere export`, and start the server with a "
            "--bundle for it",
            field="model",
        )

    def scorer(self, name: str | None, method: Method | None) -> tuple[ServedModel, Method]:
        """Return the model that scores texts for a query, and the scoring method.

        If `method` is None, the method is "cross_encoder" for a cross-encoder, and "cosine" for an encoder.

        Raises:
            NotFound: the name is unknown; or `name` is None, `method` is "cross_encoder", and the server has no
                cross-encoder.
        """
        served = self.cross_encoder(name) if method == "cross_encoder" else self.requested(name)
        crosses = served.model.manifest.kind == CROSS_ENCODER
        return served, method or ("cross_encoder" if crosses else "cosine")

    async def load(self, report: Callable[[str], None]) -> None:
        """Load and test all encoders when the server starts. `report` receives a description of each step.

        Raises:
            EngineError: an encoder does not reproduce its bundle's golden vectors, or this machine can't run it.
        """
        for served in self._served:
            served.embedder = await self._load(served.model, report)

    async def reload(self, name: str | None = None) -> list[Reloaded]:
        """Reload one bundle, or all bundles, from disk. If a bundle fails, no encoder is replaced.

        Raises:
            NotFound: there is no model of this name.
            Conflict: another change of the served models is running, two models would have the same name, or the
                default model would be a cross-encoder.
            Invalid: a folder has no complete bundle.
            Backend: a bundle does not run on this machine, or does not reproduce its golden vectors.
            Unhealthy: the server began to shut down during the reload.
        """
        served = self._served if name is None else [self.named(name)]
        return await self._change(lambda: self._replace(list(served)))

    async def add(self, folder: Path) -> ServedModel:
        """Serve another bundle.

        The folder must be inside the parent folder of a bundle with which the server was started, or inside the folder
        of adapted encoders.

        Raises:
            Forbidden: the folder is in another place.
            Conflict, Invalid, Backend, Unhealthy: see `reload`.
        """
        try:
            above = folder.resolve().parents
        except (OSError, RuntimeError, ValueError) as error:  # circular links, or a NUL byte in the path
            raise Invalid(f"is not a path: {error}", field="bundle") from error
        if self._roots.isdisjoint(above):
            among = ", ".join(map(str, sorted(self._roots)))
            raise Forbidden(
                f"bundles must be in {among}: these folders contain the bundles with which the server was "
                "started, and adapted encoders"
            )
        return await self._change(lambda: self._add(folder))

    def remove(self, name: str) -> None:
        """Stop serving a model. Its encoder is closed after its running requests are completed.

        Raises:
            NotFound: the name is unknown.
            Conflict: the model is the default, or a change of the served models is running.
        """
        served = self.named(name)
        if served is self.default:
            raise Conflict(f"{name!r} is the default model, which can't be unloaded")
        self._check_settled()
        self._served.remove(served)
        self._retire(served.embedder)
        log.info("unloaded: %s", name)

    @property
    def failing(self) -> str:
        """Message that names the models whose latest batches all failed. Empty if there are no such models."""
        return "; ".join(
            f"the last {len(one.batcher.failures)} batches of {one.manifest.name} failed: {one.batcher.failures[-1]}"
            for one in self.loaded
            if one.batcher.failing
        )

    async def probe(self) -> None:
        """Embed a test text on each failing engine."""
        for embedder in self.loaded:
            if embedder.batcher.failing:
                with suppress(ServiceError), embedder.held():
                    await embedder.probe()

    async def settled(self) -> None:
        """Wait until no change of the served models is running."""
        if self._changing:
            await asyncio.wait([self._changing])

    def stop_changing(self) -> None:
        """Cancel the running change of the served models, if any. The server keeps its current encoders."""
        if self._changing:
            self._changing.cancel()

    async def close(self) -> None:
        """Close every encoder. Waiting requests fail with `Unhealthy`."""
        self.stop_changing()
        await self.settled()
        for task in self._retiring:
            task.cancel()
        if self._retiring:
            await asyncio.wait(self._retiring)
        for embedder in self.loaded:
            await embedder.close()

    async def _change(self, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Run `work`, which changes the served models. The work continues even if the caller is cancelled.

        Raises:
            Conflict: another change of the served models is running.
            Unhealthy: the server began to shut down.
        """
        self._check_settled()
        task: asyncio.Task[T] = asyncio.create_task(work())
        self._changing = task
        task.add_done_callback(self._ended)
        await asyncio.wait([task])
        if task.cancelled():
            raise shutting_down()
        return task.result()

    def _check_settled(self) -> None:
        if self._changing:
            raise Conflict("a reload is running, or a bundle is being loaded")

    def _ended(self, task: asyncio.Task[Any]) -> None:
        """Count an ended change of the served models as done or failed.

        Log a failure, because the caller may have left.
        """
        self._changing = None
        failure = None if task.cancelled() else task.exception()
        self._metrics.reloads.labels("failed" if task.cancelled() or failure else "done").inc()
        if failure:
            log.error("the change failed, so the served encoders stay the same: %s", failure)

    async def _replace(self, old: Sequence[ServedModel]) -> list[Reloaded]:
        fresh = [ServedModel(served.folder, await self._opened(served.folder)) for served in old]
        if old[0] is self.default and (said := unfit(fresh[0])):
            raise Conflict(said)
        embedders = await self._loaded(fresh, beside=[served for served in self._served if served not in old])
        changes = []
        for served, embedder in zip(old, embedders, strict=True):
            before, after = served.model.manifest.fingerprint, embedder.manifest.fingerprint
            self._retire(served.embedder)
            served.embedder, served.model = embedder, embedder.model
            log.info("reloaded: %s is served (fingerprint %s)", served.name, after)
            changes.append(Reloaded(served.name, before, after))
        return changes

    async def _add(self, folder: Path) -> ServedModel:
        fresh = ServedModel(folder, await self._opened(folder))
        [fresh.embedder] = await self._loaded([fresh], beside=self._served)
        self._served.append(fresh)
        self._binding = True
        log.info("loaded: %s is served in addition (fingerprint %s)", fresh.name, fresh.model.manifest.fingerprint)
        return fresh

    async def _opened(self, folder: Path) -> Model:
        try:
            return await in_daemon_thread(lambda: ENGINES[self._settings.engine](folder))
        except (BundleError, OSError) as error:
            raise Invalid(str(error), field="bundle") from error
        except Exception as error:  # runtimes raise errors about a graph of many types
            raise Backend(f"{folder}: {error}") from error

    async def _loaded(self, fresh: Sequence[ServedModel], *, beside: Sequence[ServedModel]) -> list[Embedder]:
        """Load all models of `fresh`. If one model fails, close the encoders that were already loaded.

        Raises:
            Conflict: two models of `fresh` and `beside` have the same name.
            Backend: a model can't be loaded, or does not reproduce its golden vectors.
        """
        if said := clash([*fresh, *beside]):
            raise Conflict(said)
        embedders: list[Embedder] = []
        try:
            for served in fresh:
                try:
                    embedders.append(await self._load(served.model, log.debug))
                except Exception as error:  # runtimes raise errors of many types
                    raise Backend(f"{served.folder}: {error}") from error
        except BaseException:
            for embedder in embedders:
                await embedder.close()
            raise
        return embedders

    async def _load(self, model: Model, report: Callable[[str], None]) -> Embedder:
        report(f"loading {model.manifest.name}")
        engine = await in_daemon_thread(lambda: model.load(EngineOptions.of(self._settings)))
        embedder = Embedder(engine, model, self._settings, self._metrics, self._streams)
        report(f"testing the engine against the golden vectors of {model.manifest.name}")
        try:
            await _self_test(embedder)
        except BaseException:
            await embedder.close()
            raise
        log.info("serving %s (%s)", summary(model.manifest), engine.choice)
        return embedder

    def _retire(self, embedder: Embedder | None) -> None:
        assert embedder, "no change is possible before the first load"
        retiring = asyncio.create_task(embedder.close_when_free())
        self._retiring.add(retiring)
        retiring.add_done_callback(self._retiring.discard)


class Reloaded(NamedTuple):
    """Fingerprints of a reloaded model's old and new bundle."""

    name: str
    old: str
    new: str


@dataclass(eq=False)
class ServedModel:
    """A served bundle. Its encoder can be replaced."""

    folder: Path
    model: Model
    """The model that is served, or that is being loaded. A reload replaces it.

    Code that answers a request therefore uses the manifest of the request's embedder.
    """
    embedder: Embedder | None = None
    """The loaded encoder with its engine, queue, manifest and report. None until the encoder is loaded."""

    @property
    def name(self) -> str:
        """Name of the model in requests."""
        return self.model.manifest.name

    @property
    def ready_embedder(self) -> Embedder:
        """The loaded encoder.

        Raises:
            Unhealthy: the encoder is not loaded yet.
        """
        if not self.embedder:
            raise Unhealthy(f"{self.name} is not loaded yet", retry_after=1)
        return self.embedder


def clash(served: Iterable[ServedModel]) -> str:
    """Return a message about two models of the same name. If all names differ, the message is empty."""
    served = list(served)
    name, count = Counter(served.name for served in served).most_common(1)[0]
    folders = " and ".join(str(served.folder) for served in served if served.name == name)
    return f"{folders} have the same name {name!r}: export one of them under another name (--name)" if count > 1 else ""


def unfit(default: ServedModel) -> str:
    """Return a message if the default model is not an encoder. For an encoder, the message is empty."""
    if default.model.manifest.kind == ENCODER:
        return ""
    return (
        f"{default.folder}: the first model is the default model, which can't be a cross-encoder: give the "
        "--bundle of an encoder first"
    )


def in_daemon_thread(work: Callable[[], T]) -> asyncio.Future[T]:
    """Run `work` in a daemon thread, and return its future.

    Call this for work that can't be interrupted, such as the loading of a model, because a daemon thread does not
    delay the exit of the server.
    """
    return asyncio.wrap_future(in_native_thread(work, "loading"))


async def _self_test(embedder: Embedder) -> None:
    """Compare the engine's vectors with the bundle's golden vectors, or a cross-encoder's scores with golden scores.

    The metrics of batches and of the queue include this test, and the metrics of requests do not.

    Raises:
        EngineError: the vectors or the scores differ.
    """
    golden = embedder.manifest.golden
    if not golden:
        return
    if embedder.manifest.kind == CROSS_ENCODER:
        await _test_scores(embedder, golden)
        return
    tokens = await asyncio.to_thread(embedder.engine.tokenize, [one.text for one in golden], "right")
    if embedder.overtaking:  # the first batch in the extra thread may compile the graph, which takes long
        await asyncio.to_thread(embedder.engine.embed, tokens[:1], alone=True)
    answer = await embedder.batcher.submit(tokens)
    for one, vector in zip(golden, answer.vectors, strict=True):
        expected = np.array(one.vector, dtype=np.float32)
        cosine = float(vector @ expected / max(float(np.linalg.norm(expected)), 1e-12))
        if not (math.isfinite(cosine) and cosine >= GOLDEN_COSINE):
            raise EngineError(
                f"the engine's vector of {one.text!r} differs from the golden vector of the bundle: their cosine "
                f"is {cosine:.6f}, below {GOLDEN_COSINE}"
            )


async def _test_scores(embedder: Embedder, golden: Sequence[Golden]) -> None:
    pairs = [(one.text, one.text_pair or "") for one in golden]
    tokens = await asyncio.to_thread(embedder.engine.tokenize_pairs, pairs, "right")
    answer = await embedder.batcher.submit(tokens)
    difference = largest_difference(answer.vectors[:, 0], [one.vector[0] for one in golden])
    if not difference <= GOLDEN_DIFFERENCE:
        raise EngineError(
            f"the engine's scores differ from the golden scores of the bundle by {difference:.6f}, "
            f"more than {GOLDEN_DIFFERENCE}"
        )
