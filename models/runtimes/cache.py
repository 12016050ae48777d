"""Cache of this host's runtime measurements, in `isosphere/engines` in the user's cache folder."""

from __future__ import annotations

import hashlib
import json
import logging
import platform
import re
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from models.bundle.bundle import Bundle
from models.bundle.disk import replacing
from models.runtimes import RUNTIMES, available
from models.runtimes.base import Options, RuntimeUnavailable, cache_folder
from models.runtimes.measurement import Measured

log = logging.getLogger(__name__)

CPUINFO = Path("/proc/cpuinfo")
FORMAT = 3
"""Version of the stored format.

The version is part of the cache key, so measurements in older formats are not found.
"""


def recall(bundle: Bundle, options: Options) -> list[Measured]:
    """Return the cached measurements, or an empty list if there are none or the file is damaged."""
    key = _key(bundle, options)
    if not (file := _file(key)):
        return []
    try:
        stored = json.loads(file.read_text(encoding="utf-8"))
        if stored["key"] != key:
            raise ValueError("the file is for another encoder or host")
        if not (rows := [Measured.read(row) for row in stored["measured"]]):
            raise ValueError("no rows")
    except FileNotFoundError:
        return []
    except (OSError, ValueError, TypeError, KeyError, RecursionError) as error:
        log.warning("%s: not readable (%s); measuring again", file, error)
        return []
    log.info("using the measurements of this machine in %s", file)
    return rows


def remember(bundle: Bundle, options: Options, measured: Sequence[Measured]) -> None:
    """Store measurements atomically.

    If the measurement of a pair failed, nothing is stored, because the failure may be temporary. If the folder is not
    writable, the next start measures again.
    """
    if any(row.error for row in measured):
        return
    key = _key(bundle, options)
    if not (file := _file(key)):
        log.warning(
            "no home directory and no XDG_CACHE_HOME, so measurements are not cached; the next start measures again"
        )
        return
    content = {"key": key, "measured": [asdict(row) for row in measured]}
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        with replacing(file) as beside:
            text = json.dumps(content, ensure_ascii=False, indent=1, allow_nan=False)
            beside.write_text(text + "\n", encoding="utf-8")
    except OSError as error:
        log.warning("%s: not written (%s); the next start measures again", file, error.strerror)
    else:
        log.info("%s: written; delete it to measure again", file)


def forget(bundle: Bundle, options: Options) -> None:
    """Delete the cached measurements, so that the next start measures again."""
    if not (file := _file(_key(bundle, options))):
        return
    try:
        file.unlink(missing_ok=True)
    except OSError as error:
        log.warning("%s: not deleted (%s); the next start uses it again", file, error.strerror)


def _key(bundle: Bundle, options: Options) -> dict[str, Any]:
    """Return the cache key, which contains everything that affects a measurement: encoder, graphs, pairs and host."""
    graphs = {precision: file.relative_to(bundle.folder).as_posix() for precision, file in bundle.graphs.items()}
    return {
        "format": FORMAT,
        "fingerprint": bundle.manifest.fingerprint,
        "graphs": {precision: bundle.manifest.files[path] for precision, path in graphs.items()},
        "pairs": [str(pair) for pair in available(bundle, options)],
        "host": host(options),
    }


def _file(key: dict[str, Any]) -> Path | None:
    if not (folder := cache_folder()):
        return None
    name = hashlib.sha256(json.dumps(key, sort_keys=True).encode()).hexdigest()[:32]
    return folder / "engines" / f"{name}.json"


def host(options: Options) -> dict[str, Any]:
    """Return facts about the machine: CPU, usable resources, version and capabilities of each runtime."""
    return {
        "cpu": cpu(),
        "threads": options.threads,
        "device": options.device,
        "runtimes": {name: _facts(name) for name in RUNTIMES},
    }


def cpu(cpuinfo: Path = CPUINFO) -> str:
    names = re.findall(r"^model name\s*:\s*(.+)$", cpuinfo.read_text(), re.MULTILINE) if cpuinfo.exists() else []
    return names[0] if names else platform.processor() or platform.machine()


def _facts(name: str) -> dict[str, Any] | None:
    try:
        return RUNTIMES[name].facts()
    except RuntimeUnavailable:
        return None
