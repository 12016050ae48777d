"""Logs on standard error, as lines for people or as one JSON object per line.

Log lines contain no document, no text and no API key. Tracebacks have frames and exception types but no messages,
because messages may quote a caller's data.
"""

from __future__ import annotations

import asyncio
import logging
import sys
import traceback
from collections.abc import Mapping
from datetime import UTC, datetime
from types import TracebackType
from typing import Any, Literal

import orjson

from serving.errors import escaped

log = logging.getLogger(__name__)
LogFormat = Literal["auto", "json", "pretty"]

_Failure = tuple[type[BaseException], BaseException, TracebackType | None] | tuple[None, None, None]


def configure(form: LogFormat) -> None:
    """Send the log lines of all loggers to standard error.

    `auto` selects pretty lines on a terminal, and JSON otherwise.
    """
    pretty = form == "pretty" or (form == "auto" and sys.stderr.isatty())
    destination = logging.StreamHandler(sys.stderr)
    destination.setFormatter(Pretty() if pretty else Json())
    logging.basicConfig(level=logging.INFO, handlers=[destination], force=True)
    # FAISS logs that its package lacks builds for other CPUs, as if the installation were incomplete.
    for noisy in ("uvicorn", "faiss.loader"):
        logging.getLogger(noisy).setLevel(logging.WARNING)


def loop_failed(loop: asyncio.AbstractEventLoop, context: Mapping[str, Any]) -> None:  # noqa: ARG001 - asyncio calls it
    """Log an exception that no task awaits, or that a callback raised.

    This function replaces asyncio's own handler, which would also log the exception's message and the callback's
    arguments. Both may quote a caller's data.
    """
    said, callback, _ = str(context["message"]).partition("callback")
    log.error("%s", said + callback, exc_info=context.get("exception"))


class Pretty(logging.Formatter):
    """Formatter for people. It writes the message, and then each field that is not None as `name=value`."""

    def format(self, record: logging.LogRecord) -> str:
        fields = (f"{name}={value}" for name, value in _fields(record).items() if value is not None)
        said = [record.getMessage(), *fields]
        return "\n".join([" ".join(said), *([self.formatException(record.exc_info)] if record.exc_info else [])])

    def formatException(self, ei: _Failure) -> str:
        """Return the frames and types of an exception and its causes, without their messages."""
        return _traceback(ei[1])


class Json(Pretty):
    """Formatter that writes one JSON object on each line."""

    def format(self, record: logging.LogRecord) -> str:
        line = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **_fields(record),
        }
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        # Names of files may contain lone surrogates.
        writable = {name: escaped(value) if isinstance(value, str) else value for name, value in line.items()}
        return orjson.dumps(writable, default=str).decode()


def _fields(record: logging.LogRecord) -> Mapping[str, Any]:
    fields: Mapping[str, Any] = getattr(record, "fields", {})
    return fields


def _traceback(error: BaseException | None) -> str:
    if error is None:
        return ""
    cause = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    frames = "".join(traceback.format_tb(error.__traceback__))
    return f"{_traceback(cause)}{type(error).__module__}.{type(error).__qualname__}:\n{frames}"
