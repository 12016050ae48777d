"""The corpus that a new server comes with: what CPython documents about itself."""

from __future__ import annotations

import asyncio
import logging
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import islice

import numpy as np
from tqdm import tqdm

from models.python_docs import Section, sections
from serving.corpora.description import is_stale
from serving.errors import Overloaded
from serving.jobs import Duplicate
from serving.ports import Content, Corpus, Document, Size
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


async def prepare(service: Service) -> None:
    """Build the demo corpus where there is no corpus at all; have a job embed it again if another bundle embedded it.

    What others put into it stays. A corpus of this name that somebody described otherwise is not ours.
    """
    listing = service.library.corpora.listing()
    if not service.library.corpora.names():
        await _build(service)
    elif any(_is_ours(*found) and is_stale(*found, service.encoders.fingerprints) for found in listing):
        log.info("the demo corpus %s is embedded again by a job, for another encoder made its vectors", NAME)
        try:
            with suppress(Duplicate):  # since the server was here last
                await service.jobs.submit("reembed", NAME, {"model": service.encoders.default.name})
        except Overloaded as error:
            log.warning("the demo corpus %s is not embedded again: %s", NAME, error)


def _is_ours(corpus: Corpus, _size: Size) -> bool:
    return (corpus.name, corpus.description) == (NAME, DESCRIPTION)


async def _build(service: Service) -> None:
    """All of it or, killed half-way, none."""
    service.report(f"building the demo corpus {NAME}")
    log.info("building the demo corpus %s (once; --no-demo turns it off)", NAME)
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
    corpora = service.library.corpora
    await service.library.lanes.run(NAME, lambda: corpora.create(NAME, description=DESCRIPTION, content=whole))


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
