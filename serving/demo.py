"""The corpus that a new server comes with: what CPython documents about itself."""

from __future__ import annotations

import asyncio
import logging
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import islice

import numpy as np
from tqdm import tqdm

from models.python_docs import Section, sections
from serving.corpora import Corpora, is_stale
from serving.ports import Content, Document
from serving.service import Service

log = logging.getLogger(__name__)

NAME = "python-docs"
DESCRIPTION = "The documentation inside CPython: language reference and docstrings of the standard library"
MAX_DOCUMENTS = 8_000
MAX_PARAGRAPHS = 2
MIN_CHARACTERS, MAX_CHARACTERS = 30, 200
"""At most about 50 tokens: longer paragraphs are cut after a sentence. Shorter ones say too little to be found."""
STEP = 128
"""Documents embedded between two reports of progress."""


async def build(service: Service) -> None:
    """Embed and store the demo corpus where there is no corpus at all, or anew where another bundle embedded it.

    Killed half-way it leaves none, or the old one.
    """
    if not _due(service):
        return
    service.report(f"building the demo corpus {NAME}")
    log.info("building the demo corpus %s (once for each encoder; --no-demo turns it off)", NAME)
    # Texts of a step are padded to its longest, so neighbours in length belong together.
    documents = await asyncio.to_thread(lambda: sorted(_documents(), key=lambda document: len(document.text)))
    vectors = []
    with tqdm(total=len(documents), unit="doc", disable=not sys.stderr.isatty()) as bar:
        for start in range(0, len(documents), STEP):
            content = await service.library.embedded(documents[start : start + STEP])
            vectors.append(content.vectors)
            bar.update(len(content.documents))
            _report(service, start, min(start + STEP, len(documents)), len(documents))
    whole = Content(documents, np.concatenate(vectors), service.manifest.fingerprint)
    await service.library.lanes.run(NAME, lambda: _store(service.library.corpora, whole))


def _due(service: Service) -> bool:
    """A corpus of this name that somebody described otherwise is not ours to replace."""
    listing = service.library.corpora.listing()
    ours = [found for found in listing if (found[0].name, found[0].description) == (NAME, DESCRIPTION)]
    return not service.library.corpora.names() or any(is_stale(*found, service.encoders.fingerprints) for found in ours)


def _store(corpora: Corpora, whole: Content) -> None:
    if NAME in corpora.names():
        corpora.drop(NAME)
    corpora.create(NAME, description=DESCRIPTION, content=whole)


def _report(service: Service, before: int, done: int, total: int) -> None:
    service.report(f"building the demo corpus {NAME}: {done} of {total} documents")
    if not sys.stderr.isatty() and 10 * before // total < 10 * done // total:
        log.info("demo corpus: %d of %d documents", done, total)


def _documents() -> Iterator[Document]:
    """Paragraphs, each with the module and name that it documents."""
    return islice(map(_numbered(), _paragraphs()), MAX_DOCUMENTS)


def _paragraphs() -> Iterator[tuple[Section, str]]:
    """A docstring's first paragraphs say what the thing is for; the language reference is kept whole."""
    for section in sections():
        kept = None if section.module == "topics" else MAX_PARAGRAPHS
        for paragraph in section.text.split("\n\n")[:kept]:
            if len(paragraph) >= MIN_CHARACTERS:
                yield section, paragraph


def _numbered() -> Callable[[tuple[Section, str]], Document]:
    """Ids that count the paragraphs of a name: overloads and conditional definitions share one."""
    seen: Counter[str] = Counter()

    def document(found: tuple[Section, str]) -> Document:
        section, paragraph = found
        name = f"{section.module}:{section.name}"
        seen[name] += 1
        metadata = {"module": section.module, "name": section.name, "paragraph": seen[name]}
        return Document(f"{name}#{seen[name]}", _cut(paragraph), metadata)

    return document


def _cut(paragraph: str) -> str:
    if len(paragraph) <= MAX_CHARACTERS:
        return paragraph
    sentence = paragraph.rfind(". ", 0, MAX_CHARACTERS) + 1
    word = max(paragraph.rfind(" ", 0, MAX_CHARACTERS), 0)
    return paragraph[: sentence or word or MAX_CHARACTERS]
