"""Helpers of tests that read uploads."""

from __future__ import annotations

import io
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


def read(body: bytes | io.IOBase, format: Any = "ndjson", settings: Settings = SETTINGS, **options: Any) -> list[Row]:
    file = io.BytesIO(body) if isinstance(body, bytes) else body
    return list(rows(cast("BinaryIO", file), Options(format=format, **options), settings))


def values(found: list[Row]) -> list[Any]:
    return [row.value for row in found]
