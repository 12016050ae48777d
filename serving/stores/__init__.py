"""The stores by name. Each opens a folder."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from serving.ports import Store
from serving.stores.memory import MemoryStore
from serving.stores.sqlite import SqliteStore

STORES: dict[str, Callable[[Path], Store]] = {"sqlite": SqliteStore, "memory": MemoryStore}
