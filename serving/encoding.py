"""Compressed bodies: inflated piece by piece, so that a small one can't become a large one in memory."""

from __future__ import annotations

import io
import sys
import zlib
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, BinaryIO, Protocol, cast

from serving.errors import Malformed, TooLarge, UnsupportedMedia

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

if TYPE_CHECKING:
    from typing_extensions import Buffer

MAX_RATIO = 100
"""Text packs to a tenth or so; what packs better than this was made to."""
ANY_RATIO = 1_000_000
"""Bytes up to which it does not matter."""
MAX_PARTS = 1000
"""Members of gzip or frames of zstd, one after another; an empty one gives nothing and takes its time.
bgzip makes 500 of 32 MB."""
PART_BYTES = 4096
"""Beyond `MAX_PARTS` they must hold so much each, in the mean; bgzip's hold 65,280."""
PIECE = 65_536
BUFFER = 1 << 18
ZSTD_WINDOW: dict[int, int] = {zstd.DecompressionParameter.window_log_max: 23}
"""8 MB, what RFC 9659 lets a body ask of its reader."""


class Part(Protocol):
    """A member or frame on its way, with the names that `compression.zstd` has for one."""

    @property
    def eof(self) -> bool:
        """Whether its end was there."""

    @property
    def needs_input(self) -> bool:
        """Whether it gives nothing more before it is given more."""

    @property
    def unused_data(self) -> bytes:
        """What came after its end."""

    def decompress(self, data: bytes, max_length: int) -> bytes:
        """At most so much of what it holds; what was not used of `data` is kept."""


class _Member:
    """A `Part` of gzip."""

    def __init__(self) -> None:
        self._inflate = zlib.decompressobj(zlib.MAX_WBITS | 16)  # 16: with the head and the checksum of gzip

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


CODINGS: dict[str, Callable[[], Part]] = {
    "gzip": _Member,
    "zstd": lambda: zstd.ZstdDecompressor(options=ZSTD_WINDOW),
}


def content_coding(header: str) -> str:
    """The one coding that `Content-Encoding` names, or "" for none.

    Raises:
        UnsupportedMedia: another, or several.
    """
    coding = header.strip().lower().removeprefix("x-")
    if coding in ("", "identity"):
        return ""
    if coding not in CODINGS:
        raise UnsupportedMedia(f"{header[:80]!r} is not read, only {' and '.join(CODINGS)}", field="content-encoding")
    return coding


def inflated(body: bytes, coding: str, limit: int) -> bytes:
    """`body` unpacked; what comes after `limit` bytes is never unpacked.

    Raises:
        TooLarge: it unpacks to more, or to more than `MAX_RATIO` times its size, or has more than `MAX_PARTS` parts.
        Malformed: it is not what `coding` says, or is cut short.
    """
    return b"".join(_checked(io.BytesIO(body), len(body), coding, limit))


def inflating(packed: BinaryIO, size: int, coding: str, limit: int) -> BinaryIO:
    """A stream of what a packed one of `size` bytes holds; reading raises what `inflated` does."""
    return stream_of(_checked(packed, size, coding, limit))


def stream_of(pieces: Iterator[bytes]) -> BinaryIO:
    """Read `pieces` as one stream."""
    return cast("BinaryIO", io.BufferedReader(_Pieces(pieces), BUFFER))


class _Pieces(io.RawIOBase):
    def __init__(self, pieces: Iterator[bytes]) -> None:
        self._pieces = pieces
        self._rest = memoryview(b"")

    def readable(self) -> bool:
        """It is."""
        return True

    def readinto(self, buffer: Buffer) -> int:
        """The next bytes, as many as fit; 0 at the end."""
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
            if unpacked > max(ANY_RATIO, MAX_RATIO * size):
                raise TooLarge(f"the body of {size} bytes unpacks to more than {MAX_RATIO} times as much")
            yield piece
    except (EOFError, zlib.error, zstd.ZstdError) as error:
        raise Malformed(f"the body is not {coding}: {error}") from None


def _pieces(source: BinaryIO, coding: str) -> Iterator[bytes]:
    parts = unpacked = 0
    while packed := source.read(PIECE):
        while packed := packed.lstrip(b"\0") if parts else packed:  # gzip(1) passes over zeros behind a member, too
            if parts >= MAX_PARTS and unpacked < parts * PART_BYTES:
                raise TooLarge(f"the body has more than {MAX_PARTS} members or frames of {coding}")
            part, parts = CODINGS[coding](), parts + 1
            while not part.eof:
                if not packed and part.needs_input and not (packed := source.read(PIECE)):
                    raise EOFError("it is cut short")
                piece = part.decompress(packed, PIECE)
                unpacked, packed = unpacked + len(piece), b""
                yield piece
            packed = part.unused_data
