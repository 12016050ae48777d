"""Command `isosphere copy-corpus`: copy a corpus between data folders and Milvus, and verify the copy."""

from __future__ import annotations

import argparse
import json
import re
import sys
import tempfile
from collections import defaultdict
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict, replace
from functools import reduce
from hashlib import sha256
from math import inf
from pathlib import Path
from typing import NamedTuple

from tqdm import tqdm

from models.errors import Failed, Refused
from serving.commands.starting import corpus_of, opened_corpora
from serving.corpora.backend import Backend
from serving.corpora.values import NO_SETTINGS, Content, Corpus, OwnVectors, Span
from serving.errors import Invalid, NotFound
from serving.operations.bounds import check_corpus_name
from serving.operations.clock import now
from serving.settings import Settings

HOUR = 3_600_000_000
"""An hour in microseconds."""


class Place(NamedTuple):
    """Location of a corpus: the name of the corpus, and a data folder or the address of a Milvus server."""

    store: str
    name: str

    def __str__(self) -> str:
        return _public(f"{self.store}#{self.name}")

    @classmethod
    def of(cls, text: str, name: str = "") -> Place:
        """Parse `text`, which has the form `STORE#NAME`. If `text` has no name, the corpus is called `name`.

        Raises:
            Refused: `text` has no store, `text` and `name` are both without the name of a corpus, or a user or a
                password has an unescaped #.
            Invalid: the name of the corpus is not legal.
        """
        store, _, named = text.partition("#")
        if "@" in named:
            raise Refused("the user or the password of a store has the character #: write it as %23")
        if not store or not (named or name):
            raise Refused(f"{_public(text)}: give a store and a corpus, such as var#notes or milvus://host:19530#notes")
        return cls(store, check_corpus_name(named or name))


def _public(place: str) -> str:
    """Return `place` without the user and the password of a Milvus server.

    The last `@` ends the password, because the rest of the address has no `@`.
    """
    return re.sub("(?<=://).*@", "", place)


class Sum(NamedTuple):
    """Numbers of documents and passages, and a digest of the passages that does not depend on their order."""

    documents: int = 0
    passages: int = 0
    digest: int = 0

    def __str__(self) -> str:
        return f"{self.documents} documents in {self.passages} passages, digest {self.digest:064x}"

    def plus(self, other: Sum) -> Sum:
        return Sum(self.documents + other.documents, self.passages + other.passages, self.digest ^ other.digest)


class Sums:
    """The `Sum` of a corpus's documents for each hour in which documents expire, and for those that never expire.

    These sums show whether two corpora have the same documents. Expired documents can't be read any more, so the corpus
    that is read later may lack some. `after` leaves these documents out of the comparison.
    """

    def __init__(self) -> None:
        self._by_hour = defaultdict[float, Sum](Sum)

    def add(self, content: Content) -> None:
        """Add each document of `content`, with its passages and vectors, to the sum of the hour in which it expires."""
        vectors = iter(content.vectors)
        for i, document in enumerate(content.documents):
            spans: Sequence[Span | None] = content.spans[i] if content.spans else [None]
            metadata = json.dumps(dict(document.metadata), sort_keys=True)
            expiry = () if document.expires_at is None else (str(document.expires_at),)
            digest = 0
            for span in spans:
                vector = next(vectors).tobytes().hex()
                parts = (document.id, document.text, metadata, json.dumps(span), vector, *expiry)
                digest ^= int.from_bytes(sha256("\0".join(parts).encode()).digest())
            hour = inf if document.expires_at is None else document.expires_at // HOUR
            self._by_hour[hour] = self._by_hour[hour].plus(Sum(1, len(spans), digest))

    def after(self, hour: float) -> Sum:
        """Return the `Sum` of the documents that never expire or that expire after `hour`.

        `hour` is in hours since the epoch.
        """
        return reduce(Sum.plus, (sum for at, sum in self._by_hour.items() if at > hour), Sum())


def copy(settings: Settings, given: argparse.Namespace) -> int:
    """Copy a corpus with its vectors, and verify the copy. Return the exit status.

    The copy is read again, and its numbers of documents and passages and its digest are compared with the original's.
    If copying or comparing fails, the copy is deleted.

    Raises:
        Failed: the copy differs from the original.
        Refused: source and copy are the same corpus, or the copy exists and the user did not set `--replace`.
    """
    source = _leading_to(settings, Place.of(given.source))
    target = _leading_to(settings, Place.of(given.target, source.name))
    if source == target:
        raise Refused(f"{target}: source and copy are the same corpus: give the copy another name")
    with ExitStack() as held:
        here = _opened(settings, source.store, held)
        there = here if source.store == target.store else _opened(settings, target.store, held, new=True)
        described, size = here.corpus(source.name)
        _make_way(there, target, replace=given.replace)
        _create(there, target, described, max(size.passages, settings.expected_passages))
        try:
            copied, read = _copied(here, source.name, there, target.name, size.documents), Sums()
            for content in there.contents(target.name):
                read.add(content)
            hour = now() // HOUR
            found, wanted = read.after(hour), copied.after(hour)
            if found != wanted:
                print(f"{target}: {found}")
                raise Failed(f"the copy differs from {source}, which has {wanted}: the copy was deleted")
        except BaseException:
            there.drop(target.name)
            raise
    print(f"{target}: {read.after(-inf)}")
    return 0


def _create(there: Backend, target: Place, described: Corpus, passages: int) -> None:
    """Create the copy with the settings of the original corpus. Report settings that the copy's backend lacks."""
    stemming, words = described.stemming, described.words
    corpus = Corpus(target.name, described.description, described.recall_target, stemming=stemming, words=words)
    encoder = OwnVectors(described.dim) if described.own_vectors else None
    try:
        there.create(corpus, encoder, passages)
    except Invalid:  # Only a backend without these settings refuses them, and it has changed nothing.
        there.create(replace(corpus, words=NO_SETTINGS), encoder, passages)
        lost = ", ".join(name for name, value in asdict(described.words).items() if value)
        print(
            f"isosphere copy-corpus: {target}: Milvus has no such settings, so they are not copied: {lost}",
            file=sys.stderr,
        )


def _copied(here: Backend, source: str, there: Backend, target: str, documents: int) -> Sums:
    copied = Sums()
    with tqdm(total=documents, unit=" documents", disable=not sys.stderr.isatty()) as progress:
        for content in here.contents(source):
            there.put(target, content)
            copied.add(content)
            progress.update(len(content.documents))
    return copied


def _settings_of(settings: Settings, store: str) -> Settings:
    """Return a copy of `settings` that selects `store`, which is a data folder or the address of a Milvus server.

    For a Milvus server, the copy keeps the data folder of `settings`, because this folder contains the aliases.
    """
    opened = settings.model_copy(update={"store": store})
    return opened if opened.on_milvus else settings.model_copy(update={"store": "sqlite", "data": Path(store)})


def _leading_to(settings: Settings, place: Place) -> Place:
    """Return `place` with the name of the corpus in place of an alias. A name that is not an alias stays the same."""
    return place._replace(name=corpus_of(_settings_of(settings, place.store), place.name))


def _opened(settings: Settings, store: str, held: ExitStack, *, new: bool = False) -> Backend:
    """Open the corpora in a data folder, or the corpora on Milvus with a temporary data folder.

    The exit of `held` closes the corpora. With `new`, the data folder need not have corpora yet.

    Raises:
        Refused: the data folder has no corpora.
    """
    opened = _settings_of(settings, store)
    if opened.on_milvus:
        temporary = Path(held.enter_context(tempfile.TemporaryDirectory()))
        opened = opened.model_copy(update={"data": temporary})
    elif not new and not (Path(store) / "corpora").is_dir():
        raise Refused(f"{store}: this folder has no corpora")
    corpora = opened_corpora(opened)
    held.callback(corpora.close)
    return corpora


def _make_way(there: Backend, target: Place, *, replace: bool) -> None:
    """Delete an existing corpus in the place of the copy, if the user set `--replace`.

    Raises:
        Refused: the corpus exists, and the user did not set `--replace`.
    """
    try:
        _, size = there.corpus(target.name)
    except NotFound:
        return
    if not replace:
        raise Refused(f"{target}: exists and has {size.documents} documents: choose another name, or use --replace")
    there.drop(target.name)
