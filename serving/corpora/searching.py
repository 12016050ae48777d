"""Search during concurrent writes. If a removal may have disturbed a search, the search is repeated under the lock."""

from __future__ import annotations

from collections.abc import Sequence

from serving.corpora.description import encoder
from serving.corpora.finding import Found, Query, Wanted, find
from serving.corpora.open_corpora import OpenCorpora
from serving.corpora.open_corpus import OpenCorpus
from serving.corpora.pages import check_generation
from serving.errors import Invalid
from serving.indexes.live import LiveIndex
from serving.ports import Store


def search(
    store: Store,
    corpora: OpenCorpora,
    name: str,
    queries: Sequence[Query],
    wanted: Wanted,
    *,
    fingerprint: str | None,
) -> Found:
    """Return the best passages for each query.

    Raises:
        Conflict: the bundle of `fingerprint`, which made the query vectors, did not embed the corpus.
        Invalid: the dimension of the query vectors is wrong, or the previous page is of an earlier generation.
    """
    with corpora.locked(name) as corpus:
        index, removals = _index(store, name, corpus, queries, fingerprint), corpus.removals
        generation = _generation(store, name, index, wanted)
    failure = None
    try:
        found = find(store, name, index, queries, wanted)
    except Exception as error:  # maybe due to a change: other dimensions, a closed index
        failure = error
    with corpora.locked(name) as now:
        if now is not corpus or now.removals != removals:
            # The search may have missed a document that was replaced meanwhile, so it is repeated under the lock.
            index = _index(store, name, now, queries, fingerprint)
            generation = _generation(store, name, index, wanted)
            found = find(store, name, index, queries, wanted)
        elif failure:
            raise failure
    if wanted.mode == "lexical":
        return Found(found, generation, None)
    return Found(found, generation, "exact" if index is None or wanted.exact else index.kind)


def _index(
    store: Store, name: str, corpus: OpenCorpus, queries: Sequence[Query], fingerprint: str | None
) -> LiveIndex | None:
    """Return the index to search; None if the corpus has no vectors."""
    index = corpus.index()
    if index is None or (fingerprint is not None and index.fingerprint != fingerprint):
        if fingerprint is not None:
            encoder(*store.described(name), [fingerprint])
        return None
    wrong = next((q.vector for q in queries if q.vector is not None and len(q.vector) != index.dim), None)
    if wrong is not None:
        raise Invalid(f"{len(wrong)} numbers, but corpus {name!r} has {index.dim} dimensions", field="vector")
    return index


def _generation(store: Store, name: str, index: LiveIndex | None, wanted: Wanted) -> str:
    """Return the generation that is searched. Check that the previous page, if any, belongs to it."""
    generation = index.identity.generation if index else store.corpus(name).generation
    if wanted.after:
        check_generation(wanted.after.generation, generation)
    return generation
