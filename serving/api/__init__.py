"""HTTP routes. Each family of routes has its own file, and `ROUTERS` lists all routers."""

from __future__ import annotations

from serving.api import (
    admin,
    aliases,
    corpora,
    documents,
    inference,
    jobs,
    maps,
    pages,
    search,
    snapshots,
    status,
    uploads,
)
from serving.api.compatible import cohere, ollama, openai

INFERENCE = (
    inference.router,
    openai.embedding,
    openai.deployments,
    cohere.router,
    ollama.embedding,
    ollama.router,
    inference.reranking,
    inference.pipelines,
    status.reports,  # before /models/{id}, whose path also matches ids with slashes
    openai.router,
    status.router,
)
"""Routers of a server without corpora and jobs, such as a replica on Ray."""
ROUTERS = (
    search.router,  # first, because each request is compared with one route after another
    *INFERENCE,
    uploads.router,
    documents.router,
    snapshots.router,
    snapshots.streamed,
    maps.router,
    corpora.router,
    aliases.router,
    jobs.router,
    admin.router,
    pages.router,
)
