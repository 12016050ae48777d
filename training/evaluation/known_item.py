"""Known-item retrieval without labels: the query is a part of a text, and the relevant document is the rest.

The queries of a passage are its title and one of its sentences. The query of a section of CPython's documentation is
its summary.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from models.bundle.prompts import NO_PROMPTS
from models.python_docs import Section
from training.data.corpus import MONITORED, Corpus, split_summary
from training.data.positives import MIN_SPAN_WORDS, cloze, text_of
from training.data.sentences import word_starts
from training.evaluation import bootstrap, retrieval
from training.evaluation.beir import Collection
from training.evaluation.bootstrap import Comparison
from training.evaluation.retrieval import MEASURES, NDCG10
from training.evaluation.vectors import Encode

METRIC = "known_item_ndcg10"
SELECTION_DOCUMENTS = 1024
"""Maximum number of passages that are searched when weights are selected during training."""
MAX_WORDS = 100
"""Maximum number of words in a document.

Longer documents are cut, because evaluation with whole articles would take longer than training. Training also
truncates passages.
"""
TEST_DOCUMENTS = 2048
"""Maximum number of passages that are searched at the end of a run."""


def selection_collection(corpus: Corpus) -> Collection:
    """Make the collection whose score selects the best step of a run.

    The queries are from the first half of the held-out passages, but from at most `MONITORED` passages.

    Raises:
        CorpusError: the corpus has changed.
    """
    return _among(corpus, _choosers(corpus), SELECTION_DOCUMENTS)


def test_collection(corpus: Corpus) -> Collection:
    """Make the collection for the final score of a run.

    The queries are from the held-out passages that `selection_collection` does not use for queries.

    Raises:
        CorpusError: the corpus has changed.
    """
    return _among(corpus, corpus.census.held_out[len(_choosers(corpus)) :], TEST_DOCUMENTS)


def collection(passages: Sequence[str], others: Sequence[str]) -> Collection:
    """Make a retrieval collection. The queries of each passage are its own title and a sentence or span of its text.

    A passage is one line of text. A title, if any, is the line before it. The text of each passage becomes a document
    of at most `MAX_WORDS` words, without the title and without the sentence or span that is a query. A title that
    several passages share is not used as a query. A sentence or span is not used if it, or the rest of the text, is too
    short. `others` are passages without queries.
    """
    documents: dict[str, str] = {}
    queries: dict[str, str] = {}
    judgements: dict[str, dict[str, int]] = {}
    titles = Counter(passage.partition("\n")[0] for passage in (*passages, *others) if "\n" in passage)
    for number, passage in enumerate(passages):
        title = passage.partition("\n")[0] if "\n" in passage else ""
        asks, document = _take_query(text_of(passage))
        documents[f"d{number}"] = document
        for kind, query in (("title", title if titles[title] == 1 else ""), ("sentence", asks)):
            if query:
                queries[f"{kind}{number}"] = query
                judgements[f"{kind}{number}"] = {f"d{number}": 1}
    documents |= {f"o{number}": text_of(other) for number, other in enumerate(others)}
    return Collection({name: _cut(text) for name, text in documents.items()}, queries, judgements)


def _choosers(corpus: Corpus) -> Sequence[str]:
    held_out = corpus.census.held_out
    return held_out[: min(MONITORED, (len(held_out) + 1) // 2)]


def _among(corpus: Corpus, asked: Sequence[str], documents: int) -> Collection:
    others = min(documents - len(asked), corpus.census.sentences)
    return collection(asked, next(corpus.batches(others, seed=0)) if others > 0 else ())


def _cut(text: str) -> str:
    words = word_starts(text)
    return text if len(words) <= MAX_WORDS else text[: words[MAX_WORDS]].rstrip()


def _take_query(text: str) -> tuple[str, str]:
    """Return a sentence or span of the text as the query, and the rest of the text.

    If the query or the rest would be too short, return an empty query and the whole text. The same text always gives
    the same query.
    """
    asks, rest = cloze(text, Random(text))
    if asks == rest or min(len(word_starts(asks)), len(word_starts(rest))) < MIN_SPAN_WORDS:
        return "", text
    return asks, rest


# The effect of training on passages: scores of held-out passages before and after training.

EXAMPLES = 3
SHOWN = 90
"""Maximum characters of a text in an example."""


@dataclass(frozen=True)
class SearchResult:
    """An encoder's rankings and scores on a collection."""

    rankings: Mapping[str, Sequence[str]]
    values: NDArray[np.float64]
    """nDCG@10 x 100 of each query, (Q,)."""

    @classmethod
    def of(cls, encode: Encode, collection: Collection, prompts: Mapping[str, str] = NO_PROMPTS) -> Self:
        """Rank the collection's documents for every query, and score the rankings.

        `prompts` are the encoder's prompts.
        """
        found = retrieval.rankings(encode, collection, prompts=prompts)
        return cls(found, 100 * retrieval.by_query(found, collection)[:, MEASURES.index(NDCG10)])

    def gain(self, start: SearchResult) -> Comparison:
        """Return this result's mean score minus the mean score of `start`, with a bootstrap interval over queries."""
        return bootstrap.compare_means(self.values, start.values)

    def against(self, start: SearchResult) -> str:
        """Format the mean, its difference from the mean of `start`, and the difference's bootstrap interval."""
        found = self.gain(start)
        return f"{self.values.mean():.2f}, {found.difference:+.2f} [{found.low:+.2f}, {found.high:+.2f}]"


def gain(
    start: Encode, result: Encode, collection: Collection, prompts: Mapping[str, str] = NO_PROMPTS
) -> Iterator[str]:
    """Yield lines to print: retrieval scores before and after training, and queries whose scores changed most.

    `start` is the encoder before training, and `result` is the encoder after training. Both have the same
    `prompts`.
    """
    before, after = (SearchResult.of(encode, collection, prompts) for encode in (start, result))
    yield (
        f"search of passages, {len(collection.queries)} queries over {len(collection.documents)}: nDCG@10 "
        f"{before.values.mean():.2f} at the start, now {after.against(before)} (95 %, bootstrap over the queries)"
    )
    for example in examples(before, after, collection):
        yield f"  first result for “{example['query']}”"
        for label, first in (("at the start", example["before"]), ("now", example["after"])):
            yield f"    {label}: {'its own passage' if first['own'] else 'another one'}: {first['text']}"


def examples(before: SearchResult, after: SearchResult, collection: Collection) -> list[dict[str, Any]]:
    """Return the queries whose scores changed most, as JSON.

    Each query has two passages: the one that is ranked first before training, and the one that is ranked first after
    training. The field `own` of a passage is true if the query was taken from this passage. Long texts are shortened.
    """

    def first(found: SearchResult, query: str) -> dict[str, Any]:
        document = found.rankings[query][0]
        return {"own": document in collection.judgements[query], "text": _shown(collection.documents[document])}

    queries = list(collection.queries)
    change = np.abs(after.values - before.values)
    places = np.argsort(-change, kind="stable")[: min(EXAMPLES, np.count_nonzero(change))]
    return [
        {"query": _shown(collection.queries[query]), "before": first(before, query), "after": first(after, query)}
        for query in (queries[place] for place in places)
    ]


def _shown(text: str) -> str:
    return text if len(text) <= SHOWN else f"{text[: SHOWN - 1].rstrip()}…"


# A collection without download: CPython's documentation, with section summaries as queries.

DOCUMENTATION = "python-docs"
"""Name of the collection that is made from CPython's documentation."""


def collection_of(documented: Iterable[Section]) -> Collection:
    """Make a collection in which each section's first sentence is the query for the rest of the section.

    If several sections have the same first sentence, all these sections are relevant to the query. If a first sentence
    is not clean (see `training.data.sentences.is_clean`) or the rest is too short, the section has no query, and its
    whole text is a document. The task is known-item search, an inverse cloze task. No judgements say whether other
    sections are relevant too.
    """
    documents: dict[str, str] = {}
    queries: dict[str, str] = {}
    judgements: dict[str, dict[str, int]] = {}
    by_text: dict[str, str] = {}
    for number, section in enumerate(documented):
        first, documents[str(number)] = split_summary(section)
        if first is not None:
            query = by_text.setdefault(first, f"q{number}")
            queries[query] = first
            judgements.setdefault(query, {})[str(number)] = 1
    return Collection(documents, queries, judgements)
