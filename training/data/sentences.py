"""Splitting of prose into sentences, a filter for clean English, and the starts of words in any language."""

from __future__ import annotations

import re
from collections.abc import Iterator

from models.writing_systems import UNSPACED

WORDS = range(6, 81)
"""Allowed number of words of a training sentence."""

# A capital after one of these abbreviations does not begin a new sentence. The list has no abbreviation that can end a
# sentence, such as "etc.", "Inc." and "U.S."
ABBREVIATIONS = frozenset(("e.g", "i.e", "cf", "vs", "viz", "mr", "mrs", "ms", "dr", "prof", "st", "eds", "al", "ca"))
BEFORE_NUMBERS = frozenset(("no", "nos", "p", "pp", "vol", "ch", "sec", "fig", "figs", "eq", "eqs", "approx"))
BOUNDARY = re.compile(
    r"""(?P<mark>[.!?…؟۔।]+)     # 3.5 has no space behind the mark, so decimals never come here
        (?P<close>["'”’»)\]]*)
        \s+
        (?=["'“‘«(\[¿¡]*(?P<first>\w))   # `_begins` tests what follows
      | [。！？]++["'”’)\]」』）】》]*+\s*+(?=\S)   # Chinese and Japanese have no space behind the mark
    """,
    re.VERBOSE,
)
LAST_WORD = re.compile(r"""[^\s("'“‘\[]*$""")
START = re.compile(r"""["'“(]?[A-Z]""")
END = re.compile(r"""[.!?]["'”)]?$""")
CODE = re.compile(
    r"""^\s*(>>>|\.\.\.|\$|%|\#!|In\s\[)   # a prompt
      | [{}<>|\\^~@#*=]                     # operators, markup
      | ::|->|--|://                        # directives, arrows, options, addresses
      | \w\((?!\)|s\))                      # calls with arguments; open() and file(s) are words
      | \w\[|\[\d                          # subscripts
      | \b0x
    """,
    re.VERBOSE | re.MULTILINE,
)
NAME = re.compile(r"\w\(\)|_|\b[a-z]+[A-Z]|\w\.\w|\w/\w|(?<!\S)\W?\.\w")
NAME_SHARE = 1 / 8
"""Maximum share of identifiers, paths and the like among the words of a clean sentence.

The share is not 0, because prose about code contains such names.
"""
PAIRS = ("()", "[]", "“”")
LETTERS = 0.75
"""Minimum share of letters and spaces in a clean sentence. Three quarters leave room for years and prices."""


def clean_sentences(text: str) -> Iterator[str]:
    """Split a text into paragraphs at empty lines, and yield their clean sentences (see `is_clean`).

    Paragraphs that contain a line with a prompt (`>>>`, `...` or `$`) are left out.
    """
    for paragraph in re.split(r"\n\s*\n", text):
        if not any(line.lstrip().startswith((">>>", "... ", "$ ")) for line in paragraph.splitlines()):
            yield from filter(is_clean, all_sentences(paragraph))


def all_sentences(paragraph: str) -> Iterator[str]:
    """Yield every sentence of a paragraph, clean or not.

    If the sentences are joined by spaces, the result is the paragraph with single spaces between all words. Only after
    a full-width mark (as in Chinese), the result can have a space that the paragraph lacks.
    """
    flat = " ".join(paragraph.split())
    start = 0
    for boundary in BOUNDARY.finditer(flat):
        before, after = flat[start : boundary.start()], flat[boundary.end()]
        full_width = boundary["mark"] is None
        if full_width or (_begins(boundary["first"]) and _ends(before, boundary["mark"], boundary["close"], after)):
            yield flat[start : boundary.end()].rstrip()
            start = boundary.end()
    if start < len(flat):
        yield flat[start:]


def is_clean(sentence: str) -> bool:
    """Return whether a text is a complete English sentence of 6 to 80 words without code."""
    letters = sum(character.isalpha() or character == " " for character in sentence)
    return (
        len(sentence.split()) in WORDS
        and START.match(sentence) is not None
        and END.search(sentence) is not None
        and sentence.isprintable()
        and sum(map(str.isascii, sentence)) >= 0.95 * len(sentence)
        and letters >= LETTERS * len(sentence)
        and CODE.search(sentence) is None
        and sum(NAME.search(word) is not None for word in sentence.split()) <= NAME_SHARE * len(sentence.split())
        and sentence.count('"') % 2 == 0
        and all(sentence.count(pair[0]) == sentence.count(pair[1]) for pair in PAIRS)
    )


def _begins(first: str) -> bool:
    """Return whether a sentence can begin with the letter or digit `first`.

    A letter of a writing system without capitals can begin a sentence, as a capital can.
    """
    return first.isalnum() and not first.islower()


def _ends(before: str, mark: str, close: str, after: str) -> bool:
    """Return whether the punctuation `mark` ends a sentence.

    `before` is the text from the start of the sentence to the mark. `close` has the closing quotes and brackets after
    the mark. White space follows, and `after` is the first character after the white space.
    """
    if mark != "." or close:
        return True
    found = LAST_WORD.search(before)
    word = found.group() if found else ""
    initial = len(word) == 1 and word.isupper() and word != "I"
    numbered = word.isdigit() and before == word
    abbreviated = word.lower() in ABBREVIATIONS or (after.isdigit() and word.lower() in BEFORE_NUMBERS)
    return not (initial or numbered or abbreviated)


# Word boundaries in any language, as far as they are detectable without a dictionary.

_WORD = re.compile(rf"[{UNSPACED}]|[^\s{UNSPACED}]+")


def word_starts(sentence: str) -> list[int]:
    """Return the positions at which words start. In writing systems without spaces, each character is a word."""
    return [found.start() for found in _WORD.finditer(sentence)]
