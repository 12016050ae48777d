"""Operations of the server, independent of HTTP."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal

from serving.corpora.aliases import ALIASES, Aliases
from serving.corpora.backend import Backend
from serving.corpora.disk_quota import DiskQuota
from serving.corpora.library import Library
from serving.corpora.ports import StoreError
from serving.corpora.snapshots import Snapshots
from serving.errors import ServiceError, TooLarge, Unhealthy
from serving.inference.embedder import Embedder
from serving.inference.embeddings import Embeddings, EmbedOptions, Inputs
from serving.inference.encoders import Encoders, Reloaded, in_daemon_thread
from serving.inference.engine import EngineError, Model
from serving.inference.inputs import At
from serving.inference.relevance import Method, Relevance, relevance
from serving.jobs import Jobs
from serving.jobs.adapting import Adaptations
from serving.jobs.job import progress_of
from serving.jobs.kinds import ADAPT, ALONE, CHANGE_NOTHING, REEMBED, JobKinds
from serving.jobs.upload_order import UPLOAD, UploadOrder
from serving.operations.bounds import check_some
from serving.operations.metrics import Metrics
from serving.operations.threads import CorpusThreads
from serving.settings import Settings

log = logging.getLogger(__name__)
RETRY_SECONDS = 2
SWEEP_SECONDS = 5
"""Seconds between two deletions of expired documents."""
PARSED_AT_ONCE = 2
"""Maximum number of uploaded files that child processes read at the same time. Files of jobs are not counted."""
MAPPED_AT_ONCE = 1
"""Maximum number of maps that are computed at the same time. Each computation needs hundreds of megabytes."""
PROBE_SECONDS = 1.0
"""Maximum seconds for which a readiness check waits for the probe of a failing engine. The probe itself continues after
this time."""


@dataclass(frozen=True)
class Health:
    """State of the server, and the reason if the server is not ready.

    A server with the state "failing" still tries to answer each request.
    """

    state: Literal["loading", "ready", "failing", "draining", "failed"]
    reason: str

    def __str__(self) -> str:
        """Return the public message about the state."""
        if self.state == "failed":  # the reason names paths and corpora
            return "failed: loading failed; the server's log has the reason"
        return f"{self.state}: {self.reason}"


class Service:
    """The operations of a server with its encoders and its corpora.

    Each encoder has its own queue. Without a model name, most methods use the first model. `prepare` runs after
    loading, before the first request is admitted. For example, it creates the demo corpus.

    Raises:
        BundleError: two models have the same name, or the first model is a cross-encoder.
    """

    def __init__(
        self,
        settings: Settings,
        model: Model,
        corpora: Backend,
        prepare: Callable[[Service], Awaitable[None]] | None = None,
        others: Sequence[Model] = (),
    ) -> None:
        self.settings = settings
        self.metrics = Metrics(settings.named_corpora)
        self.encoders = Encoders(settings, [model, *others], self.metrics)
        indexed, copied = settings.data / "indexes", settings.data / "snapshots"
        self.library = Library(corpora, self.encoders, self.metrics, self.admitted, self.remedy)
        self.parsing = CorpusThreads(PARSED_AT_ONCE)
        """Threads that wait for the child processes that read uploaded files. They are separate, so that searches never
        wait for the parsing of a file."""
        self.mapping = CorpusThreads(MAPPED_AT_ONCE)
        """Threads that wait for the child processes that compute maps."""
        self.adapting = CorpusThreads(1)
        """Threads that wait for the child processes that adapt encoders."""
        self.adaptations = Adaptations(settings.data / "adapting", settings.adapted)
        self.snapshots = Snapshots(self.library.corpora, copied, settings.bounds)
        self.disk_quota = DiskQuota(
            self.library.corpora,
            (indexed, copied, self.adaptations.working, self.adaptations.made),
            lambda sees, besides: self.jobs.uploaded(sees, besides),  # noqa: PLW0108 - there are none yet
            lambda name: self.jobs.requests.bytes(name),  # noqa: PLW0108
        )
        self.aliases = Aliases(settings.data / ALIASES)
        self.upload_order = UploadOrder(corpora)
        kinds = JobKinds(
            settings,
            self.encoders,
            self.library,
            self.snapshots,
            self.upload_order,
            self.disk_quota,
            self.mapping,
            self.adapting,
            self.adaptations,
        )
        self.jobs = Jobs(
            settings.data / "jobs",
            kinds.by_kind(),
            beside=CHANGE_NOTHING,
            alone=ALONE,
            accepting=kinds.accept,
            ended=kinds.ended,
            waiting=settings.key_jobs,
            answer_bytes=settings.max_idempotency_bytes,
        )
        self.health = Health("loading", "starting")
        self.loaded = asyncio.Event()
        """Event that is set when loading has succeeded or failed."""
        self._prepare = prepare
        self._loading: asyncio.Task[None] | None = None
        self._probing: asyncio.Task[None] | None = None
        self._running = 0
        self._receiving: set[asyncio.Timeout] = set()
        self._idle = asyncio.Event()
        self._idle.set()

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Load the encoders in the background while the `with` block runs.

        At the end of the `with` block, admitted requests have `drain_seconds` to finish.
        """
        self._loading = asyncio.create_task(self._load())
        sweeping = asyncio.create_task(self._remove_expired())
        try:
            yield
        finally:
            if self.health.state != "draining":
                await self.drain()
            sweeping.cancel()
            await asyncio.wait([self._loading, sweeping])
            await self.encoders.close()
            await asyncio.to_thread(self.jobs.close)
            for pool in (self.parsing, self.mapping, self.adapting, self.library):
                await asyncio.to_thread(pool.close)

    async def drain(self) -> bool:
        """Admit no more requests, and wait up to `drain_seconds` until the admitted requests are answered.

        Return whether all admitted requests finished in time.
        """
        self.health = Health("draining", "the server is shutting down")
        log.info(
            "stopping: waiting for the answers to %d requests, up to %g s", self._running, self.settings.drain_seconds
        )
        if self._loading:
            self._loading.cancel()
        self.encoders.stop_changing()
        # This loop ends the bodies that are arriving. Nothing may be awaited between the change of `health` and this
        # loop. Bodies that begin later expire at once, because `health` is "draining".
        for patience in self._receiving:
            patience.reschedule(asyncio.get_running_loop().time())
        await self.jobs.stop()
        try:
            async with asyncio.timeout(self.settings.drain_seconds):
                await self._idle.wait()
        except TimeoutError:
            log.warning("%d requests did not finish in %g s", self._running, self.settings.drain_seconds)
            return False
        finally:
            for threads in (self.parsing, self.mapping, self.adapting, self.library.threads):
                threads.stop()
        return True

    def remedy(self, corpus: str) -> str:
        """Return a message that tells users how to make a corpus searchable whose encoder is not served."""
        if job := self.jobs.under_way(REEMBED, corpus):
            return f"Job {job.id} embeds the corpus again: {progress_of(job, 'passages')} (GET /jobs/{job.id})"
        return f"POST /corpora/{corpus}/reembed embeds the corpus again. Or start the server with that encoder"

    @property
    def readiness(self) -> Health:
        """State of the server. It differs from `health` only if an engine fails batch after batch.

        If `health` is "ready" in this case, the state is "failing", and its reason names the engine.
        """
        failing = self.encoders.failing if self.health.state == "ready" else ""
        return Health("failing", failing) if failing else self.health

    async def probed(self) -> Health:
        """Probe failing engines, then return `readiness`.

        After a successful probe, the engine no longer counts as failing. Simultaneous callers share one probe, and no
        caller waits longer than `PROBE_SECONDS`.
        """
        if self.readiness.state == "failing":
            self._probing = self._probing or asyncio.create_task(self._probe())
            with suppress(TimeoutError):
                await asyncio.wait_for(asyncio.shield(self._probing), PROBE_SECONDS)
        return self.readiness

    async def _probe(self) -> None:
        try:
            await self.encoders.probe()
        finally:
            self._probing = None

    async def reload(self, model: str | None = None) -> list[Reloaded]:
        """Reload the bundle of `model`, or the bundles of all models. See `Encoders.reload`."""
        with self.admitted():
            return await self.encoders.reload(model)

    @contextmanager
    def admitted(self) -> Iterator[None]:
        """Admit a request. When the server stops, it waits up to `drain_seconds` until the `with` block ends.

        Raises:
            Unhealthy: the server is loading, draining or failed.
        """
        if self.health.state != "ready":
            raise Unhealthy(str(self.health), retry_after=RETRY_SECONDS)
        self._running += 1
        self._idle.clear()
        try:
            yield
        finally:
            self._running -= 1
            if not self._running:
                self._idle.set()

    @asynccontextmanager
    async def receiving(self) -> AsyncIterator[None]:
        """Receive a request's body while the `with` block runs.

        A drain does not wait for callers who are still sending.

        Raises:
            Unhealthy: the server began to drain before the body was complete.
        """
        try:
            async with asyncio.timeout(0 if self.health.state == "draining" else None) as patience:
                self._receiving.add(patience)
                try:
                    yield
                finally:
                    self._receiving.discard(patience)
        except TimeoutError:
            raise Unhealthy(str(self.health), retry_after=RETRY_SECONDS) from None

    def report(self, reason: str) -> None:
        """Set the reason in `health` while the server is loading. In other states, change nothing."""
        if self.health.state == "loading":
            self.health = Health("loading", reason)

    @contextmanager
    def encoder(self, model: str | None = None) -> Iterator[Embedder]:
        """Admit a request, and yield the encoder with the name `model`, by default the first encoder.

        If a reload replaces this encoder, the old encoder stays usable until the `with` block ends.

        Raises:
            Unhealthy: the server is not ready.
            NotFound: there is no such model.
        """
        with self.admitted(), self.encoders.requested(model).ready_embedder.held() as embedder:
            yield embedder

    async def embed(
        self,
        inputs: Inputs,
        options: EmbedOptions,
        field: str = "inputs",
        at: At | None = None,
        *,
        model: str | None = None,
    ) -> Embeddings:
        """Embed texts or token ids; see `Embedder.embed`."""
        with self.encoder(model) as embedder:
            return await embedder.embed(inputs, options, field, at)

    async def relevance(
        self,
        query: str,
        texts: Sequence[str],
        options: EmbedOptions,
        field: str,
        *,
        method: Method | None = None,
        model: str | None = None,
        max_tokens: int | None = None,
    ) -> Relevance:
        """Score the relevance of N texts for a query. See `serving.inference.relevance`.

        The model reads at most `max_tokens` tokens of each text. Texts that are cut by this limit count as truncated.

        Raises:
            TooLarge: `options` forbid truncation, but a text is too long.
        """
        check_some(texts, field)
        cut: list[int] = []
        served, method = self.encoders.scorer(model, method)
        with self.admitted(), served.ready_embedder.held() as embedder:
            if max_tokens is not None:
                texts, cut = await embedder.beginnings(texts, max_tokens, field)
            if cut and not options.truncate:
                message = f"has more than {max_tokens} tokens, and truncation is false"
                raise TooLarge(message, field=f"{field}.{cut[0]}")
            found = await relevance(embedder, query, texts, options, field, method=method)
        truncated = min(found.computed.truncated + len(cut), 1 + len(texts))
        return replace(found, computed=replace(found.computed, truncated=truncated))

    async def _index_where_the_encoder_runs(self) -> None:
        """Move the search of corpora to the GPU if `--index auto` is set and an encoder runs on CUDA."""
        if self.settings.index != "auto" or all(one.engine.device != "cuda" for one in self.encoders.loaded):
            return
        self.report("testing search on the CUDA device")
        if reason := await in_daemon_thread(self.library.corpora.use_gpu):
            log.warning("indexes stay on the CPU: %s", reason)

    async def _remove_expired(self) -> None:
        """Delete expired documents every few seconds.

        Reads do not return an expired document, even before it is deleted.
        """
        await self.loaded.wait()
        while True:
            await asyncio.sleep(SWEEP_SECONDS)
            if self.health.state != "ready":
                return
            try:
                await self.library.threads.stoppable("", self.library.corpora.remove_expired)
            except ServiceError as error:
                log.warning("could not delete expired documents, will try again: %s", error)
            except Exception:
                log.exception("could not delete expired documents, will try again")

    async def _load(self) -> None:
        try:
            await self.encoders.load(self.report)
            await self._index_where_the_encoder_runs()
            self.report("opening the indexes")
            threads, unfinished = self.library.threads, self.jobs.unfinished
            await threads.run("", self.snapshots.sweep)
            await threads.run("", lambda: self.adaptations.sweep(partial(unfinished, ADAPT)))
            await threads.run("", lambda: self.upload_order.begin(partial(unfinished, UPLOAD)))
            await threads.read("", self.library.corpora.warm)
            if self._prepare:
                await self._prepare(self)
        except Exception as error:  # the server must keep running to report why it is not ready
            log.error("loading failed: %s", error, exc_info=not isinstance(error, EngineError | StoreError))
            self.health = Health("failed", str(error))
        else:
            if self.health.state == "loading":
                self.health = Health("ready", "")
                self.jobs.start()
        finally:
            self.loaded.set()
