"""Decompression of request bodies. It works in pieces, so that a small body can't fill the memory."""

from __future__ import annotations

import io
import sys
import zlib
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, BinaryIO, cast

from serving.errors import Malformed, TooLarge, UnsupportedMedia

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

if TYPE_CHECKING:
    from typing_extensions import Buffer

MAX_RATIO = 100
"""Maximum ratio of decompressed size to compressed size. Text has a ratio of about 10. A much higher ratio is a sign of
a decompression bomb."""
RATIO_EXEMPT_BYTES = 1_000_000
"""Decompressed size, in bytes, up to which any ratio is allowed."""
MAX_PARTS = 1000
"""Number of gzip members or zstd frames above which `PART_BYTES` applies. Even an empty member takes time to
decompress. bgzip writes 500 members for 32 MB."""
PART_BYTES = 4096
"""Minimum mean number of decompressed bytes per member or frame, if there are more than `MAX_PARTS`. Members of bgzip
have 65,280 bytes."""
PIECE = 65_536
BUFFER = 1 << 18
ZSTD_WINDOW: dict[int, int] = {zstd.DecompressionParameter.window_log_max: 23}
"""Option that limits the window of zstd to 8 MB, the size that decoders must support by RFC 9659."""


class _Member:
    """Decompressor of one gzip member. It has the interface of `ZstdDecompressor`, which handles one zstd frame."""

    def __init__(self) -> None:
        self._inflate = zlib.decompressobj(zlib.MAX_WBITS | 16)  # 16 selects the header and the checksum of gzip

    @property
    def eof(self) -> bool:
        return self._inflate.eof

    @property
    def needs_input(self) -> bool:
        return not self._inflate.unconsumed_tail

    @property
    def unused_data(self) -> bytes:
        return self._inflate.unused_data

    def decompress(self, data: bytes, max_length: int) -> bytes:
        return self._inflate.decompress(self._inflate.unconsumed_tail + data, max_length)


CODINGS: dict[str, Callable[[], _Member | zstd.ZstdDecompressor]] = {
    "gzip": _Member,
    "zstd": lambda: zstd.ZstdDecompressor(options=ZSTD_WINDOW),
}


def content_coding(header: str) -> str:
    """Return the coding that the header `Content-Encoding` names. For a body without compression, return "".

    Raises:
        UnsupportedMedia: the header names an unsupported coding, or several codings.
    """
    coding = header.strip().lower().removeprefix("x-")
    if coding in ("", "identity"):
        return ""
    if coding not in CODINGS:
        raise UnsupportedMedia(
            f"{header[:80]!r} is not supported, only {' and '.join(CODINGS)}", field="content-encoding"
        )
    return coding


def inflated(body: bytes, coding: str, limit: int) -> bytes:
    """Return the decompressed `body`. Stop as soon as the output exceeds `limit` bytes.

    Raises:
        TooLarge: the output exceeds `limit` bytes, the ratio of output size to body size is too high (see `MAX_RATIO`
            and `RATIO_EXEMPT_BYTES`), or the body has too many gzip members or zstd frames (see `MAX_PARTS`).
        Malformed: the body does not match `coding`, or is incomplete.
    """
    return b"".join(_checked(io.BytesIO(body), len(body), coding, limit))


def inflating(packed: BinaryIO, size: int, coding: str, limit: int) -> BinaryIO:
    """Return a stream that decompresses `packed`, which has `size` bytes.

    Reads from the stream raise `TooLarge` and `Malformed` in the same cases as `inflated`, for example if the output
    exceeds `limit` bytes.
    """
    return stream_of(_checked(packed, size, coding, limit))


def stream_of(pieces: Iterator[bytes]) -> BinaryIO:
    """Return a stream of all `pieces`, one after another."""
    return cast("BinaryIO", io.BufferedReader(_Pieces(pieces), BUFFER))


class _Pieces(io.RawIOBase):
    def __init__(self, pieces: Iterator[bytes]) -> None:
        self._pieces = pieces
        self._rest = memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Buffer) -> int:
        """Fill the buffer with the next bytes. Return the number of bytes, or 0 at the end."""
        into = memoryview(buffer).cast("B")
        while not self._rest:
            piece = next(self._pieces, None)
            if piece is None:
                return 0
            self._rest = memoryview(piece)
        n = min(len(into), len(self._rest))
        into[:n], self._rest = self._rest[:n], self._rest[n:]
        return n


def _checked(packed: BinaryIO, size: int, coding: str, limit: int) -> Iterator[bytes]:
    unpacked = 0
    try:
        for piece in _pieces(packed, coding):
            unpacked += len(piece)
            if unpacked > limit:
                raise TooLarge(f"the body unpacks to more than the {limit} bytes of one request")
            if unpacked > max(RATIO_EXEMPT_BYTES, MAX_RATIO * size):
                raise TooLarge(f"the body of {size} bytes unpacks to more than {MAX_RATIO} times as much")
            yield piece
    except (EOFError, zlib.error, zstd.ZstdError) as error:
        raise Malformed(f"the body is not {coding}: {error}") from None


def _pieces(source: BinaryIO, coding: str) -> Iterator[bytes]:
    parts = unpacked = 0
    while packed := source.read(PIECE):
        while packed := packed.lstrip(b"\0") if parts else packed:  # skip zeros after a member, as gzip(1) does
            if parts >= MAX_PARTS and unpacked < parts * PART_BYTES:
                raise TooLarge(f"the body has more than {MAX_PARTS} members or frames of {coding}")
            part, parts = CODINGS[coding](), parts + 1
            while not part.eof:
                if not packed and part.needs_input and not (packed := source.read(PIECE)):
                    raise EOFError("its end is missing")
                piece = part.decompress(packed, PIECE)
                unpacked, packed = unpacked + len(piece), b""
                yield piece
            packed = part.unused_data
