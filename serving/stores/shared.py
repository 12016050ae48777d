"""What the files of a store have in common."""

from __future__ import annotations

from dataclasses import dataclass, field

from serving.stores.matched import Matched
from serving.stores.open_files import OpenFiles


@dataclass(frozen=True)
class Shared:
    """There is so much of it for all corpora together, however many there are."""

    open_files: OpenFiles = field(default_factory=OpenFiles)
    matched: Matched = field(default_factory=Matched)
