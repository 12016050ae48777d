"""Resources that all files of a store share."""

from __future__ import annotations

from dataclasses import dataclass, field

from serving.stores.matched import Matched
from serving.stores.open_files import OpenFiles


@dataclass(frozen=True)
class Shared:
    """The limit on open files and the cache of filter results, for all corpora together."""

    open_files: OpenFiles = field(default_factory=OpenFiles)
    matched: Matched = field(default_factory=Matched)
