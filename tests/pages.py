"""Reader of the documentation pages: their code blocks, and the commands in them."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path
from textwrap import dedent
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted(ROOT.glob("docs/**/*.md"))]
BLOCK = re.compile(
    r"(?:<!-- not run: (?P<reason>[^\n]+?) -->\n\s*)?^ *```(?P<language>\w*)\n(?P<code>.*?)^ *```",
    re.DOTALL | re.MULTILINE,
)
OURS = re.compile(r"\b(isosphere|make)\b")
INLINE = re.compile(r"(?<!`)`([^`\n]+)`(?!`)")


class Block(NamedTuple):
    """A code block of a page."""

    page: Path
    line: int
    language: str
    code: str
    reason: str | None
    """Reason why the block is not run, from the comment `<!-- not run: REASON -->` before it."""

    @property
    def place(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}"


def blocks(page: Path, *languages: str) -> list[Block]:
    """Return the code blocks of a page in these languages."""
    text = page.read_text()
    return [
        Block(
            page,
            text.count("\n", 0, found.start("language")) + 1,
            found["language"],
            dedent(found["code"]),
            found["reason"],
        )
        for found in BLOCK.finditer(text)
        if found["language"] in languages
    ]


def commands(code: str) -> Iterator[list[str]]:
    """Yield the commands `isosphere` and `make` in shell code, each as a list of words without its path."""
    for line in code.replace("\\\n", " ").splitlines():
        if not OURS.search(line):
            continue
        words = shlex.shlex(line, posix=True, punctuation_chars="&|;")
        words.whitespace_split = True
        for ends, command in groupby(words, lambda word: set(word) <= set("&|;>")):
            name, *arguments = command
            if not ends and OURS.fullmatch(Path(name).name):
                yield [Path(name).name, *arguments]


def spans(page: Path) -> list[str]:
    """Return the inline code of a page."""
    return INLINE.findall(BLOCK.sub("", page.read_text()))
