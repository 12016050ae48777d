"""Temporary storage of uploads. A small upload stays in memory, and a larger upload is written to a file."""

from __future__ import annotations

import asyncio
import hashlib
import io
import os
import uuid
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import BinaryIO, Self

from models.bundle.disk import fsync
from serving.errors import Damaged
from serving.jobs.job import Job, digest_of
from serving.operations.failpoints import reach
from serving.operations.files import disk_errors
from serving.operations.threads import in_thread

IN_MEMORY = 1 << 20
"""Maximum bytes of an upload that is kept in memory."""
HASHED_AT_ONCE = 1 << 24
"""Number of bytes that one read takes when an upload is checked."""


class Spool:
    """The received bytes of an upload, and their SHA-256 digest.

    `close` deletes the bytes. After a call of `keep`, `close` deletes nothing.
    """

    def __init__(self, folder: Path) -> None:
        self._path = folder / f"{uuid.uuid4().hex}.part"
        self._memory = bytearray()
        self._file: BinaryIO | None = None
        self._sha256 = hashlib.sha256()
        self.size = 0

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await asyncio.to_thread(self.close)

    async def write(self, piece: bytes) -> None:
        """Append bytes.

        Raises:
            InsufficientStorage: the disk is full.
            Unhealthy: the disk fails.
        """
        self._memory += piece
        self.size += len(piece)
        if len(self._memory) >= IN_MEMORY:
            await in_thread(self._flush)

    @property
    def digest(self) -> str:
        """SHA-256 digest of all written bytes."""
        digest = self._sha256.copy()
        digest.update(self._memory)
        return digest.hexdigest()

    def open(self) -> BinaryIO:
        """Open the bytes for reading. Do not call `write` afterwards. This call blocks."""
        if self._file is None:
            return io.BytesIO(self._memory)
        self._flush()
        return self._path.open("rb")

    def keep(self, path: Path) -> None:
        """Move the upload's bytes to the file `path`, so that they survive a crash of the machine. This call blocks.

        Raises:
            InsufficientStorage: the disk is full.
            Unhealthy: the disk fails.
        """
        self._flush()
        assert self._file is not None
        reach("jobs.before-spool")
        with disk_errors(path):
            os.fsync(self._file.fileno())
            self._file.close()
            self._path.rename(path)
            fsync(path.parent)
        reach("jobs.after-spool")

    def close(self) -> None:
        """Close the upload, and delete its bytes unless `keep` has moved them. This call blocks."""
        if self._file is not None:
            self._file.close()
            self._path.unlink(missing_ok=True)

    def _flush(self) -> None:
        with disk_errors(self._path):
            if self._file is None:
                self._file = self._path.open("wb", buffering=0)
            self._sha256.update(self._memory)
            rest = memoryview(bytes(self._memory))
            while rest:
                rest = rest[self._file.write(rest) :]
        self._memory.clear()


async def check_kept(job: Job, path: Path) -> None:
    """Raise an error if the upload of a job has changed since the job was accepted.

    Jobs without an upload are not checked.

    Raises:
        Damaged: the file has changed or is missing.
        Unhealthy: the file can't be read.
    """
    content = ""
    with disk_errors(path), suppress(FileNotFoundError), path.open("rb") as file:
        sha256 = hashlib.sha256()
        # A cancelled job waits for the end of one read only.
        while piece := await in_thread(lambda: file.read(HASHED_AT_ONCE)):
            await in_thread(partial(sha256.update, piece))
        content = sha256.hexdigest()
    if digest_of(job.kind, job.corpus, job.options, content) != job.digest:
        raise Damaged(f"{path.parent.name}/{path.name} has changed since the upload: upload the documents again")
