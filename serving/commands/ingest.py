"""Command `isosphere ingest`: add documents from a file, from standard input or from a folder to a corpus."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

from models.errors import Failed, Refused, first_line
from serving.commands.destinations import REFUSED, Destination, Local, Remote
from serving.commands.folder import Folder, Round
from serving.commands.starting import ready_service
from serving.corpora.ingest.reading import check_installed
from serving.corpora.ingest.table import read_column_types
from serving.corpora.ingest.uploading import FILES, Options, read_metadata
from serving.settings import Settings

STANDARD_INPUT = Path("-")


async def ingest(settings: Settings, given: argparse.Namespace) -> int:
    """Ingest the file or folder of the command line. Return the exit status."""
    if given.watch and not given.file.is_dir():
        raise Refused(f"--watch: {given.file} is not a folder")
    if given.file.is_dir():
        return await _ingest_folder(settings, given)
    if given.file == STANDARD_INPUT:
        return await _ingest_file(settings, given, sys.stdin.buffer, "standard input")
    with given.file.open("rb") as file:
        return await _ingest_file(settings, given, file, str(given.file))


async def _ingest_file(settings: Settings, given: argparse.Namespace, file: BinaryIO, called: str) -> int:
    """Ingest a file in a job, as the server does. After a kill, the next server or command resumes the job.

    If the file is refused or can't be read, or if its job fails, a corpus that this call created is deleted again,
    unless it has documents.

    Raises:
        Failed: the job did not succeed.
    """
    options = _options(given, given.file)
    _ = options.chunking  # raise the error for wrong options before the file is read
    async with _destination(settings, given) as destination:
        created = await destination.create(given.stemming, own_vectors=given.own_vectors)
        try:
            added = await destination.add(file, options, whole=True)
        except (*REFUSED, OSError):
            if created:
                await destination.drop_empty()
            raise
        if created and added.state != "succeeded":
            await destination.drop_empty()
    for error in added.errors:
        print(f"{called}: {error}", file=sys.stderr)
    if added.state != "succeeded":
        of_all = "" if added.total is None else f" of {added.total}"
        raise Failed(f"{added.state} after {added.documents}{of_all} documents")
    cut = f", {added.truncated} longer than the encoder reads" if added.truncated else ""
    print(f"{given.corpus}: {added.documents} documents{cut}", file=sys.stderr)
    return 0


async def _ingest_folder(settings: Settings, given: argparse.Namespace) -> int:
    """Add a folder's new and changed files to the corpus, and remove the documents of deleted files from it.

    With `--watch`, repeat this endlessly. Without `--watch`, return the exit status: 1 if a file was not added.
    """
    async with _destination(settings, given) as destination:
        await destination.create(given.stemming, own_vectors=given.own_vectors)
        folder = Folder(given.file, destination, partial(_options, given))
        await folder.load()
        if given.watch:
            print(f"{given.corpus}: watching {given.file}", file=sys.stderr)
            await folder.watch(partial(_tell, given.corpus))
        done = await folder.synchronise()
        _tell(given.corpus, done)
        return 1 if done.failed else 0


def _tell(corpus: str, round: Round) -> None:
    for line in (*round.left_out, *round.failed, f"{corpus}: {round}"):
        print(line, file=sys.stderr, flush=True)


@asynccontextmanager
async def _destination(settings: Settings, given: argparse.Namespace) -> AsyncIterator[Destination]:
    if given.url:
        yield Remote(given.url, given.corpus, os.environ.get("ISOSPHERE_API_KEY"))
        return
    async with ready_service(settings) as service:
        yield Local(service, given.corpus)


def _options(given: argparse.Namespace, file: Path, watched: dict[str, Any] | None = None) -> Options:
    """Return the options for a file.

    For a file in a folder, `watched` is additional metadata for the documents of the file. For a single file, `watched`
    is None. In a folder, options that do not fit a file's format are ignored, unless the user set `--format`.
    """
    others = {
        "text_column": given.text_column,
        "id_column": given.id_column,
        "column_types": read_column_types(given.column_types),
        "split": given.split,
        "on_error": given.on_error,
        "chunk_tokens": given.chunk_tokens,
        "chunk_overlap": given.chunk_overlap,
        "metadata": {**read_metadata(given.metadata), **(watched or {})},
        **({"embedded_by": _fingerprint(file)} if given.embedded else {}),
    }
    if given.format:
        source = {} if file == STANDARD_INPUT else {"source": file.as_posix()}
        return Options.of_format(given.format, given.charset, **others, **source)
    if file == STANDARD_INPUT:
        return Options.of_format("ndjson", given.charset, **others)
    options = Options.of_file(file, given.charset, **others)
    if watched is None:
        return options
    unknown = {"text_column", "id_column"} if options.format in FILES else {"split"}
    unknown |= set() if options.format == "csv" else {"column_types"}
    return Options.model_validate(options.model_dump(exclude=unknown))


def _fingerprint(file: Path) -> str:
    """Return the fingerprint of the encoder that computed the vectors in a Parquet file.

    Raises:
        Refused: `isosphere embed` did not write the file.
    """
    if file.suffix != ".parquet":
        raise Refused(f"--embedded: {file} is not a Parquet file written by `isosphere embed`")
    check_installed("parquet")
    from pyarrow import ArrowException
    from pyarrow.parquet import read_schema

    try:
        found = (read_schema(file).metadata or {}).get(b"fingerprint")
    except ArrowException as error:
        raise Refused(f"{file}: {first_line(error)}") from None
    if found is None:
        raise Refused(f"--embedded: {file} does not name its encoder; was the file written by `isosphere embed`?")
    return bytes(found).decode()
