"""Aliases: additional names of corpora. One file in the data folder stores all aliases."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import orjson
from pydantic import Field, TypeAdapter, ValidationError

from models.bundle.disk import replacing
from serving.corpora.ports import StoreError
from serving.errors import Conflict, NotFound
from serving.operations.bounds import CORPUS_NAME
from serving.operations.files import disk_errors

ALIASES = "aliases.json"
"""Name of the aliases' file in the data folder."""
MAX_ALIASES = 1000
_Name = Annotated[str, Field(pattern=CORPUS_NAME)]
_FILE = TypeAdapter(dict[_Name, _Name])


class Aliases:
    """The aliases of a server, which are stored in `file`.

    `corpora` maps each alias to its corpus. Reads of `corpora` never block. Methods that change aliases block.
    These methods raise `InsufficientStorage` or `Unhealthy` if the disk is full or fails.

    Such a method first replaces the file atomically, and then the mapping in memory. A request therefore sees either
    the old or the new corpus of an alias. After a crash, the file has either the old or the new aliases.

    Raises:
        StoreError: the file can't be read.
    """

    def __init__(self, file: Path) -> None:
        self._file = file
        self._changing = threading.Lock()
        try:
            self.corpora = _FILE.validate_json(file.read_bytes()) if file.exists() else {}
        except (OSError, ValidationError) as error:
            raise StoreError(
                f"{file}: the aliases can't be read; restore the file, or delete it to lose the aliases: {error}"
            ) from None

    def listing(self) -> Mapping[str, str]:
        """Return a copy of `corpora`, sorted by alias."""
        return dict(sorted(self.corpora.items()))

    def set(self, alias: str, corpus: str) -> bool:
        """Point an alias to a corpus. Return True if the alias is new.

        Raises:
            Conflict: the server already has the maximum number of aliases.
        """
        with self._changing:
            new = alias not in self.corpora
            if new and len(self.corpora) >= MAX_ALIASES:
                raise Conflict(f"there are already {MAX_ALIASES} aliases, which is the maximum: delete one")
            self._replace({**self.corpora, alias: corpus})
            return new

    def delete(self, alias: str) -> None:
        """Delete an alias. Its corpus is not deleted.

        Raises:
            NotFound: the alias does not exist.
        """
        with self._changing:
            if alias not in self.corpora:
                raise NotFound(f"there is no alias {alias!r}")
            self._replace({name: corpus for name, corpus in self.corpora.items() if name != alias})

    def follow(self, name: str, to: str) -> None:
        """Point the aliases of a renamed corpus to the new name of the corpus."""
        with self._changing:
            if name in self.corpora.values():
                self._replace({alias: to if corpus == name else corpus for alias, corpus in self.corpora.items()})

    def _replace(self, corpora: dict[str, str]) -> None:
        with disk_errors(self._file), replacing(self._file) as part:
            part.write_bytes(orjson.dumps(corpora, option=orjson.OPT_INDENT_2 | orjson.OPT_SORT_KEYS))
        self.corpora = corpora
