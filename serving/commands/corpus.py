"""Commands that use corpora in a data folder without a server: `isosphere ingest`, `isosphere search` and others."""

from __future__ import annotations

import argparse
import asyncio
import logging
import sys
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, closing, contextmanager
from pathlib import Path
from typing import BinaryIO

import orjson
import uvloop
from tqdm import tqdm

from models.bundle.disk import error_line_and_status, replacing
from models.cli import command_line
from models.errors import Refused
from serving.commands.copying import copy
from serving.commands.starting import opened_corpora, opened_models, opened_service, with_bundles
from serving.corpora.backend import Backend
from serving.corpora.indexes.saved import damage
from serving.corpora.ingest import Options
from serving.corpora.ingest.table import read_column_types
from serving.corpora.ports import StoreError
from serving.corpora.search import Hit, Mode, SearchOptions, shown
from serving.errors import ServiceError
from serving.inference.engine import EngineError
from serving.jobs import Duplicate, Job
from serving.jobs.ingestion import check_fits
from serving.jobs.upload_order import UPLOAD
from serving.operations import logs
from serving.options import CALLED
from serving.service import Service
from serving.settings import Settings, SettingsError, read_settings

PIECE = 1 << 20
PAGE = 1000


class _Failed(Exception):
    """The command failed; the message is one line."""


def run(verb: str, given: argparse.Namespace, rest: Sequence[str]) -> int:
    """Run a command with its own options and, in `rest`, those of the server.

    Return the exit status: 1 if the work failed, 2, after one line, for a mistake of the user.
    """
    name = f"isosphere {CALLED.get(verb, verb)}"
    try:
        settings = read_settings(rest)
        logs.configure(settings.log_format)
        for package in ("serving", "models"):
            logging.getLogger(package).setLevel(logging.WARNING)
        if verb not in ("ingest", "copy") and not settings.on_milvus and not (settings.data / "corpora").is_dir():
            raise SettingsError(f"--data: there is no corpus in {settings.data}")
        if verb in ("export", "verify", "copy"):
            status = {"export": _export, "verify": _verify, "copy": copy}[verb](settings, given)
        else:
            status = uvloop.run({"ingest": _ingest, "search": _search}[verb](settings, given))
        command_line.flush()
    except OSError as error:
        if command_line.has_gone(error):
            return command_line.GONE
        line, status = error_line_and_status(error)
        print(f"{name}: {line}", file=sys.stderr)
        return status
    except (SettingsError, Refused, EngineError, StoreError, ServiceError) as error:
        print(f"{name}: {error}", file=sys.stderr)
        return 2
    except _Failed as error:
        print(f"{name}: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print(f"{name}: stopped; what was committed is kept, and the same command goes on", file=sys.stderr)
        return 130
    return status


async def _ingest(settings: Settings, given: argparse.Namespace) -> int:
    """Ingest a file as a job, as the server does. After a kill, the next server or command resumes it."""
    if given.file.is_dir():
        raise Refused(f"{given.file} is a folder: name a file of documents")
    options = Options.of_file(
        given.file,
        given.charset,
        text_column=given.text_column,
        id_column=given.id_column,
        column_types=read_column_types(given.column_types),
        on_error=given.on_error,
        chunk_tokens=given.chunk_tokens,
        chunk_overlap=given.chunk_overlap,
    )
    chunking = options.chunking
    with given.file.open("rb") as file:
        async with _service(settings) as service:
            created = await service.library.run(
                lambda corpora: corpora.create(given.corpus, stemming=given.stemming), of=given.corpus
            )

            async def nothing_came() -> None:
                if created:
                    await service.library.run(lambda corpora: corpora.drop(given.corpus), of=given.corpus)

            try:
                async with service.library.encoder_of(given.corpus) as embedder:
                    check_fits(chunking, embedder)
                job = await _followed(service, await _submitted(service, given.corpus, options, file))
            except (ServiceError, OSError):
                await nothing_came()
                raise
            if job.state != "succeeded" and not job.done:
                await nothing_came()
    for error in job.errors:
        print(f"{given.file}: {error['error']}", file=sys.stderr)
    if job.state != "succeeded":
        of_all = "" if job.total is None else f" of {job.total}"
        raise _Failed(f"{job.state} after {job.done}{of_all} documents")
    cut = f", {truncated} cut to what the encoder reads" if (truncated := job.result.get("truncated")) else ""
    print(f"{given.corpus}: {job.done} documents{cut}", file=sys.stderr)
    return 0


async def _submitted(service: Service, corpus: str, options: Options, file: BinaryIO) -> Job:
    async with service.jobs.spool() as spool:
        while piece := await asyncio.to_thread(file.read, PIECE):
            await spool.write(piece)
        try:
            return await service.jobs.submit(UPLOAD, corpus, options.model_dump(), spool=spool)
        except Duplicate as duplicate:
            print(f"isosphere ingest: goes on with {duplicate.job}, which reads the same file", file=sys.stderr)
            return await service.jobs.job(duplicate.job)


async def _followed(service: Service, job: Job) -> Job:
    with tqdm(unit="doc", disable=not sys.stderr.isatty()) as bar:
        async for event in service.jobs.events(job.id):
            if event is not None:
                job, bar.total = event, event.total
                bar.update(event.done - bar.n)
    return job


async def _search(settings: Settings, given: argparse.Namespace) -> int:
    options = SearchOptions(k=given.k, mode=given.mode, exact=given.exact, where=given.filter)
    async with _service(settings) as service:
        found = await service.library.search(given.corpus, [given.query], options)
    _warn(found.warnings)
    for hit in found.hits[0]:
        print(_json(hit, given.mode) if given.json else f"{hit.score:.4f}  {_name(hit)}  {_line(hit.text)}")
    return 0


def _export(settings: Settings, given: argparse.Namespace) -> int:
    """Write one document on each line, in the format that `ingest` reads."""
    with closing(opened_corpora(settings)) as corpora:
        if given.filter is not None:
            _warn(corpora.unmatched(given.corpus, given.filter))
        with _written(given.out) as out:
            after = None
            while True:
                page = corpora.page(given.corpus, after, PAGE, given.filter)
                out.writelines(
                    orjson.dumps({"id": one.id, "text": one.text, "metadata": dict(one.metadata)}) + b"\n"
                    for one in page.documents
                )
                if (after := page.following) is None:
                    break
            out.flush()
    return 0


def _warn(warnings: Sequence[str]) -> None:
    for warning in warnings:
        print(f"isosphere: --filter: {warning}", file=sys.stderr)


@contextmanager
def _written(out: Path | None) -> Iterator[BinaryIO]:
    """Open standard output, a pipe, or a file.

    An existing file is only replaced by a complete file, because it may be the last backup.
    """
    if out is None:
        yield sys.stdout.buffer
    elif out.exists() and not out.is_file():
        with out.open("wb") as pipe:
            yield pipe
    else:
        with replacing(out) as beside, beside.open("wb") as file:
            yield file


def _verify(settings: Settings, given: argparse.Namespace) -> int:
    """Verify every corpus, or the named corpora. Print one line for each corpus, with its errors."""
    wrong = 0
    with closing(opened_corpora(settings)) as corpora:
        for name in given.corpus or corpora.names():
            problems = [*corpora.verify(name), *damage(settings.data / "indexes" / name)]
            wrong += len(problems)
            print(f"{name}: {'; '.join(problems) or _whole(corpora, name)}")
    return 1 if wrong else 0


def _whole(corpora: Backend, name: str) -> str:
    _, size = corpora.corpus(name)
    return f"whole, {size.documents} documents, {size.passages} vectors"


@asynccontextmanager
async def _service(settings: Settings) -> AsyncIterator[Service]:
    settings = with_bundles(settings)
    service = opened_service(settings, opened_models(settings))
    async with service.running():
        await service.loaded.wait()
        if service.health.state != "ready":
            raise _Failed(service.health.reason)
        yield service


def _json(hit: Hit, mode: Mode) -> str:
    document, span = hit.passage
    scores = {"score": hit.score} | ({"dense": hit.dense, "lexical": hit.lexical} if mode == "hybrid" else {})
    told = {name: None if score is None else shown(score) for name, score in scores.items()}
    where = {} if span is None else {"span": span._asdict()}
    what = {"text": hit.text, "metadata": dict(document.metadata)}
    return orjson.dumps({"id": document.id, **told, **where, **what}).decode()


def _name(hit: Hit) -> str:
    document, span = hit.passage
    return document.id if span is None else f"{document.id}[{span.start}:{span.end}]"


def _line(text: str, width: int = 100) -> str:
    line = " ".join(text.split())
    return line if len(line) <= width else line[: width - 1] + "…"
