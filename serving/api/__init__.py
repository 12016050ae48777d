"""The HTTP routes: a file for each family, a name in `ROUTERS`."""

from __future__ import annotations

from serving.api import admin, corpora, documents, inference, openai, pages, reports, search, status

ROUTERS = (
    inference.router,
    openai.embedding,
    reports.router,  # before /models/{id}, whose ids may hold slashes
    openai.router,
    status.router,
    search.router,
    documents.router,
    corpora.router,
    admin.router,
    pages.router,
)
