"""Reader of the sections of Markdown and HTML files.

Markdown is first converted to HTML, so that both formats give the same text.
"""

from __future__ import annotations

import re
from datetime import date
from html.parser import HTMLParser
from typing import Any, BinaryIO

from serving.corpora.ingest.readers.sections import Sections, documents, titled
from serving.corpora.ingest.readers.unreadable import Records, Unreadable

RESERVED = ("source", "headings")
"""Metadata fields that readers set. In front matter, these names get a prefix."""
HEADINGS = {f"h{level}": level for level in range(1, 7)}
SKIPPED = frozenset(
    (
        *("script", "style", "noscript", "template", "nav", "svg", "iframe", "object", "canvas", "audio", "video"),
        *("select", "datalist", "textarea", "button", "dialog"),
    )
)
"""HTML elements whose content is not text of the page, such as scripts, pictures, forms, and links to other pages."""
INLINE = frozenset(("br", "img", "td", "th"))
OWN_BLOCKS = frozenset(("main", "table", "tr", "pre"))
BLOCKS = frozenset(
    (
        *("address", "article", "aside", "blockquote", "body", "caption", "center", "details", "div", "fieldset"),
        *("figcaption", "figure", "footer", "form", "header", "hgroup", "hr", "html", "menu", "p", "section"),
        *("summary", "dd", "dl", "dt", "li", "ol", "ul", "tbody", "tfoot", "thead"),
    )
)
SECTIONING = frozenset(("section", "div", "a", "span"))
"""HTML elements that may have the anchor of the next heading, as in pages by Sphinx and GitHub."""
_FRONT_MATTER = re.compile(r"\ufeff?---[ \t]*\r?\n(.*?)^(?:---|\.\.\.)[ \t]*\r?$\n?", re.DOTALL | re.MULTILINE)
_SPACE = re.compile(r"\s+")
Start = tuple[str, tuple[int, int]]
"""Name and place of a start tag."""


def markdown(file: BinaryIO, options: dict[str, Any]) -> Records:
    """Yield a document for each section of a Markdown file (CommonMark with tables). The front matter becomes metadata.

    Raises:
        Unreadable: the file is not UTF-8, contains NUL, or has no text.
    """
    from markdown_it import MarkdownIt

    front, text = _front_matter(_decoded(file.read()))
    html = MarkdownIt("commonmark").enable(["table", "strikethrough"]).render(text)
    page = _parsed(html)
    front = {f"front_matter_{name}" if name in RESERVED else name: value for name, value in front.items()}
    yield from documents(page.sections, {**titled(page.title), **front}, options)


def html(file: BinaryIO, options: dict[str, Any]) -> Records:
    """Yield a document for each section of an HTML page. If the page has a `main` element, yield only its sections.

    Raises:
        Unreadable: the file is not UTF-8, contains NUL, or has no text.
    """
    page = _parsed(_decoded(file.read()))
    yield from documents(page.sections, titled(page.title), options)


def _decoded(content: bytes) -> str:
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise Unreadable(
            f"not UTF-8: byte {error.start + 1} is 0x{content[error.start]:02x}: save the file as UTF-8, or "
            "give its charset"
        ) from None
    if "\0" in text:
        raise Unreadable("not text: it contains NUL")
    return text


def _front_matter(text: str) -> tuple[dict[str, Any], str]:
    """Return the metadata in the front matter of a text, and the text after the front matter.

    The front matter is YAML between `---` lines at the beginning. If this YAML is invalid, or is not a mapping, there
    are no metadata, and the front matter stays a part of the text.
    """
    import yaml

    found = _FRONT_MATTER.match(text)
    try:
        front = yaml.safe_load(found[1]) if found else None
    except (yaml.YAMLError, ValueError, LookupError, AttributeError):  # as PyYAML raises for `!!int ''`
        front = None
    if not found or not isinstance(front, dict):
        return {}, text
    return {str(name): _plain(value) for name, value in front.items() if value is not None}, text[found.end() :]


def _plain(value: Any) -> Any:
    match value:
        case dict():
            return {str(name): _plain(one) for name, one in value.items()}
        case list() | tuple() | set():
            return [_plain(one) for one in value]
        case date():
            return value.isoformat()
        case str() | int() | float() | None:
            return value
    return str(value)


def _parsed(html: str) -> Page:
    """Parse a page.

    Elements of `SKIPPED` are skipped. If such an element is never closed, it is not skipped, because it would hide the
    rest of the page.
    """
    page = Page(html)
    while page.hidden:
        page = Page(html, page.shown | set(page.hidden))
    return page


class Page(HTMLParser):
    """Parser that collects the sections and the title of an HTML page.

    Elements of `SKIPPED` are skipped, unless `_is_shown` returns True for their start tags.
    """

    def __init__(self, html: str, shown: frozenset[Start] = frozenset()) -> None:
        super().__init__(convert_charrefs=True)
        self.title = ""
        self.shown = shown
        self._sections = Sections()
        self._text: list[str] = []
        self.hidden: list[Start] = []
        """The open elements that are skipped. After the last line, the elements that are never closed."""
        self._anchor = ""
        self._in_heading = self._in_title = self._in_row = self._in_pre = self._has_main = self._is_over = False
        self._item = ""
        self.feed(html)
        self.close()
        self._flush()
        self.sections = self._sections.end()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag in SKIPPED and not self._is_shown(tag):
            self.hidden.append((tag, self.getpos()))
        if self.hidden:
            return
        given = dict(attrs)
        if tag in INLINE:
            self._text.append(self._inline(tag, given))
        elif tag == "title":
            self._in_title = not self.title
        elif tag in OWN_BLOCKS or tag in HEADINGS:
            self._flush()
            self._begin(tag)
        elif tag in BLOCKS:
            self._break()
            self._item = "- " if tag == "li" and not self._in_row else self._item
        if tag in HEADINGS:
            self._anchor = given.get("id") or self._anchor
        elif tag in SECTIONING and not self._has_text() and not (self._in_heading and self._anchor):
            self._anchor = given.get("id") or given.get("name") or self._anchor

    def set_cdata_mode(self, elem: str, **options: bool) -> None:
        """Read the content of an element such as `script` as text without tags.

        If `_is_shown` knows that the element is never closed, tags in the content are read as usual.
        """
        if not self._is_shown(elem):
            super().set_cdata_mode(elem, **options)

    def _is_shown(self, tag: str) -> bool:
        """Return whether the element `tag`, whose start tag was just read, is known to be never closed.

        Earlier passes over the page have found such elements, and `shown` has their start tags. If a script is never
        closed, all later scripts of the page are never closed either. True is therefore also returned for every script
        after a script in `shown`, so that no further pass is needed for each of them. The same applies to styles.
        """
        here = self.getpos()
        is_after = tag in self.CDATA_CONTENT_ELEMENTS and any(one == tag and here > at for one, at in self.shown)
        return (tag, here) in self.shown or is_after

    def _inline(self, tag: str, given: dict[str, str | None]) -> str:
        """Return the text that replaces a start tag within a block."""
        match tag:
            case "br":
                return " " if self._in_row else "\n"
            case "img":
                return given.get("alt") or ""
        return " | " if self._has_text() else ""  # cells of a table row are separated

    def _begin(self, tag: str) -> None:
        """Begin an element that needs special treatment: a heading, `pre`, a table row or `main`."""
        self._in_heading = tag in HEADINGS
        self._in_pre = tag == "pre"
        self._in_row = tag == "tr"
        if tag == "main" and not self._has_main:
            self._sections, self._has_main = Sections(), True  # discard the text before `main`, such as menus

    def handle_endtag(self, tag: str) -> None:
        if self.hidden:
            if any(tag == one for one, _ in self.hidden):
                while self.hidden.pop()[0] != tag:
                    pass
        elif tag == "title":
            self._in_title = False
        elif tag in HEADINGS or tag == "pre":
            self._flush(level=HEADINGS.get(tag, 0))
        elif tag in ("tr", "table"):
            self._flush()
            self._in_row = False
        elif tag == "main":
            self._flush()
            self._is_over = True
        elif tag in BLOCKS:
            self._break()

    def handle_data(self, data: str) -> None:
        if self._in_title:
            self.title += data
        elif not self.hidden and not self._is_over:
            self._text.append(data if self._in_pre else _SPACE.sub(" ", data))

    def _has_text(self) -> bool:
        return any(map(str.strip, self._text))

    def _break(self) -> None:
        """End a block. Within a heading or a table row, blocks are only separated by a space."""
        if self._in_row or self._in_heading:
            self._text.append(" ")
        else:
            self._flush()

    def _flush(self, level: int = 0) -> None:
        text = "".join(self._text)
        self._text = []
        lines = text.strip("\n").split("\n") if self._in_pre else [" ".join(line.split()) for line in text.split("\n")]
        text = "\n".join(lines).rstrip() if self._in_pre else "\n".join(lines).strip()
        if level and (title := " ".join(text.removesuffix("¶").split())):
            self._sections.heading(level, title, self._anchor.removeprefix("user-content-"))
            self._anchor = ""
        elif text:
            self._sections.block(self._item + text, "row" if self._in_row else "item" if self._item else "")
            self._item, self._anchor = "", ""
        self._in_heading = self._in_pre = False
