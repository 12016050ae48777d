"""Cache of measurements on this host: `isosphere/engines` in the user's cache folder."""

from __future__ import annotations

import hashlib
import json
import logging
import platform
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

from models.bundle.bundle import Bundle
from models.bundle.disk import replacing
from models.runtimes import RUNTIMES, available
from models.runtimes.base import Options, RuntimeUnavailable, cache_folder

log = logging.getLogger(__name__)

T = TypeVar("T")
CPUINFO = Path("/proc/cpuinfo")
FORMAT = 2
"""Format of the rows. It is part of the key, so rows of older formats are not found."""


def key(bundle: Bundle, options: Options) -> dict[str, Any]:
    """Return the key of a measurement: everything that affects it (encoder, bytes of graphs, pairs, host)."""
    graphs = {precision: file.relative_to(bundle.folder).as_posix() for precision, file in bundle.graphs.items()}
    return {
        "format": FORMAT,
        "fingerprint": bundle.manifest.fingerprint,
        "graphs": {precision: bundle.manifest.files[path] for precision, path in graphs.items()},
        "pairs": [str(pair) for pair in available(bundle, options)],
        "host": host(options),
    }


def host(options: Options) -> dict[str, Any]:
    """Describe the machine: CPU, usable resources, version and capabilities of each runtime."""
    return {
        "cpu": cpu(),
        "threads": options.threads,
        "device": options.device,
        "runtimes": {name: _facts(name) for name in RUNTIMES},
    }


def cpu(cpuinfo: Path = CPUINFO) -> str:
    """Return the model name of the CPU."""
    names = re.findall(r"^model name\s*:\s*(.+)$", cpuinfo.read_text(), re.MULTILINE) if cpuinfo.exists() else []
    return names[0] if names else platform.processor() or platform.machine()


def file_of(key: dict[str, Any]) -> Path | None:
    """Return the file for the measurement of `key`. None if the user has no home."""
    if not (folder := cache_folder()):
        return None
    name = hashlib.sha256(json.dumps(key, sort_keys=True).encode()).hexdigest()[:32]
    return folder / "engines" / f"{name}.json"


def recall(key: dict[str, Any], read: Callable[[dict[str, Any]], T]) -> list[T]:
    """Return the rows stored for `key`, each converted by `read`.

    `read` raises ValueError or TypeError on an invalid row.

    Return an empty list if there are no rows, or if the file is damaged. In the latter case, log a warning.
    """
    if not (file := file_of(key)):
        return []
    try:
        kept = json.loads(file.read_text(encoding="utf-8"))
        if kept["key"] != key:
            raise ValueError("of another encoder or host")
        if not (rows := [read(row) for row in kept["measured"]]):
            raise ValueError("no rows")
    except FileNotFoundError:
        return []
    except (OSError, ValueError, TypeError, KeyError, RecursionError) as error:
        log.warning("%s: not readable (%s); measuring anew", file, error)
        return []
    log.info("%s: what this machine measured before", file)
    return rows


def remember(key: dict[str, Any], measured: Sequence[dict[str, Any]]) -> None:
    """Store `measured` for `key`, atomically. If the folder is not writable, the next start measures again."""
    if not (file := file_of(key)):
        log.warning("no home, and no XDG_CACHE_HOME, to keep what was measured in; the next start measures again")
        return
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        with replacing(file) as beside:
            text = json.dumps({"key": key, "measured": measured}, ensure_ascii=False, indent=1, allow_nan=False)
            beside.write_text(text + "\n", encoding="utf-8")
    except OSError as error:
        log.warning("%s: not written (%s); the next start measures again", file, error.strerror)
    else:
        log.info("%s: written; delete it to measure again", file)


def forget(key: dict[str, Any]) -> None:
    """Delete the measurement, so that the next start measures again."""
    if not (file := file_of(key)):
        return
    try:
        file.unlink(missing_ok=True)
    except OSError as error:
        log.warning("%s: not deleted (%s); the next start takes it again", file, error.strerror)


def _facts(name: str) -> dict[str, Any] | None:
    try:
        return RUNTIMES[name].facts()
    except RuntimeUnavailable:
        return None
