"""The HTTP routes: a file for each family, a name in `ROUTERS`."""

from __future__ import annotations

from serving.api import corpora, documents, inference, openai, pages, search, status

ROUTERS = (
    inference.router,
    openai.router,
    status.router,
    search.router,
    documents.router,
    corpora.router,
    pages.router,
)
