"""Command `python -m serving.corpora.ingest.readers FORMAT OPTIONS < FILE`.

The command prints the documents of a file as JSON lines.
"""

from __future__ import annotations

import json
import os
import resource
import sys
from collections.abc import Callable
from pkgutil import resolve_name
from typing import Any, BinaryIO

from serving.corpora.ingest.readers.unreadable import Records, Unreadable

READERS = {
    "parquet": "serving.corpora.ingest.readers.columns:parquet",
    "arrow": "serving.corpora.ingest.readers.columns:arrow",
    "markdown": "serving.corpora.ingest.readers.markup:markdown",
    "html": "serving.corpora.ingest.readers.markup:html",
    "pdf": "serving.corpora.ingest.readers.pdf:pages",
    "docx": "serving.corpora.ingest.readers.docx:sections",
}
MEMORY_SPARE = 1 << 20
"""Bytes that are reserved at the start, and freed if memory runs out. The error can then be reported."""


def main() -> int:
    """Read the file from standard input, print its documents, and return the exit status.

    If there is an error, the last line of the output has the error.
    """
    format, options = sys.argv[1], json.loads(sys.argv[2])
    limits = {resource.RLIMIT_CORE: 0, resource.RLIMIT_DATA: options["memory_bytes"]}
    limits |= {resource.RLIMIT_CPU: options["cpu_seconds"]} if options["cpu_seconds"] else {}
    try:
        for what, most in limits.items():
            _, hard = resource.getrlimit(what)
            resource.setrlimit(what, (most if hard == resource.RLIM_INFINITY else min(most, hard), hard))
    except (OSError, ValueError) as error:
        _report(
            "the server can't limit the memory and time of the reader, so it does not read files of this "
            f"format: {error}",
            "Unhealthy",
        )
        return 1
    spare = bytearray(MEMORY_SPARE)
    try:
        read: Callable[[BinaryIO, dict[str, Any]], Records] = resolve_name(READERS[format])
        for record in read(sys.stdin.buffer, options):
            print(json.dumps(record._asdict()))
        return 0
    except MemoryError:
        spare.clear()
        _report(f"needs more than {options['memory_bytes'] >> 20} MB of memory: split the file", "TooLarge")
    except RecursionError:
        _report("nested too deeply", "Invalid")
    except Unreadable as error:
        _report(str(error), error.kind, error.place)
    except BrokenPipeError:  # the parent process has closed the pipe
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 1


def _report(message: str, kind: str, place: str = "") -> None:
    print(json.dumps({"place": place, "error": message, "kind": kind}))


if __name__ == "__main__":
    sys.exit(main())
