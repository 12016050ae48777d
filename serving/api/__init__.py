"""The HTTP routes: a file for each family, a name in `ROUTERS`."""

from __future__ import annotations

from serving.api import (
    admin,
    cohere,
    corpora,
    documents,
    inference,
    openai,
    pages,
    reports,
    rerank,
    search,
    status,
    tokens,
)

ROUTERS = (
    inference.router,
    openai.embedding,
    cohere.router,
    rerank.router,
    tokens.router,
    inference.pipelines,
    reports.router,  # before /models/{id}, whose ids may hold slashes
    openai.router,
    status.router,
    search.router,
    documents.router,
    corpora.router,
    admin.router,
    pages.router,
)
