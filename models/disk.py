"""Bytes that stay where they were written."""

from __future__ import annotations

import os
from pathlib import Path


def fsync(path: Path) -> None:
    """What `path` holds, a file's bytes or a folder's names, survives power loss from here on."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
