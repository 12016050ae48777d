"""Tests that run every snippet of docs/clients.md unchanged."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.clients.conftest import Server, snippets


@pytest.mark.parametrize("client", snippets())
def test_the_snippet_of(
    client: str, snippet: Callable[[str], dict[str, Any]], same: Callable[..., bool], server: Server
) -> None:
    left = snippet(client)
    assert same(left["vectors"])
    if "ranking" in left:
        assert left["ranking"] == server.ranking()
