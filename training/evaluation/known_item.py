"""A score of passages without labels: do the title and a sentence of a passage find what is left of it?"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from training.corpus.corpus import Corpus
from training.corpus.positives import text_of
from training.corpus.sentences import cut
from training.corpus.words import starts
from training.evaluation.beir import Collection

METRIC = "known_item_ndcg10"
LEAST_WORDS = 4
"""Words of a sentence that asks, and of what answers."""


def held_out(corpus: Corpus, asked: Sequence[str], *, documents: int) -> Collection:
    """Make a collection of `documents` passages: those of the corpus that are `asked` for, and some it trains on.

    Raises:
        CorpusError: the corpus is not what it was.
    """
    others = min(documents - len(asked), corpus.census.sentences)
    return collection(asked, next(corpus.batches(others, seed=0)) if others > 0 else ())


def collection(passages: Sequence[str], others: Sequence[str]) -> Collection:
    """Make a retrieval collection in which each passage answers its own title and one of its sentences.

    The sentence is taken out of the passage, and the title stands in no document. `others` are documents that nothing
    asks for. A passage is its text, in one line, behind a line with its title if it has one.
    """
    documents: dict[str, str] = {}
    queries: dict[str, str] = {}
    judgements: dict[str, dict[str, int]] = {}
    for number, passage in enumerate(passages):
        title, _, text = passage.rpartition("\n")
        asks, document = _taken(text)
        documents[f"d{number}"] = document
        for kind, query in (("title", title), ("sentence", asks)):
            if query:
                queries[f"{kind}{number}"] = query
                judgements[f"{kind}{number}"] = {f"d{number}": 1}
    documents |= {f"o{number}": text_of(other) for number, other in enumerate(others)}
    return Collection(documents, queries, judgements)


def _taken(text: str) -> tuple[str, str]:
    """A sentence, chosen by the hash of the text, and the rest; no sentence where one of the two would be short."""
    sentences = list(cut(text))
    place = int.from_bytes(hashlib.blake2b(text.encode("utf-8"), digest_size=8).digest(), "big") % len(sentences)
    rest = " ".join(sentences[:place] + sentences[place + 1 :])
    if min(len(starts(sentences[place])), len(starts(rest))) < LEAST_WORDS:
        return "", text
    return sentences[place], rest
