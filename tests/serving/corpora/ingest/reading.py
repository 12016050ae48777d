"""Helpers of tests that read uploads."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any, BinaryIO, cast

from serving.corpora.ingest.rows import Row
from serving.corpora.ingest.uploading import Options, rows
from serving.settings import Settings

SETTINGS = Settings()


class Drops(io.RawIOBase):
    """File that returns a few bytes at a time."""

    def __init__(self, body: bytes, size: int) -> None:
        self._file, self._size = io.BytesIO(body), size

    def seekable(self) -> bool:
        return True

    def readable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = 0) -> int:
        return self._file.seek(offset, whence)

    def read(self, size: int = -1) -> bytes:
        return self._file.read(self._size)


class Counted(io.BytesIO):
    """File that counts how often it is read, and calls `third` at the third time."""

    def __init__(self, body: bytes, third: Callable[[], None]) -> None:
        super().__init__(body)
        self.reads, self._third = 0, third

    def read(self, size: int | None = -1) -> bytes:
        self._count()
        return super().read(size)

    def readline(self, size: int | None = -1) -> bytes:
        self._count()
        return super().readline(size)

    def _count(self) -> None:
        self.reads += 1
        if self.reads == 3:
            self._third()


def read(body: bytes | io.IOBase, format: Any = "ndjson", settings: Settings = SETTINGS, **options: Any) -> list[Row]:
    file = io.BytesIO(body) if isinstance(body, bytes) else body
    return list(rows(cast("BinaryIO", file), Options(format=format, **options), settings))


def values(found: list[Row]) -> list[Any]:
    return [row.value for row in found]
