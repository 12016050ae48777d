"""The demo corpus of a new server. It contains documentation that is part of CPython."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Collection, Iterator
from contextlib import suppress
from itertools import islice, takewhile
from threading import Event

import orjson

from models.python_docs import Section, sections
from serving.corpora.backend import is_stale
from serving.corpora.ingest.uploading import Options
from serving.corpora.values import Corpus, Document, Size
from serving.errors import ServiceError
from serving.jobs import Duplicate, Job
from serving.jobs.job import digest_of
from serving.jobs.kinds import REEMBED
from serving.jobs.upload_order import UPLOAD
from serving.operations.threads import in_thread
from serving.service import Service

log = logging.getLogger(__name__)

NAME = "python-docs"
DESCRIPTION = "Documentation from CPython: the language reference and the docstrings of the standard library"
FIRST = "asyncio"
"""The package whose documents are embedded first. The example search that the server prints at startup finds one of
these documents."""
MAX_DOCUMENTS = 8_000
MAX_PARAGRAPHS = 2
MIN_CHARACTERS, MAX_CHARACTERS = 30, 200
"""Minimum and maximum characters of a paragraph. 200 characters have about 50 tokens. Longer paragraphs are cut, at
the end of a sentence if possible, and shorter paragraphs are left out."""
OPTIONS = Options(format="ndjson", on_error="skip").model_dump()
"""Options of the upload. With `on_error=skip`, documents that exceed the server's limits are left out."""


async def prepare(service: Service) -> None:
    """Create an empty demo corpus if the server has no corpus.

    If the encoder of an existing demo corpus is not served, start a job that embeds the corpus with the default
    encoder. The job keeps documents that users added. A corpus with the same name but another description is not the
    demo corpus.
    """
    corpora = service.library.corpora
    try:
        if not corpora.names():
            async with service.jobs.deleting(NAME):  # jobs of a deleted demo corpus must not write into the new one
                await service.library.threads.run(NAME, lambda: corpora.create(Corpus(NAME, DESCRIPTION)))
        elif any(_is_ours(*found) and is_stale(*found, service.encoders.fingerprints) for found in corpora.listing()):
            log.info(
                "the vectors of the demo corpus %s come from another encoder, so a job embeds the corpus again", NAME
            )
            with suppress(Duplicate):  # a job from before a restart of the server may still be queued
                await service.jobs.submit(REEMBED, NAME, {"model": service.encoders.default.name})
    except ServiceError as error:  # if the disk is full, for example, the server runs without the demo corpus
        log.warning("the demo corpus %s is not changed: %s", NAME, error)


async def fill(service: Service) -> None:
    """Upload the documents of the demo corpus in a job, and wait until the job ends.

    Do nothing unless the demo corpus is empty and had no upload, or the last upload of these documents failed.

    If the server is killed during the upload, the next server process resumes the upload. If that process serves
    another encoder, the resumed upload fails. `prepare` has then started a job that embeds the corpus with the new
    encoder. After this job, the documents are uploaded a second time. The second upload embeds only texts that are not
    stored yet.
    """
    try:
        for corpus, size in service.library.corpora.listing():
            if _is_ours(corpus, size):
                await _fill(service, corpus, size)
    except Exception as error:  # the server must keep running without the demo corpus
        is_told = isinstance(error, ServiceError)
        log.error("the demo corpus %s is not filled: %s", NAME, error, exc_info=not is_told)


async def _fill(service: Service, corpus: Corpus, size: Size) -> None:
    before = await _last_uploads(service, corpus)
    failed = {job.digest for job in before if job.state == "failed"}
    if not failed and (before or size.documents):
        return
    if not failed:
        log.info("a job fills the demo corpus %s; searches already work (--no-demo disables the demo corpus)", NAME)
    async with service.jobs.spool() as spool:
        left = Event()
        for line in await in_thread(lambda: _lines(left), on_cancel=left.set):
            await spool.write(line)
        if failed and digest_of(UPLOAD, NAME, OPTIONS, spool.digest) not in failed:
            return  # no upload of the demo's own documents failed
        job = await service.jobs.submit(UPLOAD, NAME, OPTIONS, spool=spool)
    job = await _ended(service, job)
    if job.ended:  # false if the server stops before the job ends
        log.info("the demo corpus %s: job %s %s with %d documents", NAME, job.id, job.state, job.done)


def _is_ours(corpus: Corpus, _size: Size) -> bool:
    return (corpus.name, corpus.description) == (NAME, DESCRIPTION)


async def _last_uploads(service: Service, corpus: Corpus) -> Collection[Job]:
    """Wait until the upload jobs of the corpus end, and return them.

    If several jobs uploaded the same documents, only the newest of these jobs is returned. Jobs from before the
    creation of the corpus are left out.
    """
    newest = {
        job.digest: job
        for job in reversed(await service.jobs.listing(of=NAME.__eq__))
        if job.kind == UPLOAD and job.created >= corpus.created
    }
    return [await _ended(service, job) for job in newest.values()]


async def _ended(service: Service, job: Job) -> Job:
    async for seen in service.jobs.events(job.id):
        job = seen or job
    return job


def _lines(left: Event) -> list[bytes]:
    """Return the documents as NDJSON lines, in an order that is fast to embed. Stop early if `left` is set."""
    found = takewhile(lambda _: not left.is_set(), _documents())
    # A batch pads all texts to the length of the longest text, so neighbouring texts should have similar lengths.
    ordered = sorted(
        found, key=lambda document: (document.metadata["module"].split(".")[0] != FIRST, len(document.text))
    )
    return [orjson.dumps(document._asdict()) + b"\n" for document in ordered]


def _documents() -> Iterator[Document]:
    """Yield up to `MAX_DOCUMENTS` paragraphs of Python's docstrings and language reference, each as a document.

    The metadata has the module, the name of the documented object, and the number of the paragraph.
    """
    seen: Counter[str] = Counter()
    for section, paragraph in islice(_paragraphs(), MAX_DOCUMENTS):
        name = f"{section.module}:{section.name}"
        seen[name] += 1  # several docstrings of a module may have the same name
        metadata = {"module": section.module, "name": section.name, "paragraph": seen[name]}
        yield Document(f"{name}#{seen[name]}", _cut(paragraph), metadata)


def _paragraphs() -> Iterator[tuple[Section, str]]:
    """Yield the first `MAX_PARAGRAPHS` paragraphs of each docstring of CPython, and all of its language reference.

    Of these paragraphs, those with fewer than `MIN_CHARACTERS` characters are left out.
    """
    for section in sections():
        kept = None if section.module == "topics" else MAX_PARAGRAPHS
        for paragraph in section.text.split("\n\n")[:kept]:
            if len(paragraph) >= MIN_CHARACTERS:
                yield section, paragraph


def _cut(paragraph: str) -> str:
    if len(paragraph) <= MAX_CHARACTERS:
        return paragraph
    sentence = paragraph.rfind(". ", 0, MAX_CHARACTERS) + 1
    word = max(paragraph.rfind(" ", 0, MAX_CHARACTERS), 0)
    return paragraph[: sentence or word or MAX_CHARACTERS]
