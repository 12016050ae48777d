"""Excerpts of a corpus: its first lines, or lines of certain lengths."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from models.bundle.bundle import sha256
from models.bundle.disk import make_folder, replacing
from training.data.files import CorpusError, sentences
from training.data.sentences import word_starts


@dataclass(frozen=True, kw_only=True)
class Excerpt:
    """A selection of lines of a corpus. By default, all lines are selected."""

    first: int | None = None
    """If set, only this number of lines at the beginning of the corpus can be selected."""
    words: tuple[int, ...] | None = None
    """Minimum and maximum number of words in a line, as `word_starts` counts them."""

    def __post_init__(self) -> None:
        if self.first is not None and self.first < 1:
            raise ValueError(f"first: {self.first} is less than one line")
        if self.words is not None and not (len(self.words) == 2 and 1 <= self.words[0] <= self.words[1]):
            raise ValueError(f"words: {[*self.words]} is not a minimum and a maximum, such as [4, 16]")

    def of(self, lines: Iterable[str]) -> Iterator[str]:
        """Yield the selected lines in order, without blank ones."""
        least, most = self.words or (1, math.inf)
        return (line for line in islice(lines, self.first) if least <= len(word_starts(line)) <= most)

    def write(self, files: Sequence[str], folder: Path) -> str:
        """Return the path of a file in `folder` with this excerpt of `files`. Write the file if it does not exist.

        Raises:
            CorpusError: the corpus can't be read, or the excerpt is empty.
            OSError: the file can't be written.
        """
        paths = [Path(file) for file in files]
        if absent := [path for path in paths if not path.is_file()]:
            raise CorpusError(f"{absent[0]}: is not a file")
        known = f"{self}{[sha256(path) for path in paths]}"
        written = folder / f"{hashlib.blake2b(known.encode('utf-8'), digest_size=6).hexdigest()}.txt"
        if written.exists():
            return str(written)
        make_folder(folder)
        with replacing(written) as beside:
            with beside.open("w", encoding="utf-8") as file:
                file.writelines(f"{line.strip()}\n" for line in self.of(sentences(paths)))
            if not beside.stat().st_size:
                raise CorpusError(f"{' '.join(files)}: has no line of {self}")
        return str(written)

    def __str__(self) -> str:
        parts = [f"{self.words[0]} to {self.words[1]} words"] if self.words else []
        parts += [f"the first {self.first}"] if self.first else []
        return " among ".join(parts) or "it all"
