"""Snapshots: files with the state of a corpus at one moment, as `tar` archives compressed with `zstd`.

A snapshot is completely verified when it is restored.
"""

from __future__ import annotations

import hashlib
import io
import logging
import os
import re
import sys
import tarfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Annotated, BinaryIO, TypeVar, cast

import orjson
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from models.bundle.disk import fsync, make_folder, replacing
from serving.corpora.backend import Backend
from serving.corpora.ports import StoreError
from serving.errors import Invalid, NotFound, Stopped, TooLarge
from serving.operations.bounds import BOUNDS, CORPUS_NAME, Bounds, Count, Fingerprint, Moment
from serving.operations.failpoints import reach
from serving.operations.files import disk_errors
from serving.operations.limits import Caller
from serving.operations.threads import CancelToken, uninterrupted

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

log = logging.getLogger(__name__)
MANIFEST = "manifest.json"
FORMAT = 1
SUFFIX = ".tar.zst"
CONTENT = "corpus.sqlite"
MAX_MANIFEST = 65_536
MAX_RATIO = 200
"""Maximum compression ratio of an uploaded snapshot. Normal snapshots have a ratio of about three. A much higher ratio
is a sign of a decompression bomb."""
RATIO_EXEMPT_BYTES = 1 << 28
"""Unpacked size, in bytes, up to which any compression ratio is accepted. Even a harmless text that is repeated a
thousand times has an extreme ratio."""
LEVEL = 3
T = TypeVar("T")
PIECE = 1 << 18
_ID = re.compile(r"[0-9]{8}T[0-9]{6}Z-[0-9a-f]{8}\Z")


@dataclass(frozen=True)
class Snapshot:
    """A stored snapshot of a corpus."""

    id: str
    corpus: str
    created: float
    """Time of the snapshot, in seconds since the epoch."""
    documents: int
    passages: int
    fingerprint: str | None
    bytes: int
    """Size of the snapshot's file."""


class Snapshots:
    """Snapshots of all corpora. Each corpus has its own folder.

    `bounds` are the limits that a restored corpus must not exceed.

    Methods block. They raise `Unhealthy` if the disk fails.
    """

    def __init__(self, corpora: Backend, folder: Path, bounds: Bounds = BOUNDS) -> None:
        self._corpora = corpora
        self._folder = folder
        self._bounds = bounds

    def create(self, name: str, progress: Progress) -> Snapshot:
        """Write a snapshot of the current state of a corpus. Other threads may read and write meanwhile.

        `progress` counts each byte three times: for copying, hashing and packing.

        Raises:
            InsufficientStorage, Unhealthy: the disk is full, or fails.
            Stopped: the work was cancelled by `Progress.leave`.
        """
        with self._beside(name) as copy:
            _, about = self._corpora.corpus(name)
            progress.expect(about.documents, 3 * about.bytes)
            with progress.growing(copy):
                corpus, size = self._corpora.copy(name, copy, progress.left)
            length = copy.stat().st_size
            progress.expect(size.documents, 3 * length)
            digest, created = _digest(copy, progress), time.time()
            stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(created))
            file = copy.with_name(f"{stamp}-{digest[:8]}{SUFFIX}")
            described = {
                "format": FORMAT,
                "corpus": name,
                "created": created,
                "documents": size.documents,
                "passages": size.passages,
                "fingerprint": corpus.fingerprint,
                "content": {"bytes": length, "sha256": digest},
            }
            reach("snapshots.before-pack")
            with replacing(file) as part:
                _pack(part, orjson.dumps(described), copy, progress)
            reach("snapshots.after-pack")
            return _read(file)

    def listing(self, name: str) -> list[Snapshot]:
        """Return the complete snapshots of a corpus, newest first. The corpus may have been deleted."""
        found = []
        with disk_errors(self._folder / name):
            for file in (self._folder / name).glob(f"*{SUFFIX}"):
                try:
                    found += [_read(file)] if _ID.match(file.name.removesuffix(SUFFIX)) else []
                except FileNotFoundError:  # deleted since the listing
                    continue
                except Invalid as error:
                    log.error("%s: %s", file, error)
        return sorted(found, key=lambda snapshot: (snapshot.created, snapshot.id), reverse=True)

    def path(self, name: str, id: str) -> Path:
        """Return the path of a snapshot's file, or raise `NotFound`."""
        with self._there(name, id) as file:
            file.stat()
            return file

    def opened(self, name: str, id: str) -> BinaryIO:
        """Open a snapshot's file, or raise `NotFound`. The open file stays readable if the snapshot is deleted."""
        with self._there(name, id) as file:
            return file.open("rb")

    def delete(self, name: str, id: str) -> None:
        """Delete a snapshot. Raise `NotFound` if it does not exist."""
        with self._there(name, id) as file:
            file.unlink()
            fsync(file.parent)

    def unpacked_bytes(self, file: BinaryIO, size: int, *, sent: bool = True) -> int:
        """Return the unpacked size in bytes that the manifest in a snapshot declares. `restore` enforces this size.

        `size` is the size of `file` in bytes. `sent` is true for a file that a client uploaded.

        Raises:
            Invalid: `file` does not begin like a snapshot.
            TooLarge: the unpacked size exceeds the limit of a restore, or an uploaded file unpacks to more than
                `RATIO_EXEMPT_BYTES` bytes and has a compression ratio above `MAX_RATIO`.
        """
        with _opened(file) as packed:
            unpacked = _described(packed).content.bytes
        if unpacked > self._bounds.restored_bytes:
            raise TooLarge(
                f"unpacks to {unpacked} bytes, more than the {self._bounds.restored_bytes} of --max-restore-bytes",
                field="snapshot",
            )
        if sent and unpacked > max(RATIO_EXEMPT_BYTES, MAX_RATIO * size):
            raise TooLarge(f"unpacks to more than {MAX_RATIO} times its size", field="snapshot")
        return unpacked

    def restored_bytes(self, file: Path) -> int:
        """Return the unpacked size in bytes that the manifest of the snapshot `file` declares. See `unpacked_bytes`."""
        with disk_errors(file), file.open("rb") as opened:
            return self.unpacked_bytes(opened, file.stat().st_size, sent=self._folder not in file.parents)

    def restore(self, name: str, file: Path, progress: Progress) -> None:
        """Serve the corpus of the snapshot in `file` under `name`.

        An existing corpus of this name answers requests until the restored corpus is complete.

        `progress` counts each byte twice: for unpacking and checking.

        Raises:
            Invalid: `file` is not a complete snapshot, or contains a value that is wrong or too large. Nothing has
                changed.
            TooLarge: see `unpacked_bytes`.
            InsufficientStorage, Unhealthy: the disk is full, or fails.
            Conflict, NotFound, Stopped: see `Backend.adopt`.
        """
        self.restored_bytes(file)
        with self._beside(name) as unpacked:
            unpacked_bytes = _unpack(file, unpacked, progress)
            reach("snapshots.before-restore")
            try:
                self._corpora.adopt(name, unpacked, progress.left, self._bounds)
                progress.add(unpacked_bytes)
            except StoreError as error:
                said = str(error).replace(str(unpacked), CONTENT)
                raise Invalid(said, field="snapshot") from error
            reach("snapshots.after-restore")

    @contextmanager
    def _there(self, name: str, id: str) -> Iterator[Path]:
        """Yield the path of a snapshot's file.

        Raises:
            NotFound: `id` is not the id of a snapshot, or the `with` block does not find the file.
        """
        with disk_errors(self._folder / name):
            try:
                if not _ID.match(id):
                    raise FileNotFoundError
                yield self._folder / name / f"{id}{SUFFIX}"
            except FileNotFoundError:
                raise NotFound(f"corpus {name!r} has no snapshot {id[:80]!r}") from None

    @contextmanager
    def _beside(self, name: str) -> Iterator[Path]:
        """Yield a path for a temporary file in the folder of a corpus's snapshots. Delete the file at the end."""
        folder = self._folder / name
        file = folder / f".{os.getpid()}-{time.monotonic_ns()}.sqlite"
        with disk_errors(folder):
            make_folder(folder)
            try:
                yield file
            finally:
                file.unlink(missing_ok=True)

    def sweep(self) -> None:
        """Delete the unfinished files that killed processes have left. Then delete all empty folders."""
        for left in [*self._folder.glob("*/.*.sqlite*"), *self._folder.glob(f"*/*{SUFFIX}.part")]:
            left.unlink(missing_ok=True)
        for folder in self._folder.glob("*/"):
            with suppress(OSError):  # the folder is not empty
                folder.rmdir()


class _Counted:
    """A file that reports its reads to `progress`."""

    def __init__(self, file: IO[bytes], progress: Progress) -> None:
        self._file, self._progress = file, progress

    def read(self, size: int) -> bytes:
        piece = self._file.read(size)
        self._progress.add(len(piece))
        return piece


def _digest(file: Path, progress: Progress) -> str:
    digest = hashlib.sha256()
    with file.open("rb") as opened:
        counted = _Counted(opened, progress)
        while piece := counted.read(PIECE):
            digest.update(piece)
    return digest.hexdigest()


def _pack(to: Path, manifest: bytes, content: Path, progress: Progress) -> None:
    with (
        zstd.open(to, "wb", level=LEVEL) as packed,
        tarfile.open(fileobj=packed, mode="w|", format=tarfile.GNU_FORMAT) as tar,
        content.open("rb") as opened,
    ):
        tar.addfile(_member(MANIFEST, len(manifest)), io.BytesIO(manifest))
        tar.addfile(_member(CONTENT, content.stat().st_size), cast("IO[bytes]", _Counted(opened, progress)))


def _member(name: str, size: int) -> tarfile.TarInfo:
    member = tarfile.TarInfo(name)
    member.size, member.mode = size, 0o600
    return member


def _read(file: Path) -> Snapshot:
    with _opened(file) as packed:
        described = _described(packed)
    facts = described.model_dump(exclude={"format", "content"})
    return Snapshot(id=file.name.removesuffix(SUFFIX), bytes=file.stat().st_size, **facts)


def _unpack(file: Path, to: Path, progress: Progress) -> int:
    """Unpack the corpus in the snapshot `file` to `to`, and return its size in bytes.

    Raises:
        Invalid: the snapshot is incomplete, its content differs from its manifest, or it contains other files.
        Stopped: the caller has cancelled the work by calling `progress.leave`.
    """
    with _opened(file) as packed, to.open("wb") as out:
        described = _described(packed)
        expected = described.content
        digest = hashlib.sha256()
        progress.expect(described.documents, 2 * expected.bytes)
        for piece in _content(packed, CONTENT, expected.bytes):
            digest.update(piece)
            progress.add(out.write(piece))
        if digest.hexdigest() != expected.sha256:
            raise Invalid("is damaged: its content differs from its manifest", field="snapshot")
        rest = packed.read(PIECE)
        if rest.strip(b"\0") or len(rest) == PIECE:
            raise Invalid(f"contains more than {MANIFEST} and {CONTENT}", field="snapshot")
        out.flush()
        os.fsync(out.fileno())
        return expected.bytes


def _described(packed: IO[bytes]) -> Manifest:
    return read_manifest(b"".join(_content(packed, MANIFEST, MAX_MANIFEST)))


@contextmanager
def _opened(file: Path | BinaryIO) -> Iterator[IO[bytes]]:
    try:
        with zstd.open(file, "rb") as packed:
            yield cast("IO[bytes]", packed)
    except (tarfile.HeaderError, zstd.ZstdError, EOFError, UnicodeDecodeError) as error:
        raise Invalid(f"not a snapshot, or cut short: {error}", field="snapshot") from error


def _content(packed: IO[bytes], name: str, most: int) -> Iterator[bytes]:
    """Yield the next file of the archive in pieces.

    Here, `tarfile` only parses the header of the file. The reader of `tarfile` would be unsafe, because it follows
    links and accepts names and extensions of any size.

    Raises:
        Invalid: the next file does not have the name `name`, or has more than `most` bytes.
        EOFError: the archive ends too early.
    """
    member = tarfile.TarInfo.frombuf(_exactly(packed, tarfile.BLOCKSIZE), "utf-8", "strict")
    if member.name != name or member.type != tarfile.REGTYPE or not 0 <= member.size <= most:
        raise Invalid(f"its next part must be the file {name} of up to {most} bytes", field="snapshot")
    left = member.size
    while left:
        piece = _exactly(packed, min(left, PIECE))
        left -= len(piece)
        yield piece
    _exactly(packed, -member.size % tarfile.BLOCKSIZE)


def _exactly(packed: IO[bytes], size: int) -> bytes:
    read = b""
    while len(read) < size:
        piece = packed.read(size - len(read))
        if not piece:
            raise EOFError("the file ends too early")
        read += piece
    return read


class Content(BaseModel):
    """The manifest's entry for the corpus file."""

    model_config = ConfigDict(strict=True)

    bytes: Count
    sha256: Annotated[str, Field(pattern="^[0-9a-f]{64}$")]


def _known(format: int) -> int:
    if format != FORMAT:
        raise Invalid(f"has the format {format}, but this version reads {FORMAT}", field="snapshot")
    return format


class Manifest(BaseModel):
    """The manifest of a snapshot."""

    model_config = ConfigDict(strict=True)

    format: Annotated[Count, AfterValidator(_known)]
    corpus: Annotated[str, Field(pattern=CORPUS_NAME)]
    created: Moment
    documents: Count
    passages: Count
    fingerprint: Fingerprint | None
    content: Content


def read_manifest(raw: bytes) -> Manifest:
    """Parse a manifest. Raise `Invalid` if the manifest has an unknown format, or if a part is missing or wrong."""
    try:
        return Manifest.model_validate(orjson.loads(raw))
    except orjson.JSONDecodeError as error:
        raise Invalid(f"{MANIFEST} is not JSON", field="snapshot") from error
    except ValidationError as error:
        *_, place = ("format", *error.errors(include_input=False)[0]["loc"])
        raise Invalid(
            f"{MANIFEST} does not describe a snapshot: its {place!r} is missing or wrong", field="snapshot"
        ) from error


# A thread updates the progress of its work. The task that waits for the thread reports the progress.


class Progress:
    """Progress of work in a thread. The number of processed documents is estimated from the processed bytes.

    One thread updates the progress. Any thread may read the progress. `caller` is the API key that requested the work.
    If `caller` is given, an update may wait for short requests of other API keys.
    """

    def __init__(self, caller: Caller | None = None) -> None:
        self.documents: int | None = None
        """Total number of documents. None until it is known."""
        self._bytes = 0
        self._done = 0
        self._growing: Path | None = None
        self._token = CancelToken(caller=caller)

    def run(self, work: Callable[[], T]) -> T:
        """Run `work`, which reports its progress to this object, in the current thread. Return its result."""

        def checked_here() -> T:
            with uninterrupted():
                return work()

        return self._token.run(checked_here)

    def leave(self) -> None:
        """Cancel the work. The work stops at its next call of `add`."""
        self._token.cancel()

    def left(self) -> bool:
        """Return whether the work was cancelled. Before the check, let short requests of other API keys run."""
        self._token.give_way()
        return self._token.cancelled

    @property
    def done(self) -> int:
        """Number of processed documents."""
        growing = self._growing
        done = self._done + (growing.stat().st_size if growing and growing.exists() else 0)
        return (self.documents or 0) * min(done, self._bytes) // max(self._bytes, 1)

    def expect(self, documents: int, bytes: int) -> None:
        self.documents, self._bytes = documents, bytes

    def add(self, bytes: int) -> None:
        """Add processed bytes. Raise `Stopped` if the work was cancelled."""
        if self.left():
            raise Stopped("stopped")
        self._done += bytes

    @contextmanager
    def growing(self, file: Path) -> Iterator[None]:
        """While the `with` block writes `file`, count the current size of the file as processed bytes."""
        self._growing = file
        try:
            yield
            self.add(file.stat().st_size)
        finally:
            self._growing = None
