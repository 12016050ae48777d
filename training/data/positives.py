"""Positive pairs from passages: two texts of one document, which an encoder should place close together."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import islice
from random import Random

from training.data.sentences import all_sentences, word_starts

SPAN_SHARES = (0.1, 0.5)
"""Minimum and maximum share of a passage's words in a span.

In Contriever, a crop has 0.05 to 0.5 times 256 tokens.
"""
MIN_SPAN_WORDS = 4
"""Minimum number of words in a span, and in the rest of the passage."""
SAMPLED = 256
"""Number of texts that are examined to decide whether a corpus has passages."""
LONG_TEXT = 60
"""Minimum number of words with which a text counts as a passage even if no end of a sentence is recognised."""

Positives = Callable[[str, Random], tuple[str, str]]
"""A function that draws two texts from a passage: one for the first view, one for the remaining views.

A passage is one line of text. A title, if any, is the line before it. A passage that is too short to draw from is used
for all views, so the views differ only by dropout.
"""


def crop(passage: str, draw: Random) -> tuple[str, str]:
    """Return two spans of words with independent lengths and positions (Izacard et al., TMLR 2022, section 3.1)."""
    text = text_of(passage)
    (first, end), (other, other_end) = _span(text, draw), _span(text, draw)
    return text[first:end].rstrip(), text[other:other_end].rstrip()


def cloze(passage: str, draw: Random) -> tuple[str, str]:
    """Return a sentence of the passage, and the passage without it: the inverse cloze task (Lee et al., ACL 2019).

    If only one sentence is recognised, as in writing systems without capitals, a span of words replaces the sentence.
    A text that is too short for this is returned twice.
    """
    text = text_of(passage)
    sentences = list(all_sentences(text))
    if len(sentences) > 1:
        place = draw.randrange(len(sentences))
        return sentences[place], " ".join(sentences[:place] + sentences[place + 1 :])
    if len(word_starts(text)) < 2 * MIN_SPAN_WORDS:
        return text, text
    first, end = _span(text, draw)
    return text[first:end].rstrip(), f"{text[:first]}{text[end:]}".rstrip()


def title(passage: str, draw: Random) -> tuple[str, str]:
    """Return the passage's title and text. For a passage without a title, return the result of `cloze`."""
    name, newline, text = passage.partition("\n")
    return (name, text) if newline else cloze(passage, draw)


POSITIVES: dict[str, Positives] = {"crop": crop, "cloze": cloze, "title": title}


def text_of(passage: str) -> str:
    return passage.rpartition("\n")[2]


def are_passages(texts: Iterable[str]) -> bool:
    """Return whether at least half of the first `SAMPLED` non-empty texts are passages."""
    looked_at = list(islice(filter(text_of, texts), SAMPLED))
    return 2 * sum(map(is_passage, looked_at)) >= len(looked_at) > 0


def is_passage(text: str) -> bool:
    """Return whether a text has several sentences, or at least `LONG_TEXT` words."""
    return len(list(all_sentences(text_of(text)))) > 1 or len(word_starts(text_of(text))) >= LONG_TEXT


def _span(text: str, draw: Random) -> tuple[int, int]:
    """Draw a span of words in the text, and return the positions of its first character and of its end."""
    words = [*word_starts(text), len(text)]
    count = len(words) - 1
    length = min(max(MIN_SPAN_WORDS, round(count * draw.uniform(*SPAN_SHARES))), count)
    first = draw.randrange(count - length + 1)
    return words[first], words[first + length]
