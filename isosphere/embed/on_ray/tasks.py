"""Functions that run in processes of the cluster: describe the encoder, check files, read them, embed and write."""

from __future__ import annotations

import hashlib
import io
import pickle
import threading
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from itertools import zip_longest
from typing import Any, NamedTuple

from isosphere.embed.embedding import Done, Model, Options, batches, check, no_vectors, vectors_of
from isosphere.embed.on_ray.places import Folder
from isosphere.embed.outputs import Parquet, Vectors
from models.errors import Refused
from training.data.files import File


class Description(NamedTuple):
    """Facts about an encoder that a process of the cluster has loaded."""

    model: Model
    """The model with its selected engine and precision. All actors load the encoder with this engine and precision."""
    max_length: int
    metadata: dict[str, str]
    empty: Vectors


def describe(model: Model, options: Options) -> Description:
    """Load the encoder once, to select its engine and to check the options, and return its description."""
    encoder = model.load()
    empty, metadata = no_vectors(encoder, options)
    chosen = replace(model, engine=encoder.runtime, precision=encoder.precision)
    return Description(chosen, encoder.max_length, metadata, empty)


def check_files(files: Sequence[File], options: Options, output: Parquet) -> tuple[Done, Any]:
    """Read files once: count their rows, refuse or skip bad rows, and learn the types of the output's columns.

    Return the row counts, and the schema of the columns that are copied to the output.

    Raises:
        CorpusError: a row is bad and `options.on_error` is "fail", or a file can't be read or lacks a column.
        Refused: no type fits all values of a column.
    """
    return check(files, options, output.learn), output.learned


def read(shard: dict[str, Any], options: Options, there: Collection[str]) -> Iterator[dict[str, list[Any]]]:
    """Yield the name and the rows of each part of a shard, except the parts in `there`.

    Args:
        shard: names of the shard's parts, and its pickled files.
        there: names of the parts that existed when the job began. Parts that were written later are yielded, so that a
            task that Ray repeats yields the same parts again.

    Raises:
        Refused: the files have more or fewer parts than names, because a file changed after `check_files` read it.
    """
    (names,), (pickled,) = shard["parts"], shard["files"]
    files = pickle.loads(pickled)
    for name, rows in zip_longest(names, batches(files, options, lambda _: None)):
        if name is None or rows is None:
            raise Refused(f"{files[0]}, or a file read with it, changed while it was read; use --force")
        if name not in there:
            yield {"part": [name], "rows": [pickle.dumps(rows)]}


class Writer:
    """Actor that embeds parts and writes them to a folder."""

    def __init__(self, description: Description, options: Options, output: Parquet, folder: Folder) -> None:
        self._encoder = description.model.load()
        if self._encoder.fingerprint != description.metadata["fingerprint"]:
            raise Refused(f"{description.model.name}: nodes of the cluster have different encoders of this name")
        self._options, self._output, self._folder = options, output, folder
        self._truncated = 0
        self._lock = threading.Lock()

    def __call__(self, part: dict[str, Any]) -> dict[str, list[Any]]:
        """Embed the rows of a part, and write them with their vectors to the part's file.

        Return the part's name, its number of rows, the digest of the file, and how many texts the encoder has truncated
        since this number was last returned. With several threads, some of these texts may belong to other parts.
        """
        name, rows = str(part["part"][0]), pickle.loads(part["rows"][0])
        vectors = vectors_of(self._encoder, [row.text for row in rows], self._options)
        content = io.BytesIO()
        self._output.write(rows, vectors, content)
        self._folder.write(name, content.getvalue())
        digest = hashlib.sha256(content.getvalue()).hexdigest()
        return {"part": [name], "rows": [len(rows)], "sha256": [digest], "truncated": [self._newly_truncated()]}

    def _newly_truncated(self) -> int:
        """Return the number of texts that the encoder has truncated since the last call, in all threads together."""
        with self._lock:
            before, self._truncated = self._truncated, self._encoder.truncated
            return self._truncated - before


def digest(folder: Folder, name: str) -> str:
    """Return the SHA-256, in hex, of the file `name`, which is a part of the output."""
    return hashlib.sha256(folder.read(name)).hexdigest()
