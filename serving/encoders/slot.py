"""The place of one bundle among those that a server serves."""

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
    """A bundle's place in the server."""

    folder: Path
    model: Model
    """What is in service; before anything is, what is being loaded."""
    embedder: Embedder | None = None
    """Engine, queue, manifest and report in one object. None until it is loaded."""

    @property
    def name(self) -> str:
        """By which requests ask for it."""
        return self.model.manifest.name

    @property
    def at_work(self) -> Embedder:
        """The encoder in service.

        Raises:
            Unhealthy: there is none yet.
        """
        if not self.embedder:
            raise Unhealthy(f"{self.name} is not loaded yet", retry_after=1)
        return self.embedder

    def put(self, embedder: Embedder) -> Embedder | None:
        """This one serves from now on; the answer is the one before it."""
        old, self.embedder, self.model = self.embedder, embedder, embedder.model
        return old


def clash(slots: Iterable[Slot]) -> str:
    """What is wrong with their names; empty if each has its own."""
    slots = list(slots)
    name, count = Counter(slot.name for slot in slots).most_common(1)[0]
    folders = " and ".join(str(slot.folder) for slot in slots if slot.name == name)
    return f"{folders} are both called {name!r}: export one of them under another name (--name)" if count > 1 else ""
