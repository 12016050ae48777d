"""Backends of corpora for tests: SQLite, and Milvus if its extra is installed."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path

import pytest

WITH_MILVUS = pytest.mark.skipif(
    importlib.util.find_spec("pymilvus") is None, reason="the extra 'milvus' is not installed"
)
BACKENDS = {"sqlite": pytest.param("sqlite"), "milvus": pytest.param("milvus", marks=[WITH_MILVUS, pytest.mark.slow])}


def milvus_of(folder: Path) -> str:
    """Return the Milvus that ISOSPHERE_MILVUS names, whose corpora tests remove, or else a Milvus Lite in `folder`."""
    return os.environ.get("ISOSPHERE_MILVUS", str(folder / "milvus.db"))
