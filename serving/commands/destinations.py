"""Destinations of a command's documents: a corpus in the data folder, or a corpus of a running server."""

from __future__ import annotations

import asyncio
import http.client
import json
import sys
import time
import urllib.error
import urllib.request
import uuid
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from http import HTTPStatus
from itertools import chain
from typing import Any, BinaryIO, Protocol
from urllib.parse import quote, urlencode

from tqdm import tqdm

from models.errors import Refused
from serving import errors
from serving.corpora.backend import Backend as Corpora
from serving.corpora.backend import DocumentCursor, DocumentPage
from serving.corpora.filter_language import compile_filter
from serving.corpora.filters import Filter
from serving.corpora.ingest.documents import Upload, read_upload
from serving.corpora.ingest.uploading import MEDIA, Options, rows
from serving.corpora.ingest.vectors import VectorRule
from serving.corpora.values import Corpus, OwnVectors
from serving.errors import (
    Backend,
    Conflict,
    Empty,
    Expired,
    InsufficientStorage,
    Invalid,
    Malformed,
    Overloaded,
    ServiceError,
    TooLarge,
    TooSlow,
    Unhealthy,
    UnsupportedMedia,
)
from serving.jobs import Duplicate, Job
from serving.jobs.upload_order import UPLOAD
from serving.operations.threads import in_thread
from serving.service import Service

PIECE = 1 << 20
PAGE = 1000
POLL_SECONDS, MAX_POLL_SECONDS = 0.2, 2.0
"""Seconds between two requests for the state of a job, at first and at most."""
PATIENCE = 600.0
"""Maximum seconds to wait for an answer of the server. After temporary errors, requests for a job are repeated for up
to the same time."""
CREATED, ACCEPTED = 201, 202
REFUSED = (Malformed, Empty, TooLarge, UnsupportedMedia, Invalid, Overloaded, InsufficientStorage)
"""Errors after which certainly no document of a file is stored, and no job stores one later."""
RETRIED = (Conflict, Overloaded, Unhealthy, InsufficientStorage, Expired, TooSlow)
"""Temporary errors. The same request may succeed later."""
Body = Mapping[str, Any] | Callable[[], Iterable[bytes]]
"""Body of a request: an object that is sent as JSON, or a function that returns the bytes, also for a repetition."""
_ERRORS: dict[int, type[ServiceError]] = {
    one.status: one
    for one in reversed(vars(errors).values())
    if isinstance(one, type) and issubclass(one, ServiceError) and one is not ServiceError
}
"""The first, and most general, error class of each HTTP status."""


@dataclass(frozen=True)
class Added:
    """Result of adding one file to a corpus."""

    documents: int
    truncated: int = 0
    errors: Sequence[str] = ()
    """Errors of skipped rows, or the reason why the job failed."""
    state: str = "succeeded"
    """Final state of the job that added the file."""
    total: int | None = None


class Destination(Protocol):
    """A corpus to which a command adds documents."""

    async def create(self, stemming: str | None, *, own_vectors: bool = False) -> bool:
        """Create the corpus if it does not exist. Return whether the corpus was created."""

    async def drop_empty(self) -> None:
        """Delete the corpus if it has no documents."""

    async def add(self, file: BinaryIO, options: Options, *, whole: bool = False, key: str = "") -> Added:
        """Store the documents of a file.

        With `whole`, the file is always stored by a job. Otherwise a small file may be stored without a job. If an
        answer of the server is lost, a repetition with the same `key` stores no document twice.

        Raises:
            ServiceError: the file was refused, or the answer of the server was lost. If the error is one of the classes
                in `REFUSED`, no document is stored. After other errors, documents may be stored.
        """

    async def remove(self, where: Mapping[str, Any]) -> None:
        """Remove the documents that match a filter."""

    def metadata(self, where: Mapping[str, Any]) -> AsyncIterator[Mapping[str, Any]]:
        """Yield the metadata of the documents that match a filter."""


class Local:
    """A corpus in the data folder."""

    def __init__(self, service: Service, corpus: str) -> None:
        self._service, self._library = service, service.library
        self._corpus = service.aliases.corpora.get(corpus, corpus)

    async def create(self, stemming: Any, *, own_vectors: bool = False) -> bool:
        corpus, encoder = Corpus(self._corpus, stemming=stemming), OwnVectors() if own_vectors else None
        return await self._library.run(lambda corpora: corpora.create(corpus, encoder), of=self._corpus)

    async def drop_empty(self) -> None:
        def drop(corpora: Corpora) -> None:
            _, size = corpora.corpus(self._corpus)
            if not size.documents:
                corpora.drop(self._corpus)

        await self._library.run(drop, of=self._corpus)

    async def add(self, file: BinaryIO, options: Options, *, whole: bool = False, key: str = "") -> Added:  # noqa: ARG002
        rule = await self._library.upload_rule(self._corpus, options.chunking, options.embedded_by)
        if not whole:
            if (upload := await in_thread(partial(self._small, file, options, rule))) is not None:
                return await self._stored(upload, options)
            file.seek(0)
        return await self._followed(await self._submitted(file, options))

    async def _stored(self, upload: Upload, options: Options) -> Added:
        await in_thread(self._service.disk_quota.check)
        added = await self._library.add(
            self._corpus, upload.documents, options.chunking, embedded_by=options.embedded_by
        )
        return Added(len(upload.documents), added.truncated, [rejected.error for rejected in upload.rejected])

    def _small(self, file: BinaryIO, options: Options, rule: VectorRule) -> Upload | None:
        settings = self._service.settings
        return read_upload(rows(file, options, settings), settings, rule, skip_errors=options.on_error == "skip")

    async def _submitted(self, file: BinaryIO, options: Options) -> Job:
        jobs = self._service.jobs
        async with jobs.spool() as spool:
            while piece := await asyncio.to_thread(file.read, PIECE):
                await spool.write(piece)
            try:
                return await jobs.submit(UPLOAD, self._corpus, options.model_dump(), spool=spool)
            except Duplicate as duplicate:
                _tell_followed(duplicate)
                return await jobs.job(duplicate.job)

    async def _followed(self, job: Job) -> Added:
        with tqdm(unit="doc", disable=not sys.stderr.isatty()) as bar:
            async for event in self._service.jobs.events(job.id):
                if event is not None:
                    job, bar.total = event, event.total
                    bar.update(event.done - bar.n)
        found = _messages(job.errors, job.error_count)
        return Added(job.done, job.result.get("truncated", 0), found, job.state, job.total)

    async def remove(self, where: Mapping[str, Any]) -> None:
        compiled = compile_filter(where)
        await self._library.stoppable(
            lambda corpora: corpora.delete_where(self._corpus, compiled), of=self._corpus, charged=True
        )

    async def metadata(self, where: Mapping[str, Any]) -> AsyncIterator[Mapping[str, Any]]:
        compiled, after = compile_filter(where), None
        while True:
            page = await self._page(compiled, after)
            for document in page.documents:
                yield document.metadata
            if (after := page.following) is None:
                return

    async def _page(self, where: Filter, after: DocumentCursor | None) -> DocumentPage:
        return await self._library.read(
            lambda corpora: corpora.page(self._corpus, after, PAGE, where), of=self._corpus, charged=True
        )


class Remote:
    """A corpus of a running server. Requests are sent in threads, with the HTTP client of the standard library."""

    def __init__(self, url: str, corpus: str, key: str | None) -> None:
        if not url.startswith(("http://", "https://")):
            raise Refused(f"--url: {url!r} must begin with http:// or https://")
        # Check here, because an error of the HTTP client would contain the key.
        if key and not (key.isascii() and key.isprintable()):
            raise Refused("ISOSPHERE_API_KEY: contains characters that API keys never contain")
        self._url = url.rstrip("/")
        self._path = f"/corpora/{quote(corpus)}"
        self._headers = {"authorization": f"Bearer {key}"} if key else {}

    async def create(self, stemming: str | None, *, own_vectors: bool = False) -> bool:
        body = {} if stemming is None else {"stemming": stemming}
        body |= {"vectors": "own"} if own_vectors else {}
        status, _ = await self._ask("PUT", self._path, body)
        return status == CREATED

    async def drop_empty(self) -> None:
        _, corpus = await self._ask("GET", self._path)
        if not corpus["documents"]:
            await self._ask("DELETE", self._path)

    async def add(self, file: BinaryIO, options: Options, *, whole: bool = False, key: str = "") -> Added:
        query = options.model_dump(exclude_defaults=True, exclude={"format", "coding", "charset"})
        query = {name: value if isinstance(value, str | int) else json.dumps(value) for name, value in query.items()}
        media = next(media for media, format in MEDIA.items() if format == options.format)
        media += f"; charset={options.charset}" if options.charset else ""
        path = f"{self._path}/documents?{urlencode({'async': str(whole).lower(), **query})}"
        boundary = uuid.uuid4().hex
        begun: Callable[[], Iterable[bytes]] = partial(_begun, file)
        if options.format == "text":
            begun, media = partial(_form, file, media, boundary), f"multipart/form-data; boundary={boundary}"
        headers = {"content-type": media, **({"idempotency-key": key} if key else {})}
        try:
            status, body = await self._ask("POST", path, begun, headers, repeatable=file.seekable())
        except Duplicate as duplicate:
            _tell_followed(duplicate)
            status, body = ACCEPTED, await self._job(duplicate.job)
        if status != ACCEPTED:
            return Added(body["count"], errors=[error["error"] for error in body.get("errors", ())])
        try:
            body = await self._followed(body)
        except asyncio.CancelledError:  # by Ctrl-C
            print(f"isosphere ingest: DELETE /jobs/{body['id']} cancels the job of this file", file=sys.stderr)
            raise
        cut = (body["result"] or {}).get("truncated", 0)
        found = _messages(body["errors"], body["error_count"])
        return Added(body["done"], cut, found, body["state"], body["total"])

    async def _followed(self, job: Any) -> Any:
        """Wait until a job ends, and return it."""
        pause = POLL_SECONDS
        with tqdm(unit="doc", disable=not sys.stderr.isatty()) as bar:
            while job["state"] in ("queued", "running"):
                await asyncio.sleep(pause)
                pause = min(1.2 * pause, MAX_POLL_SECONDS)
                job = await self._job(job["id"])
                bar.total = job["total"]
                bar.update(job["done"] - bar.n)
        return job

    async def _job(self, id: str) -> Any:
        """Return a job. After a temporary error, try again for up to `PATIENCE` seconds, because the job continues."""
        began = time.monotonic()
        while True:
            try:
                return (await self._ask("GET", f"/jobs/{id}"))[1]
            except RETRIED as error:
                if time.monotonic() - began > PATIENCE:
                    raise Unhealthy(f"job {id} was accepted, but can't be followed: {error}") from None
                await asyncio.sleep(POLL_SECONDS)

    async def remove(self, where: Mapping[str, Any]) -> None:
        await self._ask("DELETE", f"{self._path}/documents", {"filter": where})

    async def metadata(self, where: Mapping[str, Any]) -> AsyncIterator[Mapping[str, Any]]:
        query = {"limit": str(PAGE), "filter": json.dumps(where)}
        while True:
            _, page = await self._ask("GET", f"{self._path}/documents?{urlencode(query)}")
            for document in page["documents"]:
                yield document["metadata"]
            if page["cursor"] is None:
                return
            query["cursor"] = page["cursor"]

    async def _ask(
        self,
        method: str,
        path: str,
        body: Body | None = None,
        headers: Mapping[str, str] = {},
        *,
        repeatable: bool = True,
    ) -> tuple[int, Any]:
        """Send a request. Return the status and the body of the answer.

        If the server refuses a `repeatable` request for the moment (`Overloaded`), and says when to repeat it, the
        request is repeated then, for up to `PATIENCE` seconds.

        Raises:
            ServiceError: the server answered with this error.
            Unhealthy: the server can't be reached, or its answer is not valid.
        """
        until = time.monotonic() + PATIENCE
        while True:
            try:
                return await asyncio.to_thread(self._asked, method, path, body, headers)
            except Overloaded as error:
                if not repeatable or error.retry_after is None or time.monotonic() + error.retry_after > until:
                    raise
                await asyncio.sleep(error.retry_after)

    def _asked(self, method: str, path: str, body: Body | None, headers: Mapping[str, str]) -> tuple[int, Any]:
        data = json.dumps(body).encode() if isinstance(body, Mapping) else body and body()
        headers = {"content-type": "application/json", **self._headers, **headers}
        request = urllib.request.Request(self._url + path, data, headers, method=method)
        try:
            with OPENER.open(request, timeout=PATIENCE) as answer:
                return answer.status, json.loads(answer.read() or b"null")
        except urllib.error.HTTPError as error:
            raise _error_of(error) from None
        except (OSError, http.client.HTTPException, ValueError) as error:
            raise Unhealthy(f"{self._url}: {getattr(error, 'reason', error)}") from None


def _tell_followed(duplicate: Duplicate) -> None:
    print(f"isosphere ingest: follows the job {duplicate.job}, which already stores the same file", file=sys.stderr)


def _messages(errors: Iterable[Mapping[str, Any]], count: int) -> list[str]:
    """Return the messages of a job's `errors`.

    A job keeps only the first errors, and `count` is the number of all errors. If some errors were not kept, the last
    message gives their number.
    """
    kept = [str(error["error"]) for error in errors]
    return kept if count == len(kept) else [*kept, f"and {count - len(kept)} more errors"]


def _begun(file: BinaryIO) -> BinaryIO:
    if file.seekable():
        file.seek(0)
    return file


def _form(file: BinaryIO, media: str, boundary: str) -> Iterable[bytes]:
    """Return the body of a form that contains `file`.

    Text files are sent in a form, so that the server stores each line as a text, even if the file begins like JSON. As
    a body of the type text/plain, a file that begins like JSON would be refused.
    """
    disposition = 'form-data; name="file"; filename="a.txt"'
    head = f"--{boundary}\r\ncontent-disposition: {disposition}\r\ncontent-type: {media}\r\n\r\n"
    pieces = iter(partial(_begun(file).read, PIECE), b"")
    return chain([head.encode()], pieces, [f"\r\n--{boundary}--\r\n".encode()])


class _Connection(http.client.HTTPConnection):
    """Connection whose answer can be read even if the server did not read the whole request.

    A server that refuses a request, for example with the status 429, may close the connection before it has received
    the whole body.
    """

    def request(self, *arguments: Any, **options: Any) -> None:
        with suppress(BrokenPipeError, ConnectionResetError):
            super().request(*arguments, **options)


class _SecureConnection(_Connection, http.client.HTTPSConnection):
    """The same over TLS."""


class _Handler(urllib.request.HTTPHandler):
    def http_open(self, req: urllib.request.Request) -> http.client.HTTPResponse:
        return self.do_open(_Connection, req)


class _SecureHandler(urllib.request.HTTPSHandler):
    def https_open(self, req: urllib.request.Request) -> http.client.HTTPResponse:
        return self.do_open(_SecureConnection, req)


OPENER = urllib.request.build_opener(_Handler, _SecureHandler)


def _error_of(answer: urllib.error.HTTPError) -> ServiceError:
    """Convert an HTTP error to the `ServiceError` that has the same status.

    If the server already has a job equal to the requested one, the error becomes `Duplicate`. If no
    `ServiceError` has the status, the error becomes `Backend` for a status up to 500, and `Unhealthy` for a status
    above 500, which comes from a proxy that can't reach the server.
    """
    try:
        body = json.loads(answer.read())
        message = body["error"]
    except (OSError, ValueError, KeyError, TypeError):
        body, message = {}, f"the server answered {answer.code} {answer.reason}"
    if answer.code == HTTPStatus.CONFLICT and "job" in body:
        return Duplicate(body["job"])
    if answer.code == HTTPStatus.UNAUTHORIZED:
        message = f"{message}. The command sends the key in ISOSPHERE_API_KEY"
    wait = answer.headers.get("retry-after", "")
    kind = _ERRORS.get(answer.code, Unhealthy if answer.code > 500 else Backend)
    return kind(str(message), retry_after=float(wait) if wait.isdecimal() else None)
