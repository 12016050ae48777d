"""Slot of one served bundle."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from serving.encoders.embedder import Embedder
from serving.errors import Unhealthy
from serving.ports import Model


@dataclass(eq=False)
class Slot:
    """A served bundle, whose encoder can be replaced."""

    folder: Path
    model: Model
    """The served model; before that, the model being loaded."""
    embedder: Embedder | None = None
    """Engine, queue, manifest and report in one object. None until it is loaded."""

    @property
    def name(self) -> str:
        """Name of the model in requests."""
        return self.model.manifest.name

    @property
    def at_work(self) -> Embedder:
        """The loaded encoder.

        Raises:
            Unhealthy: the encoder is not loaded yet.
        """
        if not self.embedder:
            raise Unhealthy(f"{self.name} is not loaded yet", retry_after=1)
        return self.embedder

    def put(self, embedder: Embedder) -> Embedder | None:
        """Serve `embedder` from now on, and return the previous one."""
        old, self.embedder, self.model = self.embedder, embedder, embedder.model
        return old


def clash(slots: Iterable[Slot]) -> str:
    """Return a message about two equal names; empty if all names differ."""
    slots = list(slots)
    name, count = Counter(slot.name for slot in slots).most_common(1)[0]
    folders = " and ".join(str(slot.folder) for slot in slots if slot.name == name)
    return f"{folders} are both called {name!r}: export one of them under another name (--name)" if count > 1 else ""
