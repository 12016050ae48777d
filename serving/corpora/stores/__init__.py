"""Stores by name. Each store is opened on a folder."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from serving.corpora.ports import Store
from serving.corpora.stores.sqlite import MemoryStore, SqliteStore

STORES: dict[str, Callable[[Path], Store]] = {"sqlite": SqliteStore, "memory": MemoryStore}
