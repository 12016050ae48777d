"""A built index on disk: a folder with vectors, keys, index and manifest.

The manifest is written last. Only a folder with a manifest is valid.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import shutil
import zlib
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import faiss
import numpy as np
from numpy.typing import NDArray

from models.bundle.disk import fsync, make_folder
from models.runtimes.base import Floats
from serving.corpora.indexes.exact import ExactIndex
from serving.corpora.indexes.kind import BuildError, Kind, Parameters
from serving.corpora.indexes.state import Approximate, Main, Tuning
from serving.corpora.values import Keys
from serving.operations.failpoints import reach

PIECE = 8 * 1024 * 1024
"""Number of bytes of a file that have one checksum."""
WIDTHS = (1024, 1021)
"""Widths of the two arrangements of a piece in `checksums`, in words per row. Two words that share a column in both
arrangements are 1021 x 1024 words apart, which is nearly the whole piece."""
FORMAT = 1
VECTORS, KEYS, INDEX, MANIFEST = "vectors.f32", "keys.npy", "index.faiss", "manifest.json"
ROOM = 250_000
"""Minimum number of vectors that `read` writes to a file. If there are fewer vectors, they stay in memory."""


class Identity(NamedTuple):
    """Identity of the vectors: their corpus and their encoder."""

    generation: str
    """Generation of the corpus. In different generations, the same key can mean different passages."""
    fingerprint: str
    dim: int


class UnfitError(Exception):
    """The files on disk are damaged, or belong to another index. The message names the file."""


def write_vectors(folder: Path, dim: int, blocks: Iterable[tuple[Keys, Floats]]) -> tuple[Keys, Floats]:
    """Write blocks of keys and vectors, in the given order, to a new `folder`.

    Return the keys and the memory-mapped vectors.
    """
    make_folder(folder)
    keys = [np.empty(0, np.int64)]
    with _written(folder / VECTORS) as file:
        for block, vectors in blocks:
            keys.append(block)
            file.write(np.ascontiguousarray(vectors, np.float32).data)
    with _written(folder / KEYS) as file:
        np.save(file, np.concatenate(keys))
    return _mapped(folder, dim)


def write_index(folder: Path, built: Approximate, vectors: Floats) -> Approximate:
    """Write the index `built` to `folder`, which already contains the file of the indexed `vectors`.

    Return the index as it is read back from its file, so that the caller can free `built`.
    """
    reach("index.before-save")
    path = folder / INDEX
    built.kind.write(built.built, str(path))
    fsync(path)
    return built._replace(built=built.kind.read(str(path), vectors))


def describe(folder: Path, main: Main) -> dict[str, Any]:
    """Return the part of the manifest that describes the build `main` and its files in `folder`.

    All files are read to compute their checksums.
    """
    return {
        "format": FORMAT,
        "faiss": faiss.__version__,
        "kind": main.approximate and main.approximate.kind.name,
        "parameters": dict(main.approximate.parameters) if main.approximate else {},
        "tuning": asdict(main.tuning),
        "build_seconds": main.build_seconds,
        "reason": main.reason,
        "files": {
            path.name: {"bytes": path.stat().st_size, "sha256": _sha256(path), "checksums": checksums(path, 1)}
            for path in sorted(folder.iterdir())
        },
    }


def save(folder: Path, described: dict[str, Any], identity: Identity, covered: int) -> None:
    """Write the manifest of a saved index to `folder`. Without a manifest, the folder is not valid.

    The manifest contains all arguments except `folder`. When this function returns, it survives a power failure.

    Args:
        described: description of the index and its files, from `describe`.
        covered: every key of the store up to this key is in the index, or was removed.
    """
    manifest = described | {"identity": identity._asdict(), "covered": covered}
    reach("index.before-manifest")
    new = folder / f"{MANIFEST}.new"
    with _written(new) as file:
        file.write(json.dumps(manifest | {"seal": _seal(manifest)}, indent=1).encode())
    new.replace(folder / MANIFEST)
    fsync(folder)
    fsync(folder.parent)
    reach("index.after-manifest")


def load(folder: Path, identity: Identity, kinds: Mapping[str, Kind], threads: int) -> tuple[Main, int]:
    """Return a saved index and a key. The index contains all vectors of the store up to this key.

    All bytes are verified.

    Raises:
        UnfitError: the files are damaged, belong to another corpus or encoder, or have another FAISS version or format.
    """
    path = folder / MANIFEST
    manifest = _manifest(path)
    try:
        if manifest["faiss"] != faiss.__version__:
            raise UnfitError(f"{path}: was written by FAISS {manifest['faiss']}, but this is {faiss.__version__}")
        if Identity(**manifest["identity"]) != identity:
            raise UnfitError(f"{path}: belongs to another corpus or encoder")
        for name, described in manifest["files"].items():
            check(folder / name, described, threads)
        keys, vectors = _mapped(folder, identity.dim)
        approximate = None
        if name := manifest["kind"]:
            approximate = _read(folder / INDEX, kinds, name, manifest["parameters"], vectors)
        tuning = manifest["tuning"]
        for part in ("efforts", "recalls"):
            tuning[part] = {float(share): value for share, value in tuning[part].items()}
        seconds, reason = manifest["build_seconds"], manifest["reason"]
        main = Main(keys, vectors, approximate, Tuning(**tuning), seconds, size(manifest), reason)
        return main, manifest["covered"]
    except (KeyError, TypeError, ValueError, AttributeError) as error:  # the manifest has another structure
        raise UnfitError(f"{path}: is not a manifest of this version ({type(error).__name__}: {error})") from error


def remove(folder: Path) -> None:
    """Remove the folder of a build.

    The manifest is removed first, so that a crash leaves no folder with a manifest. A cancelled build may still write
    to the folder or remove it at the same time. This raises no error, but files may remain. They are removed when the
    index is opened again.
    """
    with suppress(FileNotFoundError):
        (folder / MANIFEST).unlink(missing_ok=True)
        fsync(folder)
        shutil.rmtree(folder, ignore_errors=True)
        fsync(folder.parent)


def damage(folder: Path) -> Iterator[str]:
    """Yield a line for each damaged or missing file in the `folder` of a corpus's index.

    All bytes are read, to compute SHA-256.
    """
    for generation in sorted(path.parent for path in folder.glob(f"*-*/{MANIFEST}")):
        try:
            files = _manifest(generation / MANIFEST)["files"]
            for name, described in files.items():
                if not (generation / name).is_file():
                    yield f"{generation / name}: missing"
                elif _sha256(generation / name) != described["sha256"]:
                    yield f"{generation / name}: damaged, its SHA-256 differs from the manifest"
        except (UnfitError, KeyError, TypeError, AttributeError) as error:
            yield f"{generation / MANIFEST}: {error}"


def size(manifest: dict[str, Any]) -> int:
    return sum(described["bytes"] for described in manifest["files"].values())


def check(path: Path, described: dict[str, Any], threads: int = 1) -> None:
    """Check that a file has the size and the checksums in `described`, its entry in the manifest.

    Raises:
        UnfitError: the file is missing, can't be read, or has another size or other checksums.
    """
    try:
        length = path.stat().st_size
    except OSError as error:
        raise UnfitError(f"{path}: {error.strerror}") from error
    if length != described["bytes"]:
        raise UnfitError(f"{path}: {length} bytes, not {described['bytes']}")
    if checksums(path, threads) != described["checksums"]:
        raise UnfitError(f"{path}: damaged, its checksums differ from the manifest")


def _manifest(path: Path) -> dict[str, Any]:
    try:
        manifest = json.loads(path.read_bytes())
        seal = manifest.pop("seal")
        if manifest["format"] != FORMAT:
            raise UnfitError(f"{path}: format {manifest['format']}, this server writes {FORMAT}")
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        if isinstance(error, OSError) and error.errno in (errno.EMFILE, errno.ENFILE, errno.ENOMEM):
            raise  # the file itself may be intact
        raise UnfitError(f"{path}: {error or type(error).__name__}") from error
    if seal != _seal(manifest):
        raise UnfitError(f"{path}: damaged, its content does not match its seal")
    return manifest  # type: ignore[no-any-return]


def _seal(manifest: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(manifest, sort_keys=True).encode()).hexdigest()


def _read(path: Path, kinds: Mapping[str, Kind], name: str, parameters: Parameters, vectors: Floats) -> Approximate:
    try:
        kind = kinds[name]
        return Approximate(kind, parameters, kind.read(str(path), vectors))
    except (KeyError, RuntimeError, BuildError) as error:
        raise UnfitError(f"{path}: {name}: {error}") from error


def _mapped(folder: Path, dim: int) -> tuple[Keys, Floats]:
    keys = np.load(folder / KEYS, mmap_mode="r")
    if not len(keys):
        return np.empty(0, np.int64), np.empty((0, dim), np.float32)
    vectors = np.memmap(folder / VECTORS, np.float32, "r", shape=(len(keys), dim))
    return np.asarray(keys), np.asarray(vectors)


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@contextmanager
def _written(path: Path) -> Iterator[Any]:
    with path.open("wb") as file:
        yield file
        file.flush()
        os.fsync(file.fileno())


# The following classes read vectors from a source, as the start of an index. Few vectors are read into memory, and many
# into a file.


@dataclass(frozen=True)
class Read:
    """Vectors that `read` has stored for exact search.

    Many vectors are in `main`, which uses the files in `folder`. Few vectors are in `tail`, in memory. The other part
    is empty.
    """

    main: Main
    tail: ExactIndex
    last: int = 0
    """The last key that was read."""
    folder: Path | None = None
    """Folder of the files. It has no manifest until an index uses the files."""
    described: dict[str, Any] = field(default_factory=dict)
    """Description of the files for the manifest."""

    def discard(self) -> None:
        """Delete the files, unless an index uses them.

        An index renames the folder that it uses, so there is nothing to delete at the old path.
        """
        if self.folder is not None:
            shutil.rmtree(self.folder, ignore_errors=True)


def read(folder: Path, dim: int, blocks: Iterable[tuple[Keys, Floats]]) -> Read:
    """Read blocks of (n,) keys and (n, D) vectors in order of keys.

    If there are at least `ROOM` vectors, all vectors are written to the new `folder`, block by block. If there are
    fewer, they stay in memory.
    """
    tail, blocks = ExactIndex(dim), iter(blocks)
    for keys, vectors in blocks:
        tail.add(keys, vectors)
        if len(tail) >= ROOM:
            return _filed(folder, dim, chain([(tail.rows.keys, tail.rows.vectors)], blocks))
    nothing = Main(np.empty(0, np.int64), np.empty((0, dim), np.float32), None, Tuning(0.0))
    return Read(nothing, tail, last=int(tail.rows.keys[-1]) if len(tail) else 0)


def _filed(folder: Path, dim: int, blocks: Iterator[tuple[Keys, Floats]]) -> Read:
    try:
        keys, vectors = write_vectors(folder, dim, blocks)
        main = Main(keys, vectors, None, Tuning(0.0), reason="the index is not built yet")
        return Read(main, ExactIndex(dim), int(keys[-1]), folder, describe(folder, main))
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise


# Opening an index verifies all its files, so their checksums must be computed at about the speed of memory.


def checksums(path: Path, threads: int) -> list[int]:
    """Return a checksum for each piece of `PIECE` bytes of the file.

    A piece is read as 64-bit words. The words are arranged in rows in two ways, with the two widths of `WIDTHS`. For
    each way, all rows are XORed to one row. The checksum is the CRC-32 of these two rows, and of the bytes after the
    last whole word.

    The checksum always detects one wrong word. It detects two wrong words if their columns differ in one of the two
    arrangements (see `WIDTHS`). SHA-256 of the piece takes twice as long, and CRC-32 of the piece takes three times as
    long.
    """
    if not path.stat().st_size:
        return []
    content = np.memmap(path, np.uint8, "r")
    with ThreadPoolExecutor(threads) as pool:
        return list(pool.map(lambda at: _checksum(content[at : at + PIECE]), range(0, len(content), PIECE)))


def _checksum(piece: NDArray[np.uint8]) -> int:
    words = piece[: len(piece) // 8 * 8].view(np.uint64)
    found = zlib.crc32(piece[8 * len(words) :].tobytes())
    for width in WIDTHS:
        whole = len(words) // width * width
        row = np.bitwise_xor.reduce(words[:whole].reshape(-1, width), axis=0)
        row[: len(words) - whole] ^= words[whole:]
        found = zlib.crc32(row.tobytes(), found)
    return found
