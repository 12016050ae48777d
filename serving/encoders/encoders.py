"""The encoders in service by name, and how others come, go and take their places while requests go on."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from models.bundle import BundleError
from serving.encoders.embedder import Embedder
from serving.encoders.loading import Loader
from serving.encoders.slot import Slot, clash
from serving.errors import Backend, Conflict, Forbidden, Invalid, NotFound, ServiceError, Unhealthy
from serving.ports import Model
from serving.settings import Settings
from serving.telemetry.metrics import Metrics

log = logging.getLogger(__name__)
T = TypeVar("T")


class Reloaded(NamedTuple):
    """A model, and the fingerprints of the bundle that served and of the one that serves now."""

    name: str
    old: str
    new: str


class Encoders:
    """An encoder for each bundle, the default one first.

    Another one is loaded and tested beside what it replaces and put in its place in one assignment. Whoever holds the
    old one finishes on it; then it is closed. Changes come one at a time.

    Raises:
        BundleError: two bundles have the same name.
    """

    def __init__(self, settings: Settings, models: Sequence[Model], metrics: Metrics) -> None:
        self._slots = [Slot(*one) for one in zip(settings.bundles, models, strict=True)]
        if said := clash(self._slots):
            raise BundleError(said)
        self._binding = len(models) > 1
        """Whether a name that nobody has is refused. Clients of a server of one model send all kinds of names; where
        there ever was another one, such a name may mean that one.
        """
        self._roots = {root for folder in settings.bundles if (root := folder.absolute().parent.resolve()).name}
        self._loader = Loader(settings, metrics)
        self._metrics = metrics
        self._changing: asyncio.Task[Any] | None = None
        self._retiring: set[asyncio.Task[None]] = set()

    @property
    def slots(self) -> tuple[Slot, ...]:
        """All of them, the default first."""
        return tuple(self._slots)

    @property
    def default(self) -> Slot:
        """For whoever names none."""
        return self._slots[0]

    @property
    def loaded(self) -> list[Embedder]:
        """Those at work, the default first."""
        return [slot.embedder for slot in self._slots if slot.embedder]

    @property
    def fingerprints(self) -> list[str]:
        """Of what is in service, the default's first."""
        return [slot.model.manifest.fingerprint for slot in self._slots]

    def named(self, name: str) -> Slot:
        """The one of that name.

        Raises:
            NotFound: there is none; the message says which there are.
        """
        for slot in self._slots:
            if slot.name == name:
                return slot
        names = ", ".join(repr(slot.name) for slot in self._slots)
        raise NotFound(f"there is no model {name!r}; this server runs {names}", field="model")

    def asked_for(self, name: str | None) -> Slot:
        """The one that a request means: where there was ever only one it is that, whatever the name.

        Raises:
            NotFound: there are others, and none of that name.
        """
        return self.named(name) if self._binding and name is not None else self.default

    async def load(self, report: Callable[[str], None]) -> None:
        """Load and test the first encoders; `report` hears what is being done.

        Raises:
            EngineError: one does not give its bundle's golden vectors, or can't run here.
        """
        for slot in self._slots:
            slot.put(await self._loader.load(slot.model, report))

    async def reload(self, name: str | None = None) -> list[Reloaded]:
        """Read the folder of one bundle, or of all, once more; on return all of it serves, or on an error none.

        Raises:
            NotFound: there is no model of that name.
            Conflict: another change is going on, or two would have the same name.
            Invalid: a folder is not a whole bundle.
            Backend: a bundle does not run here, or not as its golden vectors say.
            Unhealthy: the server began to drain meanwhile.
        """
        slots = self._slots if name is None else [self.named(name)]
        return await self._change(lambda: self._replace(list(slots)))

    async def add(self, folder: Path) -> Slot:
        """Serve one more bundle, from a folder beside those that the server was started with.

        Raises:
            Forbidden: the folder lies elsewhere.
            Conflict, Invalid, Backend, Unhealthy: see `reload`.
        """
        try:
            above = folder.resolve().parents
        except (OSError, RuntimeError, ValueError) as error:  # links in a circle, a zero byte
            raise Invalid(f"no path: {error}", field="bundle") from error
        if self._roots.isdisjoint(above):
            among = ", ".join(map(str, sorted(self._roots))) or "no folder"
            raise Forbidden(f"bundles are loaded from {among}: where those lie that the server was started with")
        return await self._change(lambda: self._add(folder))

    def remove(self, name: str) -> None:
        """Serve it no more; what was asked of it is finished.

        Raises:
            NotFound: there is no model of that name.
            Conflict: it is the default one, or a change is going on.
        """
        slot = self.named(name)
        if slot is self.default:
            raise Conflict(f"{name!r} is the default model: it stays")
        self._check_settled()
        self._slots.remove(slot)
        self._retire(slot.embedder)
        log.info("unloaded: %s", name)

    @property
    def failing(self) -> str:
        """Which engines fail batch after batch, and how; empty if none does."""
        return "; ".join(
            f"the last {len(one.batcher.failures)} batches of {one.manifest.name} failed: {one.batcher.failures[-1]}"
            for one in self.loaded
            if one.batcher.failing
        )

    async def probe(self) -> None:
        """Try once more those that fail."""
        for embedder in self.loaded:
            if embedder.batcher.failing:
                with suppress(ServiceError), embedder.held():
                    await embedder.probe()

    async def settled(self) -> None:
        """Return when no change is going on."""
        if self._changing:
            await asyncio.wait([self._changing])

    def stop_changing(self) -> None:
        """Give up the change that is going on; what is in service stays."""
        if self._changing:
            self._changing.cancel()

    async def close(self) -> None:
        """Close every encoder; whoever still waits for one is told that the server is going away."""
        self.stop_changing()
        await self.settled()
        for task in self._retiring:
            task.cancel()
        if self._retiring:
            await asyncio.wait(self._retiring)
        for embedder in self.loaded:
            await embedder.close()

    async def _change(self, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Do it to the end, also if its caller leaves."""
        self._check_settled()
        task: asyncio.Task[T] = asyncio.create_task(work())
        self._changing = task
        task.add_done_callback(self._ended)
        await asyncio.wait([task])
        if task.cancelled():
            raise Unhealthy("the server is shutting down", retry_after=1)
        return task.result()

    def _check_settled(self) -> None:
        if self._changing:
            raise Conflict("a reload is running, or a bundle is being loaded")

    def _ended(self, task: asyncio.Task[Any]) -> None:
        """Whoever asked may be gone: what came of it is in the log and the metrics all the same."""
        self._changing = None
        failure = None if task.cancelled() else task.exception()
        self._metrics.reloads.labels("failed" if task.cancelled() or failure else "done").inc()
        if failure:
            log.error("nothing is reloaded, what served goes on: %s", failure)

    async def _replace(self, slots: Sequence[Slot]) -> list[Reloaded]:
        fresh = [Slot(slot.folder, await self._opened(slot.folder)) for slot in slots]
        embedders = await self._loaded(fresh, beside=[slot for slot in self._slots if slot not in slots])
        return [self._put(slot, embedder) for slot, embedder in zip(slots, embedders, strict=True)]

    def _put(self, slot: Slot, embedder: Embedder) -> Reloaded:
        before = slot.model.manifest.fingerprint
        self._retire(slot.put(embedder))
        log.info("reloaded: %s serves (fingerprint %s)", slot.name, embedder.manifest.fingerprint)
        return Reloaded(slot.name, before, embedder.manifest.fingerprint)

    async def _add(self, folder: Path) -> Slot:
        fresh = Slot(folder, await self._opened(folder))
        for embedder in await self._loaded([fresh], beside=self._slots):
            fresh.put(embedder)
        self._slots.append(fresh)
        self._binding = True
        log.info("loaded: %s serves, too (fingerprint %s)", fresh.name, fresh.model.manifest.fingerprint)
        return fresh

    async def _opened(self, folder: Path) -> Model:
        try:
            return await self._loader.open(folder)
        except (BundleError, OSError) as error:
            raise Invalid(str(error), field="bundle") from error
        except Exception as error:  # what a runtime raises over a graph has no class of its own
            raise Backend(f"{folder}: {error}") from error

    async def _loaded(self, fresh: Sequence[Slot], *, beside: Sequence[Slot]) -> list[Embedder]:
        """All of `fresh` at work, or none."""
        if said := clash([*fresh, *beside]):
            raise Conflict(said)
        embedders: list[Embedder] = []
        try:
            for slot in fresh:
                try:
                    embedders.append(await self._loader.load(slot.model))
                except Exception as error:  # as above
                    raise Backend(f"{slot.folder}: {error}") from error
        except BaseException:
            for embedder in embedders:
                await embedder.close()
            raise
        return embedders

    def _retire(self, embedder: Embedder | None) -> None:
        assert embedder, "nothing changes before the first load"
        retiring = asyncio.create_task(_closed_when_released(embedder))
        self._retiring.add(retiring)
        retiring.add_done_callback(self._retiring.discard)


async def _closed_when_released(embedder: Embedder) -> None:
    try:
        await embedder.released()
    finally:
        await embedder.close()
