"""Retrieval scores as in BEIR: nDCG@10, MRR@10 and Recall@100."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from math import log2
from statistics import fmean
from typing import Any

import faiss
import numpy as np
from numpy.typing import NDArray

from models.bundle.prompts import DOCUMENT, NO_PROMPTS, QUERY, prompt_for
from training.evaluation.beir import Collection
from training.evaluation.vectors import Encode, EvaluationError, unit_vectors

DEPTH = 100
"""Number of documents in a ranking, which is the largest cutoff of the measures."""

NDCG10 = "nDCG@10"
MEASURES = (NDCG10, "MRR@10", "Recall@100")
"""Names of the columns of `by_query`."""


@dataclass(frozen=True)
class RetrievalScore:
    """Retrieval scores of an encoder: means over the queries, times 100."""

    ndcg10: float
    """DCG of the first ten documents, divided by the DCG of the ideal order of all judged documents.

    Gain is the grade, discounted by log2(rank + 1). This is `ndcg_cut_10` of trec_eval (Järvelin and Kekäläinen 2002).
    """
    mrr10: float
    """Mean of 1 / rank of the first relevant document. The value of a query is 0 if this rank is beyond 10."""
    recall100: float
    """Share of the relevant documents that are among the first hundred documents."""
    queries: int
    documents: int
    missing: int = 0
    """Number of judgements whose relevant document is missing from the collection.

    These documents count as relevant, but no search can find them.
    """

    def to_json(self) -> dict[str, Any]:
        """Return a plain dictionary. `missing` is included only if it is above 0."""
        return {name: value for name, value in asdict(self).items() if name != "missing" or value}


def evaluate(encode: Encode, collection: Collection, *, prompts: Mapping[str, str] = NO_PROMPTS) -> RetrievalScore:
    """Score the exact ranking of all documents by cosine.

    Queries and documents are encoded with the encoder's prompts for their roles.

    Raises:
        EvaluationError: a vector is not finite, or there are no queries.
    """
    return score(rankings(encode, collection, prompts=prompts), collection)


def rankings(
    encode: Encode, collection: Collection, depth: int = DEPTH, *, prompts: Mapping[str, str] = NO_PROMPTS
) -> dict[str, list[str]]:
    """Return the ids of each query's `depth` nearest documents, nearest first.

    Queries and documents get the prompts for their roles, as in the server's search. Documents whose cosines agree to
    six decimals keep the collection's order.

    Raises:
        EvaluationError: a vector is not finite.
    """
    documents, queries = list(collection.documents), list(collection.queries)
    vectors = _encode_with_prompt(prompt_for(prompts, DOCUMENT), encode, collection.documents)
    asked = _encode_with_prompt(prompt_for(prompts, QUERY), encode, collection.queries)
    index = faiss.IndexFlatIP(vectors.shape[1])
    index.add(vectors)
    found = _nearest(index, asked, depth + 1)  # One more document, because the query's own id is removed afterwards.
    return {
        query: [documents[row] for row in rows if documents[row] != query][:depth]
        for query, rows in zip(queries, found, strict=True)
    }


def score(rankings: Mapping[str, Sequence[str]], collection: Collection) -> RetrievalScore:
    """Score rankings, which have up to 100 document ids for each query, nearest first.

    Raises:
        EvaluationError: see `by_query`.
    """
    ndcg10, mrr10, recall100 = (100 * fmean(column) for column in by_query(rankings, collection).T.tolist())
    counts = len(collection.queries), len(collection.documents), collection.missing
    return RetrievalScore(ndcg10, mrr10, recall100, *counts)


def by_query(rankings: Mapping[str, Sequence[str]], collection: Collection) -> NDArray[np.float64]:
    """Compute the three `MEASURES` of each query as an array (Q, 3) of values from 0 to 1.

    The rows are in the order of the collection's queries.

    A document with the query's own id is skipped, as in BEIR. A query without relevant documents scores 0, as in
    trec_eval.

    Raises:
        EvaluationError: there are no queries, a query has no ranking, or a ranking has an unknown or
            duplicate id.
    """
    scores = []
    for query in collection.queries:
        if query not in rankings:
            raise EvaluationError(f"query {query!r} has no ranking")
        scores.append(_of_query(_checked(query, rankings[query], collection), collection.judgements[query]))
    if not scores:
        raise EvaluationError("there are no queries")
    return np.array(scores)


def _of_query(ranking: Sequence[str], judgements: Mapping[str, int]) -> tuple[float, float, float]:
    """Return nDCG@10, reciprocal rank@10 and recall@100 of one query, each from 0 to 1."""
    grades = {document: grade for document, grade in judgements.items() if grade > 0}
    if not grades:
        return 0.0, 0.0, 0.0
    gains = [grades.get(document, 0) for document in ranking[:DEPTH]]
    best = sorted(grades.values(), reverse=True)
    first = next((rank for rank, gain in enumerate(gains[:10], start=1) if gain), None)
    return _dcg(gains[:10]) / _dcg(best[:10]), 1 / first if first else 0.0, np.count_nonzero(gains) / len(best)


def _checked(query: str, ranking: Sequence[str], collection: Collection) -> list[str]:
    unknown = next((document for document in ranking if document not in collection.documents), None)
    if unknown is not None:
        raise EvaluationError(f"the ranking for query {query!r} contains {unknown!r}, which is not a document")
    if len(set(ranking)) < len(ranking):
        raise EvaluationError(f"the ranking for query {query!r} contains a document twice")
    return [document for document in ranking if document != query]


def _dcg(gains: Sequence[int]) -> float:
    return sum(gain / log2(rank + 1) for rank, gain in enumerate(gains, start=1))


def _encode_with_prompt(prompt: str | None, encode: Encode, texts: Mapping[str, str]) -> NDArray[np.float32]:
    return unit_vectors(encode, [(prompt or "") + text for text in texts.values()]).astype(np.float32)


def _nearest(index: faiss.IndexFlatIP, queries: NDArray[np.float32], k: int) -> list[NDArray[np.int64]]:
    """Return the rows of each query's k nearest documents. Ties are ordered by row.

    The search depth is increased until the last result is farther than the k-th. The results then contain all documents
    that are tied with the k-th.
    """
    k = min(k, index.ntotal)
    nearest: dict[int, NDArray[np.int64]] = {}
    pending, asked = np.arange(len(queries)), k
    while len(pending):
        asked = min(2 * asked, index.ntotal)
        cosines, rows = index.search(queries[pending], asked)
        # The last bits of a score depend on a vector's position in a block, and would break ties arbitrarily.
        cosines = cosines.round(6)
        whole = (cosines[:, -1] < cosines[:, k - 1]) | (asked == index.ntotal)
        for i in np.flatnonzero(whole):
            nearest[pending[i]] = rows[i][np.lexsort((rows[i], -cosines[i]))][:k]
        pending = pending[~whole]
    return [nearest[i] for i in range(len(queries))]
