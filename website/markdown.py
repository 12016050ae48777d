"""Pieces of Markdown that the generated pages share."""

from __future__ import annotations

from collections.abc import Iterable, Sequence


def table(heads: Sequence[str], rows: Iterable[Sequence[str | None]]) -> str:
    """Render a table, each cell in one line."""
    lines = [list(heads), ["---"] * len(heads), *rows]
    return "\n".join(f"| {' | '.join(' '.join((cell or '').split()) for cell in cells)} |" for cells in lines)


def code(text: str) -> str:
    """Mark text as code. A pipe in it ends no cell."""
    return f"`{text}`"
