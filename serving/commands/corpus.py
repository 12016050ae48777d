"""Commands that use corpora in a data folder without a server, such as `isosphere ingest` and `isosphere search`."""

from __future__ import annotations

import argparse
import logging
import sys
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, BinaryIO

import orjson
import uvloop

from models.bundle.disk import error_line_and_status, replacing
from models.cli import command_line
from models.errors import Failed, Refused
from serving.commands.copying import copy
from serving.commands.ingest import ingest
from serving.commands.options import CALLED, corpus_parser
from serving.commands.starting import corpus_of, opened_corpora, ready_service
from serving.corpora.backend import Backend
from serving.corpora.filters import Filter, with_id
from serving.corpora.indexes.saved import damage
from serving.corpora.ingest.rows import EXPIRES_AT, VECTOR
from serving.corpora.ports import StoreError
from serving.corpora.search import Hit, Mode, SearchOptions, shown
from serving.corpora.values import Document
from serving.errors import Backend as EngineFailed
from serving.errors import Expired, InsufficientStorage, Overloaded, ServiceError, TooSlow, Unhealthy, shortened
from serving.inference.engine import EngineError
from serving.operations import logs
from serving.operations.clock import timestamp
from serving.settings import Settings, SettingsError, read_settings

PAGE = 1000
FAILURES = (Failed, EngineFailed, Unhealthy, InsufficientStorage, Overloaded, Expired, TooSlow)
"""Errors that the user can't avoid by another input or another option."""


def run(verb: str, given: argparse.Namespace, rest: Sequence[str]) -> int:
    """Run a command and return its exit status.

    `given` has the options of the command, and `rest` has options of the server. The status is 1 if the work failed, 2
    if an input or option can't be used, and 130 after Ctrl-C. An error that ends the command is one line on stderr.
    """
    name = f"isosphere {CALLED.get(verb, verb)}"
    try:
        settings = read_settings(rest, corpus_parser(verb)._option_string_actions)
        logs.configure(settings.log_format)
        for package in ("serving", "models"):
            logging.getLogger(package).setLevel(logging.WARNING)
        if verb not in ("ingest", "copy") and not settings.on_milvus and not (settings.data / "corpora").is_dir():
            raise SettingsError(f"--data: the folder {settings.data} has no corpora")
        if verb in ("export", "verify", "copy"):
            status = {"export": _export, "verify": _verify, "copy": copy}[verb](settings, given)
        else:
            status = uvloop.run({"ingest": ingest, "search": _search}[verb](settings, given))
        command_line.flush()
    except OSError as error:
        if command_line.has_gone(error):
            return command_line.GONE
        line, status = error_line_and_status(error)
        print(f"{name}: {line}", file=sys.stderr)
        return status
    except (SettingsError, Refused, EngineError, StoreError, ServiceError, Failed) as error:
        print(f"{name}: {error}", file=sys.stderr)
        return 1 if isinstance(error, FAILURES) else 2
    except KeyboardInterrupt:
        kept = ""
        if verb == "ingest" and given.url:
            kept = "; the server keeps committed documents, and continues the jobs that it has accepted (GET /jobs)"
        elif verb == "ingest":
            kept = "; committed documents are kept, and the same command continues the work"
        print(f"{name}: stopped{kept}", file=sys.stderr)
        return 130
    return status


async def _search(settings: Settings, given: argparse.Namespace) -> int:
    options = SearchOptions(k=given.k, mode=given.mode, exact=given.exact, where=given.filter)
    async with ready_service(settings) as service:
        found = await service.library.search(
            service.aliases.corpora.get(given.corpus, given.corpus), [given.query], options
        )
    _warn(found.warnings)
    for hit in found.hits[0]:
        print(_json(hit, given.mode) if given.json else f"{hit.score:.4f}  {_name(hit)}  {_line(hit.text)}")
    return 0


def _export(settings: Settings, given: argparse.Namespace) -> int:
    """Write one JSON document per line, in the format that `isosphere ingest` reads."""
    name = corpus_of(settings, given.corpus)
    with closing(opened_corpora(settings)) as corpora:
        if given.filter is not None:
            _warn(corpora.unmatched(name, given.filter))
        own, _ = corpora.corpus(name)
        exported = _with_vectors if own.own_vectors else _documents
        with _written(given.out) as out:
            for document, more in exported(corpora, name, given.filter):
                row = {"id": document.id, "text": document.text, "metadata": dict(document.metadata), **more}
                if document.expires_at is not None:
                    row[EXPIRES_AT] = timestamp(document.expires_at)
                out.write(orjson.dumps(row, option=orjson.OPT_SERIALIZE_NUMPY) + b"\n")
            out.flush()
    return 0


def _documents(corpora: Backend, name: str, where: Filter | None) -> Iterator[tuple[Document, dict[str, Any]]]:
    after = None
    while True:
        page = corpora.page(name, after, PAGE, where)
        yield from ((document, {}) for document in page.documents)
        if (after := page.following) is None:
            return


def _with_vectors(corpora: Backend, name: str, where: Filter | None) -> Iterator[tuple[Document, dict[str, Any]]]:
    """Yield each document that matches `where`, and a dict with the document's vector.

    The export needs the vectors of a corpus whose documents came with vectors, because no encoder can compute them
    again.
    """
    for content in corpora.contents(name):
        for document, vector in zip(content.documents, content.vectors, strict=True):
            if where is None or where.matches(with_id(document.metadata, document.id)):
                yield document, {VECTOR: vector}


def _warn(warnings: Sequence[str]) -> None:
    for warning in warnings:
        print(f"isosphere: --filter: {warning}", file=sys.stderr)


@contextmanager
def _written(out: Path | None) -> Iterator[BinaryIO]:
    """Open standard output, a pipe or a file for writing.

    A file is replaced only after the new file is complete, because the old file may be the last backup.
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
    """Verify the corpora that the command line names, or all corpora if it names none.

    Print one line for each corpus, and return the exit status.
    """
    wrong = 0
    with closing(opened_corpora(settings)) as corpora:
        for name in [corpus_of(settings, one) for one in given.corpus or corpora.names()]:
            problems = [*corpora.verify(name), *damage(settings.data / "indexes" / name)]
            wrong += len(problems)
            print(f"{name}: {'; '.join(problems) or _whole(corpora, name)}")
    return 1 if wrong else 0


def _whole(corpora: Backend, name: str) -> str:
    _, size = corpora.corpus(name)
    return f"whole, {size.documents} documents, {size.passages} vectors"


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


def _line(text: str) -> str:
    return shortened(" ".join(text.split()), 100)
