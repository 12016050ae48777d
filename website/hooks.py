"""Pages of the site that are not in docs/: generated reference pages, and copies of other files of the repository.

A link to a file outside docs/ leads to a copy of that file in the site. So it works without a network, whatever the
address of the repository, and shows the file as it was when the site was built.
"""

from __future__ import annotations

import re
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

from latex2mathml.converter import convert
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page
from mkdocs.utils import get_relative_url

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"
REFERENCE = ("http_api", "command_line", "settings")
COPIES = "repository"
UPWARDS = re.compile(r"\]\((\.\./[^)#\s]+)")
CODE = re.compile(r"`[^`\n]+`")
MATH = re.compile(r"^```math\n(.*?)^```$", re.DOTALL | re.MULTILINE)


def on_config(config: MkDocsConfig) -> None:
    """Replace each pattern of the navigation by the pages that match it."""
    config.nav = _expanded(config.nav)


def on_files(files: Files, config: MkDocsConfig) -> None:
    """Add the generated pages and the files outside docs/ that a page links to."""
    for name in REFERENCE:
        files.append(File.generated(config, f"reference/{name.replace('_', '-')}.md", content=_generated(name)))
    linked = {
        outside
        for file in files.documentation_pages()
        for link in UPWARDS.findall(file.content_string)
        if (outside := _outside(file, link))
    }
    for path in linked:
        files.append(File.generated(config, f"{COPIES}/{path}", abs_src_path=str(ROOT / path)))


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:  # noqa: ARG001 - by name
    """Lead links to files outside docs/ to their copies, write equations as MathML, and unescape pipes in code.

    GitHub shows blocks of `math`; browsers show MathML without a script. GitHub needs a backslash before a pipe in a
    table, and Python-Markdown would show it.
    """

    def led(link: re.Match[str]) -> str:
        outside = _outside(page.file, link[1])
        return f"]({get_relative_url(f'{COPIES}/{outside}', page.file.src_uri)}" if outside else link[0]

    unescaped = CODE.sub(lambda code: code[0].replace(r"\|", "|"), UPWARDS.sub(led, markdown))
    return MATH.sub(lambda math: f'<div class="equation">{convert(math[1].strip(), display="block")}</div>', unescaped)


def _outside(file: File, link: str) -> Path | None:
    """Return the path in the repository of a file outside docs/ that a page links to."""
    target = (DOCS / file.src_uri).parent.joinpath(link).resolve()
    is_outside = target.is_file() and target.is_relative_to(ROOT) and not target.is_relative_to(DOCS)
    return target.relative_to(ROOT) if is_outside else None


def _expanded(entry: Any) -> Any:
    match entry:
        case dict():
            return {title: _expanded(one) for title, one in entry.items()}
        case list():
            patterns = [one if isinstance(one, str) and "*" in one else None for one in entry]
            return [
                page
                for one, pattern in zip(entry, patterns, strict=True)
                for page in (_pages(pattern) if pattern else [_expanded(one)])
            ]
    return entry


def _pages(pattern: str) -> list[str]:
    return sorted(path.relative_to(DOCS).as_posix() for path in DOCS.glob(pattern))


@cache
def _generated(name: str) -> str:
    """Return the page that `python -m website.NAME` prints. Its own process loads torch and sets its umask."""
    command = [sys.executable, "-m", f"website.{name}"]
    return subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, encoding="utf-8", check=True).stdout
