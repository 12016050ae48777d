"""Positive pairs of a passage: two texts of one document, which an encoder should place close together."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import islice
from random import Random

from training.corpus.sentences import cut
from training.corpus.words import starts

SHARES = (0.1, 0.5)
"""Least and greatest share of a passage's words in a span. Contriever's crops have 0.05 to 0.5 of 256 tokens."""
LEAST_WORDS = 4
"""Words of a span, and of what is left of the passage."""
LOOKED_AT = 256
"""Texts that tell whether a corpus holds passages."""
LONG = 60
"""Words of a text that counts as a passage even if no end of a sentence is found in it."""

Positives = Callable[[str, Random], tuple[str, str]]
"""Draws from a passage the texts of the first view and of all others. A passage is its text, in one line, behind a
line with its title if it has one. A text that is too short stands in both places, and only dropout differs."""


def crop(passage: str, draw: Random) -> tuple[str, str]:
    """Cut two spans of words, each of its own length and place (Izacard et al., TMLR 2022, section 3.1)."""
    text = text_of(passage)
    (first, end), (other, other_end) = _span(text, draw), _span(text, draw)
    return text[first:end].rstrip(), text[other:other_end].rstrip()


def cloze(passage: str, draw: Random) -> tuple[str, str]:
    """Take a sentence out of its passage: the inverse cloze task (Lee et al., ACL 2019).

    A span of words is taken where there is one sentence, or the end of none is known, as in scripts without capitals.
    """
    text = text_of(passage)
    sentences = list(cut(text))
    if len(sentences) > 1:
        place = draw.randrange(len(sentences))
        return sentences[place], " ".join(sentences[:place] + sentences[place + 1 :])
    if len(starts(text)) < 2 * LEAST_WORDS:
        return text, text
    first, end = _span(text, draw)
    return text[first:end].rstrip(), f"{text[:first]}{text[end:]}".rstrip()


def title(passage: str, draw: Random) -> tuple[str, str]:
    """Take the title and the text; a passage without a title gives a cloze."""
    name, newline, text = passage.partition("\n")
    return (name, text) if newline else cloze(passage, draw)


POSITIVES: dict[str, Positives] = {"crop": crop, "cloze": cloze, "title": title}


def text_of(passage: str) -> str:
    """The passage without its title."""
    return passage.rpartition("\n")[2]


def are_passages(texts: Iterable[str]) -> bool:
    """Whether half of the first texts, those that are empty left out, are passages."""
    looked_at = list(islice(filter(text_of, texts), LOOKED_AT))
    return 2 * sum(map(is_passage, looked_at)) >= len(looked_at) > 0


def is_passage(text: str) -> bool:
    """Whether a text has several sentences, or at least `LONG` words."""
    return len(list(cut(text_of(text)))) > 1 or len(starts(text_of(text))) >= LONG


def _span(text: str, draw: Random) -> tuple[int, int]:
    """Where a span of words begins and ends in the text."""
    words = [*starts(text), len(text)]
    count = len(words) - 1
    length = min(max(LEAST_WORDS, round(count * draw.uniform(*SHARES))), count)
    first = draw.randrange(count - length + 1)
    return words[first], words[first + length]
