"""Compressed bodies: inflated piece by piece, so that a small one can't become a large one in memory."""

from __future__ import annotations

import gzip
import io
import sys
import zlib
from collections.abc import Callable

from serving.errors import Malformed, TooLarge, UnsupportedMedia

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

MAX_RATIO = 100
"""Text packs to a tenth or so; what packs better than this was made to."""
ANY_RATIO = 1_000_000
"""Bytes up to which it does not matter."""
PIECE = 65_536
ZSTD_WINDOW: dict[int, int] = {zstd.DecompressionParameter.window_log_max: 23}
"""8 MB, what RFC 9659 lets a body ask of its reader."""

CODINGS: dict[str, Callable[[io.BytesIO], io.BufferedIOBase]] = {
    "gzip": lambda packed: gzip.GzipFile(fileobj=packed),
    "zstd": lambda packed: zstd.ZstdFile(packed, options=ZSTD_WINDOW),
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
        TooLarge: it unpacks to more, or to more than `MAX_RATIO` times its size.
        Malformed: it is not what `coding` says, or is cut short.
    """
    unpacked = bytearray()
    try:
        with CODINGS[coding](io.BytesIO(body)) as source:
            while piece := source.read(PIECE):
                unpacked += piece
                if len(unpacked) > limit:
                    raise TooLarge(f"the body unpacks to more than the {limit} bytes of one request")
                if len(unpacked) > max(ANY_RATIO, MAX_RATIO * len(body)):
                    raise TooLarge(f"the body of {len(body)} bytes unpacks to more than {MAX_RATIO} times as much")
    except (OSError, EOFError, zlib.error, zstd.ZstdError) as error:
        raise Malformed(f"the body is not {coding}: {error}") from None
    return bytes(unpacked)
