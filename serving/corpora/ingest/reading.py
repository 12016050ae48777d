"""Reading of files that need a parser.

A child process (`serving.corpora.ingest.readers`) reads these files, within limits on memory and CPU time.
"""

from __future__ import annotations

import io
import json
import os
import signal
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import BinaryIO, cast

from serving.corpora.ingest.lines import lines
from serving.corpora.ingest.rows import Row, json_value, row_bytes
from serving.errors import Empty, Invalid, Malformed, ServiceError, TooLarge, Unhealthy, UnsupportedMedia
from serving.operations.child_process import output, reaped, running
from serving.operations.encoding import BUFFER, MAX_RATIO, RATIO_EXEMPT_BYTES, stream_of
from serving.operations.files import disk_errors
from serving.operations.threads import check_cancelled
from serving.settings import Settings

MEMORY_BYTES = 1 << 30
"""Maximum bytes of memory for the process that reads a file."""
CPU_SECONDS = {"markdown": 60, "html": 60, "pdf": 60, "docx": 60}
"""Maximum CPU seconds of the process that reads a file, by format. Tables have no limit, because the server already
stores the first rows while the process reads the next rows."""
PACKAGES = {
    "parquet": ("pyarrow", "data"),
    "arrow": ("pyarrow", "data"),
    "markdown": ("markdown_it", "documents"),
    "pdf": ("pypdf", "documents"),
    "docx": ("docx", "documents"),
}
"""For each format, the package that reads it, and the extra of this project that installs the package."""
_ERRORS: dict[str, type[ServiceError]] = {one.__name__: one for one in (Malformed, Invalid, TooLarge, Empty, Unhealthy)}


def check_installed(format: str) -> None:
    """Raise `UnsupportedMedia` if the package that reads a format is not installed.

    The message names the extra to install.
    """
    package, extra = PACKAGES.get(format, ("", ""))
    if package and find_spec(package) is None:
        raise UnsupportedMedia(
            f"{format} needs the extra {extra!r}, which is not installed on the server: `make setup` or, without a "
            f"checkout, pip install 'isosphere[{extra}]'"
        )


def read(stream: BinaryIO, format: str, settings: Settings, *, source: str, split: str) -> Iterator[Row]:
    """Yield the documents of a file as rows. A child process reads the file. See `Options` for `source` and `split`.

    Raises:
        Malformed, Invalid, TooLarge, Empty: the file can't be read, or can't be read within the limits.
        Unhealthy: the limits can't be set.
    """
    options = {
        "source": source,
        "split": split,
        "memory_bytes": MEMORY_BYTES,
        "cpu_seconds": CPU_SECONDS.get(format, 0),
    }
    with _on_disk(stream) as file:
        size = os.fstat(file.fileno()).st_size
        most = min(settings.max_upload_bytes, max(RATIO_EXEMPT_BYTES, MAX_RATIO * size))
        arrow = {"ARROW_DEFAULT_MEMORY_POOL": "system", "ARROW_IO_THREADS": "1"}
        with running(
            "serving.corpora.ingest.readers", format, json.dumps(options), stdin=file, variables=arrow
        ) as child:
            written = 0
            for number, line in lines(stream_of(output(child)), limit := row_bytes(settings)):
                written += limit if isinstance(line, ServiceError) else len(line)
                if written > most:
                    raise TooLarge(
                        f"the documents in the file of {size} bytes are more than {most} bytes as JSON: split the file"
                    )
                yield Row(f"row {number}", line) if isinstance(line, ServiceError) else _row(line, f"row {number}")
            if status := reaped(child):
                raise _ended(status, format)


def _row(line: bytes, place: str) -> Row:
    record = json_value(line)
    if isinstance(record, ServiceError):
        return Row(place, record)
    if kind := record.get("kind"):
        raise _ERRORS[kind](record["error"], field=record["place"] or None)
    value = Invalid(record["error"], field=record["field"]) if record["error"] else record["value"]
    return Row(record["place"], value)


def _ended(status: int, format: str) -> ServiceError:
    """Return the error for a process that ended without reporting an error."""
    if status == -signal.SIGXCPU:
        return TooLarge(f"reading the {format} takes more than {CPU_SECONDS[format]} s: split the file")
    if status == -signal.SIGKILL:
        return TooLarge(f"reading the {format} needs more memory than there is: split the file")
    return Malformed(f"a damaged file: the reader of {format} crashed while it read the file")


@contextmanager
def _on_disk(stream: BinaryIO) -> Iterator[BinaryIO]:
    """Open the content of a stream as a file that another process can read from its beginning."""
    try:
        number = stream.fileno()
    except io.UnsupportedOperation:  # the stream is in memory, or is decompressed while it is read
        with tempfile.TemporaryFile() as copy:
            with disk_errors(Path(tempfile.gettempdir())):
                while piece := stream.read(BUFFER):
                    check_cancelled()
                    copy.write(piece)
                copy.flush()
            with _on_disk(cast("BinaryIO", copy)) as file:
                yield file
    else:
        with Path(f"/dev/fd/{number}").open("rb") as file:  # a second open file has its own position
            yield file
