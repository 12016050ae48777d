"""The documentation that every installation of CPython contains, as texts that need no download.

The texts are those of `pydoc_data.topics` (the language reference behind `help()`) and the docstrings of the standard
library. Training uses them as its default corpus, and serving uses them as its demo corpus.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import re
import sysconfig
import tokenize
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

COMPILED = ("builtins", "itertools", "math", "sys", "time", "zlib", "unicodedata", "select", "mmap")
"""Modules with useful docstrings but without Python source. Importing them has no side effect."""

NOT_DOCUMENTATION = {
    "test",
    "tests",
    "idlelib",
    "lib2to3",
    "site-packages",
    "turtledemo",
    "pydoc_data",
    "ensurepip",
}

TOPICS = "topics"
"""Module name of the language reference."""

Definition = ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef

MARKUP = (
    (re.compile(r":[a-zA-Z:]+:`~?!?([^`<]*?)(?:\s*<[^`>]*>)?`"), r"\1"),  # :func:`text <target>`
    (re.compile(r"``?([^`\n]+)``?_?_?"), r"\1"),
    (re.compile(r"(?<![\w*])\*{1,2}([^\s*](?:[^*\n]*[^\s*])?)\*{1,2}(?![\w*])"), r"\1"),
    (re.compile(r"(?<!\w)_([^\s_][^_\n]*)_(?!\w)"), r"\1"),
)
BULLET = re.compile(r"^(?:[*+•-]|\d+[.)]|\([a-z0-9]\))\s+")
HEADING = re.compile(r"^(?P<title>\S.*)\n(?P<rule>[*=\-~^\"])(?P=rule){2,}$", re.MULTILINE)


@dataclass(frozen=True)
class Section:
    """The documentation of one object. `text` is prose only, with paragraphs separated by an empty line."""

    module: str
    """Dotted name, or `TOPICS` for the language reference."""
    name: str
    """Qualified name inside the module, or an empty text for the module itself.

    In the language reference, the name is a heading. Text before the first heading has the name of its topic.
    """
    text: str


def sections() -> Iterator[Section]:
    """Yield every section of Python's documentation that has prose, in a fixed order.

    Of several sections with the same prose, only the first is yielded.
    """
    seen = set()
    for module, name, raw in chain(_topics(), _docstrings(), _compiled()):
        text = "\n\n".join(prose(raw))
        if text and text not in seen:
            seen.add(text)
            yield Section(module, name, text)


def prose(raw: str) -> Iterator[str]:
    """Yield the prose paragraphs of a docstring, without line breaks and without markup.

    Code, tables and signatures are left out.
    """
    for block in re.split(r"\n\s*\n", inspect.cleandoc(raw)):
        lines = block.splitlines()
        if any(line.lstrip().startswith((">>>", "...", ".. ", "|", "+-", "$ ", "#!")) for line in lines):
            continue
        for paragraph in _items([line.strip() for line in lines]):
            if _is_prose(paragraph):
                yield paragraph


def _items(lines: list[str]) -> Iterator[str]:
    """Yield the paragraphs of a block of lines. Every bullet starts a new paragraph."""
    paragraph: list[str] = []
    for line in lines:
        if BULLET.match(line) and paragraph:
            yield _plain(paragraph)
            paragraph = []
        paragraph.append(BULLET.sub("", line))
    if paragraph:
        yield _plain(paragraph)


def _plain(lines: list[str]) -> str:
    text = " ".join(lines)
    for pattern, replacement in MARKUP:
        text = pattern.sub(replacement, text)
    return re.sub(r"\s+", " ", text.replace("``", "").replace("`", "'")).strip()


def _is_prose(text: str) -> bool:
    words = text.split()
    letters = sum(character.isalpha() or character == " " for character in text)
    return (
        len(words) >= 4
        and text[0].isalpha()
        and text[-1] in ".!?:)\"'"
        and letters >= 0.85 * len(text)
        and " = " not in text
        and "::" not in text[:-2]
    )


def _topics() -> Iterator[tuple[str, str, str]]:
    from pydoc_data.topics import topics

    for key in sorted(topics):
        pieces = HEADING.split(topics[key])
        # `pieces` starts with the text before the first heading. A title, a rule and a text follow for each heading.
        yield TOPICS, key, pieces[0]
        for title, text in zip(pieces[1::3], pieces[3::3], strict=True):
            yield TOPICS, _plain([title]), text


def _docstrings() -> Iterator[tuple[str, str, str]]:
    root = Path(sysconfig.get_path("stdlib"))
    for file in sorted(root.rglob("*.py")):
        parts = file.relative_to(root).with_suffix("").parts
        if NOT_DOCUMENTATION & set(parts) or any(part.startswith("_") and part != "__init__" for part in parts):
            continue
        with tokenize.open(file) as source:
            tree = ast.parse(source.read())
        yield from _documented(tree, ".".join(part for part in parts if part != "__init__"), "")


def _documented(node: ast.Module | Definition, module: str, name: str) -> Iterator[tuple[str, str, str]]:
    if text := ast.get_docstring(node):
        yield module, name, text
    if isinstance(node, ast.Module | ast.ClassDef):
        for child in node.body:
            if isinstance(child, Definition) and not child.name.startswith("_"):
                yield from _documented(child, module, f"{name}.{child.name}".lstrip("."))


def _compiled() -> Iterator[tuple[str, str, str]]:
    for module in COMPILED:
        for name, member in sorted(vars(importlib.import_module(module)).items()):
            if not name.startswith("_") and callable(member) and isinstance(member.__doc__, str):
                yield module, name, member.__doc__
