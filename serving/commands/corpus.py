"""Commands that use corpora in a data folder without a server: `isosphere ingest`, `isosphere search` and others."""

from __future__ import annotations

import argparse
import asyncio
import logging
import sys
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any, BinaryIO, get_args

import orjson
import uvloop
from tqdm import tqdm

from models import command_line
from models.bundle.disk import error_line_and_status, replacing
from models.command_line import Parser
from models.errors import Refused
from serving.commands.starting import opened_models, opened_service, opened_store, with_bundles
from serving.corpora.filters import Filter, read_filter
from serving.corpora.indexes.saved import damage
from serving.corpora.ingest import Options
from serving.corpora.ingest.table import read_column_types
from serving.corpora.ports import Stemming, Store, StoreError
from serving.corpora.search import Hit, Mode, SearchOptions, shown
from serving.errors import Invalid, ServiceError
from serving.inference.engine import EngineError
from serving.jobs import Duplicate, Job
from serving.jobs.ingestion import check_fits
from serving.jobs.upload_order import UPLOAD
from serving.operations import logs
from serving.operations.bounds import check_corpus_name
from serving.service import Service
from serving.settings import Settings, SettingsError, read_settings

CALLED = {"export": "export-corpus", "verify": "verify-corpus"}
"""Names of verbs in the command `isosphere`, if they differ. The verb alone is a command for encoders."""
PIECE = 1 << 20
PAGE = 1000
MAX_HITS = 1000
_REST = "The options of `isosphere serve` are also accepted, such as --data, --bundle and --engine."


class _Failed(Exception):
    """The command failed; the message is one line."""


def run(verb: str, arguments: Sequence[str]) -> int:
    """Run a command and return its exit status.

    The status is 1 if the work failed. A mistake of the user gives status 2 and one line on stderr.
    """
    try:
        given, rest = _parser(verb).parse_known_args(arguments)
        settings = read_settings(rest)
        logs.configure(settings.log_format)
        for package in ("serving", "models"):
            logging.getLogger(package).setLevel(logging.WARNING)
        if verb != "ingest" and not (settings.data / "corpora").is_dir():
            raise SettingsError(f"--data: there is no corpus in {settings.data}")
        if verb in ("export", "verify"):
            status = {"export": _export, "verify": _verify}[verb](settings, given)
        else:
            status = uvloop.run({"ingest": _ingest, "search": _search}[verb](settings, given))
        command_line.flush()
    except OSError as error:
        if command_line.has_gone(error):
            return command_line.GONE
        line, status = error_line_and_status(error)
        print(f"serving {verb}: {line}", file=sys.stderr)
        return status
    except (SettingsError, Refused, EngineError, StoreError, ServiceError) as error:
        print(f"serving {verb}: {error}", file=sys.stderr)
        return 2
    except _Failed as error:
        print(f"serving {verb}: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print(f"serving {verb}: stopped; what was committed is kept, and the same command goes on", file=sys.stderr)
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
            print(f"serving ingest: goes on with {duplicate.job}, which reads the same file", file=sys.stderr)
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
    _warn("search", found.warnings)
    for hit in found.hits[0]:
        print(_json(hit, given.mode) if given.json else f"{hit.score:.4f}  {_name(hit)}  {_line(hit.text)}")
    return 0


def _export(settings: Settings, given: argparse.Namespace) -> int:
    """Write one document on each line, in the format that `ingest` reads."""
    store = opened_store(settings)
    try:
        if given.filter is not None:
            _warn("export", store.unmatched(given.corpus, given.filter))
        with _written(given.out) as out:
            after = 0
            while rows := store.page(given.corpus, after, PAGE, given.filter).rows:
                after = rows[-1][0]
                out.writelines(
                    orjson.dumps({"id": one.id, "text": one.text, "metadata": dict(one.metadata)}) + b"\n"
                    for _, one in rows
                )
            out.flush()
    finally:
        store.close()
    return 0


def _warn(verb: str, warnings: Sequence[str]) -> None:
    for warning in warnings:
        print(f"serving {verb}: --filter: {warning}", file=sys.stderr)


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
    store = opened_store(settings)
    try:
        names = given.corpus or store.names()
        wrong = 0
        for name in names:
            problems = [*store.verify(name), *damage(settings.data / "indexes" / name)]
            wrong += len(problems)
            print(f"{name}: {'; '.join(problems) or _whole(store, name)}")
    finally:
        store.close()
    return 1 if wrong else 0


def _whole(store: Store, name: str) -> str:
    size = store.size(name)
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


def _filter(given: str) -> Filter:
    return read_filter(given, "--filter")


def _hits(given: str) -> int:
    if not (given.isascii() and given.isdecimal() and 1 <= int(given[:5]) <= MAX_HITS):
        raise Invalid(f"must be 1 to {MAX_HITS}", field="-k")
    return int(given)


def _line(text: str, width: int = 100) -> str:
    line = " ".join(text.split())
    return line if len(line) <= width else line[: width - 1] + "…"


def _parser(verb: str) -> argparse.ArgumentParser:
    parser = Parser(prog=f"isosphere {CALLED.get(verb, verb)}", epilog=_REST, allow_abbrev=False)
    name: dict[str, Any] = {"type": check_corpus_name, "metavar": "NAME"}
    if verb == "ingest":
        parser.description = "Add the documents of a file to a corpus. The corpus is created if it does not exist."
        parser.add_argument(
            "file",
            type=Path,
            help="file of documents: ndjson, csv, json, or txt with one document per line; .gz and .zst are accepted",
        )
        parser.add_argument("--corpus", required=True, **name, help="name of the corpus")
        parser.add_argument("--text-column", help="csv column or json field with the text (default: text)")
        parser.add_argument("--id-column", help="csv column or json field with the id (default: id, if it exists)")
        parser.add_argument(
            "--column-types",
            default="header",
            metavar="header|auto|JSON",
            help='types of csv columns: header (year:number), auto (detected), or {"year": "number"} (default: header)',
        )
        parser.add_argument(
            "--charset",
            help="encoding of a csv or txt file, such as windows-1252 (default: that of a byte order mark, or UTF-8)",
        )
        parser.add_argument(
            "--on-error",
            choices=("fail", "skip"),
            default="fail",
            help="fail stops at the first invalid row, skip leaves out invalid rows (default: fail)",
        )
        parser.add_argument(
            "--chunk-tokens", type=int, help="split longer texts into passages of at most this many tokens"
        )
        parser.add_argument(
            "--chunk-overlap", type=int, help="number of tokens that a passage shares with the previous passage"
        )
        parser.add_argument(
            "--stemming",
            choices=get_args(Stemming),
            help="stemming of a new corpus for lexical search; porter compares English words by their stems",
        )
    elif verb == "search":
        parser.description = "Search a corpus."
        parser.add_argument("query", help="text to search for")
        parser.add_argument("--corpus", required=True, **name, help="name of the corpus")
        parser.add_argument("-k", type=_hits, default=10, help="maximum number of hits (default: 10)")
        parser.add_argument(
            "--mode", choices=("dense", "lexical", "hybrid"), default="dense", help="search mode (default: dense)"
        )
        parser.add_argument("--filter", type=_filter, help="filter on the metadata, as JSON")
        parser.add_argument("--exact", action="store_true", help="use exact search instead of the approximate index")
        parser.add_argument("--json", action="store_true", help="print one hit per line, as JSON")
    elif verb == "export":
        parser.description = "Write the documents of a corpus as JSON, one per line."
        parser.add_argument("--corpus", required=True, **name, help="name of the corpus")
        parser.add_argument("--out", type=Path, help="file to write (default: standard output)")
        parser.add_argument("--filter", type=_filter, help="filter on the metadata, as JSON (default: all documents)")
    else:
        parser.description = "Check every byte of the corpora and report errors."
        parser.add_argument("--corpus", action="append", **name, help="corpus to check; may be repeated (default: all)")
    return parser
