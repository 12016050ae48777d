"""Prose to sentences: where one ends, and whether it is clean English."""

from __future__ import annotations

import re
from collections.abc import Iterator

WORDS = range(6, 81)
"""How many words a sentence to train on has."""

# With a capital after them these do not end a sentence. "etc.", "Inc." and "U.S." may, so they are not here.
ABBREVIATIONS = frozenset(("e.g", "i.e", "cf", "vs", "viz", "mr", "mrs", "ms", "dr", "prof", "st", "eds", "al", "ca"))
BEFORE_NUMBERS = frozenset(("no", "nos", "p", "pp", "vol", "ch", "sec", "fig", "figs", "eq", "eqs", "approx"))
BOUNDARY = re.compile(
    r"""(?P<mark>[.!?…]+)        # 3.5 has no space behind the mark, so decimals never come here
        (?P<close>["'”’)\]]*)
        \s+
        (?=["'“‘(\[]*[A-Z0-9])   # what follows begins like a sentence
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
"""The largest share of words that may be identifiers, paths and the like: prose about code names what it is about."""
PAIRS = ("()", "[]", "“”")
LETTERS = 0.75
"""The least share of letters and spaces in a clean sentence; three quarters leave room for years and prices."""


def split(text: str) -> Iterator[str]:
    """The clean sentences of `text`, whose paragraphs are separated by empty lines."""
    for paragraph in re.split(r"\n\s*\n", text):
        if not any(line.lstrip().startswith((">>>", "... ", "$ ")) for line in paragraph.splitlines()):
            yield from filter(is_clean, cut(paragraph))


def cut(paragraph: str) -> Iterator[str]:
    """Every sentence of a paragraph, clean or not; together they are the paragraph, its white space made single."""
    flat = " ".join(paragraph.split())
    start = 0
    for boundary in BOUNDARY.finditer(flat):
        if _ends(flat[start : boundary.start()], boundary["mark"], boundary["close"], flat[boundary.end()]):
            yield flat[start : boundary.end()].rstrip()
            start = boundary.end()
    if start < len(flat):
        yield flat[start:]


def is_clean(sentence: str) -> bool:
    """Whether it is a whole English sentence of 6 to 80 words with no code in it."""
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


def _ends(before: str, mark: str, close: str, after: str) -> bool:
    """Whether a mark followed by a capital or a digit ends the sentence that stands before it."""
    if mark != "." or close:
        return True
    found = LAST_WORD.search(before)
    word = found.group() if found else ""
    initial = len(word) == 1 and word.isupper() and word != "I"
    numbered = word.isdigit() and before == word
    abbreviated = word.lower() in ABBREVIATIONS or (after.isdigit() and word.lower() in BEFORE_NUMBERS)
    return not (initial or numbered or abbreviated)
