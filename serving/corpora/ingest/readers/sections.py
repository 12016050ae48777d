"""Sections of a file. Headings separate sections, and blank lines separate the blocks of a section."""

from __future__ import annotations

import re
from typing import Any, Literal, NamedTuple

from serving.corpora.ingest.readers.unreadable import Record, Records, Unreadable

MAX_ANCHOR = 100
_PUNCTUATION = re.compile(r"[^\w\- ]")


class Section(NamedTuple):
    """A section of a file, with its headings from the outermost to its own."""

    anchor: str
    headings: list[str]
    text: str


class Sections:
    """Collector of the headings and blocks of a file, which it groups into sections."""

    def __init__(self) -> None:
        self._path: list[tuple[int, str]] = []
        self._blocks: list[str] = []
        self._kind = ""
        self._anchor = ""
        self._anchors = dict[str, int]()
        """The anchors of the sections, each with the last number that was appended to it."""
        self._found: list[Section] = []

    def heading(self, level: int, text: str, anchor: str = "") -> None:
        self._end()
        self._path = [(outer, title) for outer, title in self._path if outer < level] + [(level, text)]
        self._blocks, self._kind = [text], ""
        self._anchor = anchor or slug(text)

    def block(self, text: str, kind: Literal["", "row", "item"] = "") -> None:
        """Add a paragraph, a row of a table or an item of a list.

        Consecutive rows or items are not separated by blank lines. An empty block is skipped.
        """
        if not text.strip():
            return
        if kind and kind == self._kind:
            self._blocks[-1] += f"\n{text}"
        else:
            self._blocks.append(text)
        self._kind = kind

    def end(self) -> list[Section]:
        self._end()
        return self._found

    def _end(self) -> None:
        if self._blocks:
            anchor, headings = self._unique(self._anchor), [title for _, title in self._path]
            self._found.append(Section(anchor, headings, "\n\n".join(self._blocks)))
        self._blocks = []

    def _unique(self, anchor: str) -> str:
        """Make an anchor unique. If the anchor occurred before, append a number, as GitHub does."""
        unique = anchor
        while unique in self._anchors:
            self._anchors[anchor] += 1
            unique = f"{anchor}-{self._anchors[anchor]}"
        self._anchors[unique] = 0
        return unique


def slug(heading: str) -> str:
    """Return the anchor that GitHub gives to a heading, cut to `MAX_ANCHOR` characters."""
    return _PUNCTUATION.sub("", heading.strip().lower()).replace(" ", "-")[:MAX_ANCHOR]


def documents(sections: list[Section], metadata: dict[str, Any], options: dict[str, Any]) -> Records:
    """Yield a document for each section or, with the option `split: file`, one document for the whole file.

    A section that has only a heading gets no document if a subsection follows. If the file has a name, its documents
    have ids, such as `guide.md#install`.

    Raises:
        Unreadable: the file has no text.
    """
    if not sections:
        raise Unreadable("the file has no text", "Empty")
    if options["split"] == "file":
        sections = [Section("", [], "\n\n".join(section.text for section in sections))]
    else:
        following = [*sections[1:], None]
        sections = [one for one, after in zip(sections, following, strict=True) if not _is_bare(one, after)]
    for number, (anchor, headings, text) in enumerate(sections, start=1):
        about = metadata | ({"headings": headings} if headings else {})
        yield document(f"section {number}", text, anchor, about, options)


def _is_bare(section: Section, following: Section | None) -> bool:
    """Return whether a section has only a heading, and the next section is one of its subsections."""
    path = section.headings
    deeper = following is not None and len(following.headings) > len(path) and following.headings[: len(path)] == path
    return bool(path) and section.text == path[-1] and deeper


def document(place: str, text: str, anchor: str, metadata: dict[str, Any], options: dict[str, Any]) -> Record:
    """Return the document for the part of a file that `place` names, such as a page.

    If the file has a name (the option `source`), the id of the document consists of this name and `anchor`.
    """
    if not (source := options["source"]):
        return Record(place, {"text": text, "metadata": metadata})
    id = f"{source}#{anchor}" if anchor else source
    return Record(place, {"id": id, "text": text, "metadata": {**metadata, "source": source}})


def titled(title: Any) -> dict[str, Any]:
    """Return the metadata of a file with this title, or no metadata if there is no title."""
    return {"title": " ".join(title.split())} if isinstance(title, str) and title.strip() else {}
