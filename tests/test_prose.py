"""The README and the pages of docs/ are written in short, complete sentences (CONTRIBUTING.md, "Language")."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *ROOT.glob("docs/**/*.md")]
GENERATED = ROOT / "docs" / "papers"
WORDS = 35

SKIPPED = re.compile(
    r"^(```|~~~).*?^\1|(?<=\n\n)(?: {4}[^\n]*\n)+|^\s*\|.*?$|<!--.*?-->|^\s*!\[.*?$|\A---$.*?^---$",
    re.DOTALL | re.MULTILINE,
)
LINK = re.compile(r"!?\[([^\]]*)\]\([^)]*\)")
CODE = re.compile(r"`+(?:(?!\n\s*\n)[^`])+`+")
BLOCK = re.compile(r"\n(?=\s*(?:[-*+>#]|\d+\.)\s)|\n\s*\n|\Z")
END = re.compile(r"(?<![ .][A-Za-z])(?<!e\.g)(?<!i\.e)(?<!et al)(?<!vs)[.!?:][\"”)*_]*\s+(?=[\"“(*_]*[A-Z`\d])|\Z")
MARK = re.compile(r"[-*+>\d.\s\"“(]+")
WORD = re.compile(r"`+[^`]+`+|[^\W\d_][\w'’.-]*")

HEADLESS = re.compile(r"(What|Whatever|Whoever|Who|Whose|Those|Of)\b[^?]*$")
LITERARY = re.compile(
    r"\b((is|are|was|were|be) (told(?! apart)|to be had)|(lies|stands|stood) (in|on|at|beside|between|apart|under)"
    r"|whoever|the former|the latter|anew|thereof|wherein|nothing but|held against)\b"
)


def sentences(markdown: str) -> Iterator[tuple[int, str, str]]:
    """Yield the line, the text and the text with code masked of each sentence outside code blocks and tables."""
    text = LINK.sub(r"\1", SKIPPED.sub(lambda skipped: "\n" * skipped[0].count("\n"), markdown))
    masked = CODE.sub(lambda code: re.sub(r"[^`\n]", "x", code[0]), text)
    block = 0
    for block_end in BLOCK.finditer(masked):
        start = block
        for end in END.finditer(masked, block, block_end.start()):
            mark = MARK.match(masked, start, end.end())
            begin = mark.end() if mark else start
            if begin < end.end():
                shown, plain = (" ".join(form[begin : end.end()].split()) for form in (text, masked))
                yield text.count("\n", 0, begin) + 1, shown, plain
            start = end.end()
        block = block_end.end()


def flaws(markdown: str) -> list[str]:
    """Return a line for each sentence that is too long, has no subject, or has a phrase that our pages avoid."""
    found = []
    for line, sentence, masked in sentences(markdown):
        if (words := len(WORD.findall(masked))) > WORDS:
            found.append(f"{line}: {words} words, more than {WORDS}: {sentence}")
        if HEADLESS.match(masked):
            found.append(f"{line}: begins without a subject: {sentence}")
        if literary := LITERARY.search(masked):
            found.append(f"{line}: '{literary[0]}' has a plainer form: {sentence}")
    return found


@pytest.mark.parametrize("page", [page for page in PAGES if page.parent != GENERATED], ids=lambda page: page.name)
def test_pages_are_plain(page: Path) -> None:
    found = [f"{page.relative_to(ROOT)}:{flaw}" for flaw in flaws(page.read_text())]
    assert not found, "\n" + "\n".join(found)


@pytest.mark.parametrize(
    ("markdown", "expected"),
    [
        ("The server starts.\nIt answers " + "very " * 35 + "fast.\n", "2: 38 words"),
        ("A list:\n\n* One item.\n* What is cut is kept.\n", "4: begins without a subject"),
        ("It works. Of three runs one\nfailed.\n", "1: begins without a subject"),
        ("The file lies in `var/`.\n", "1: 'lies in'"),
        ("The caller [is\ntold](a.md) so.\n", "1: 'is told'"),
    ],
)
def test_a_flaw_is_found_with_its_line(markdown: str, expected: str) -> None:
    assert [flaw[: len(expected)] for flaw in flaws(markdown)] == [expected]


@pytest.mark.parametrize(
    "markdown",
    [
        "# What did not reproduce?\n\nWhat is a bundle? A folder.\n",
        "```\nWhat is cut is kept " + "word " * 50 + "\n```\n",
        "| What is cut " + "word " * 50 + "|\n|---|\n",
        "It says: " + "a word. It has more, e.g. one. " * 20 + "\n",
        "Run `isosphere " + "word " * 50 + "` first.\n",
    ],
)
def test_code_tables_and_questions_pass(markdown: str) -> None:
    assert flaws(markdown) == []
