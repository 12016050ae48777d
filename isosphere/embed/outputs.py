"""Formats of the output file. Vectors are written as parts, which are joined at the end."""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from isosphere.embed.rows import Row
from models.errors import Refused, first_line

Vectors = NDArray[Any]
OWN = ("id", "vector")
"""Parquet columns that the command itself adds to the columns copied from the input."""


class Npy:
    """An array (N, D) in NumPy's format."""

    def __init__(self, empty: Vectors) -> None:
        self._empty = empty

    def learn(self, batch: Sequence[Row]) -> None:
        """Do nothing, because an array has no columns whose types must fit the rows of the batch."""

    def check_types(self) -> None:
        """Do nothing, because the format has no columns."""

    def write(self, _: Sequence[Row], vectors: Vectors, part: Path) -> None:
        """Write the vectors of one batch as a part."""
        content = io.BytesIO()
        np.save(content, vectors)
        # Python writes the file, because NumPy's error for a full disk has no error number.
        part.write_bytes(content.getvalue())

    def join(self, parts: Sequence[Path], out: Path) -> None:
        """Write the parts as one array."""
        rows = sum(len(np.load(part, mmap_mode="r")) for part in parts)
        with out.open("wb") as file:
            header = np.lib.format.header_data_from_array_1_0(self._empty)
            np.lib.format.write_array_header_1_0(file, {**header, "shape": (rows, self._empty.shape[1])})
            for part in parts:
                file.write(np.load(part).data)


class Parquet:
    """A Parquet table with `id`, `vector` (a fixed-size list), and columns that are copied from the input.

    The types of the copied columns fit all their values.
    """

    def __init__(self, empty: Vectors, columns: list[str], metadata: Mapping[str, str]) -> None:
        try:
            import pyarrow
            import pyarrow.parquet
        except ImportError as error:
            raise Refused(f"Parquet needs the extra `data`: pip install 'isosphere[data]' ({error})") from error
        if twice := next((name for name in columns if [*OWN, *columns].count(name) > 1), None):
            raise Refused(f"--columns: the output would have two columns {twice!r}")
        self._arrow, self._parquet = pyarrow, pyarrow.parquet
        self._columns = columns
        self.learned = pyarrow.schema([])
        """Arrow schema of the copied columns, with types that fit the values that were seen so far."""
        vector = pyarrow.list_(pyarrow.from_numpy_dtype(empty.dtype), empty.shape[1])
        self._own = pyarrow.schema(list(zip(OWN, (pyarrow.string(), vector), strict=True)), metadata)

    def learn(self, batch: Sequence[Row]) -> None:
        """Widen the column types so that they also fit this batch. Raise `Refused` if that is impossible."""
        for i, name in enumerate(self._columns):
            with self._naming(name, batch[0].place, batch[-1].place):
                self._widen(self._arrow.field(name, self._arrow.array([row.kept[i] for row in batch]).type))

    def merge(self, learned: Any, first: str, last: str) -> None:
        """Widen the column types so that they also fit `learned`, the schema of a group of files.

        Error messages name the first and the last file of the group, `first` and `last`.

        Raises:
            Refused: no type fits all values of a column.
        """
        for field in learned:
            with self._naming(field.name, first, last):
                self._widen(field)

    def check_types(self) -> None:
        """Raise `Refused` if Parquet can't store the type of a copied column, such as a column of empty objects."""
        for field in self.learned:
            try:
                self._parquet.write_table(self._arrow.schema([field]).empty_table(), io.BytesIO())
            except self._arrow.ArrowException as error:
                raise Refused(f"--columns: Parquet can't store {field.name!r}: {first_line(error)}") from error

    def _widen(self, field: Any) -> None:
        found = self._arrow.schema([field])
        self.learned = self._arrow.unify_schemas([self.learned, found], promote_options="permissive")

    @contextmanager
    def _naming(self, name: str, first: str, last: str) -> Iterator[None]:
        try:
            yield
        except (self._arrow.ArrowException, ValueError, OverflowError) as error:
            raise Refused(
                f"--columns: {name!r} has values whose types can't be in the same Parquet column, between {first} "
                f"and {last}: "
                f"{first_line(error)}"
            ) from error

    def write(self, batch: Sequence[Row], vectors: Vectors, part: Path | IO[bytes]) -> None:
        """Write the vectors of one batch as a part.

        Raises:
            Refused: the type of a column can't represent a value, such as a large integer in a column of floats.
        """
        arrays = [
            self._arrow.array([row.id for row in batch]),
            self._arrow.FixedSizeListArray.from_arrays(self._arrow.array(vectors.ravel()), vectors.shape[1]),
        ]
        for i, kept in enumerate(self._kept()):
            with self._naming(kept.name, batch[0].place, batch[-1].place):
                arrays.append(self._arrow.array([row.kept[i] for row in batch], kept.type))
        table = self._arrow.table(arrays, schema=self._schema())
        self._parquet.write_table(table, part, use_dictionary=self._columns)

    def join(self, parts: Sequence[Path], out: Path) -> None:
        """Write the parts as one table, with a row group for each part."""
        with self._parquet.ParquetWriter(out, self._schema(), use_dictionary=self._columns) as writer:
            for part in parts:
                writer.write_table(self._parquet.ParquetFile(part).read())

    def _kept(self) -> Any:
        """Return the schema of the columns that are copied from the input. If there are no rows, the types are null."""
        return self.learned or self._arrow.schema([(name, self._arrow.null()) for name in self._columns])

    def _schema(self) -> Any:
        return self._arrow.schema([*self._own, *self._kept()], self._own.metadata)
