"""HTTP routes: one file for each family of routes. `ROUTERS` has all routers."""

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
    status.reports,  # before /models/{id}, whose ids may contain slashes
    openai.router,
    status.router,
)
"""Routers of a server without corpora and jobs, such as a replica on Ray."""
ROUTERS = (
    search.router,  # first, because each request is matched with route after route
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
