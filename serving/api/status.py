"""What runs here and how it fares: /info, health, metrics."""

from __future__ import annotations

from importlib.metadata import version
from typing import Any

from fastapi import APIRouter, Response
from prometheus_client import CONTENT_TYPE_LATEST

from serving.api.answers import json_response, retry_headers
from serving.api.deps import ServiceDep
from serving.api.route import Route
from serving.api.schemas import ErrorAnswer
from serving.service import RETRY_SECONDS, Service

router = APIRouter(tags=["status"], route_class=Route)
NOT_READY: dict[int | str, dict[str, Any]] = {
    503: {"model": ErrorAnswer, "description": "loading, failing, draining or failed"}
}


@router.head("/info", include_in_schema=False)
@router.get("/info", summary="Describe the server")
async def info(service: ServiceDep) -> dict[str, Any]:
    """text-embeddings-inference's keys, and ours. Before the model is loaded the engine's facts are null."""
    manifest, settings = service.manifest, service.settings
    engine = service.encoders.current.engine if service.encoders.current else None
    return {
        "model_id": manifest.name,
        "model_sha": manifest.fingerprint,
        "model_dtype": {"fp32": "float32", "fp16": "float16", "bf16": "bfloat16"}.get(engine.precision)
        if engine
        else None,
        "served_model_name": manifest.name,
        "model_type": {"embedding": {"pooling": manifest.pooling}},
        "max_concurrent_requests": None,
        "max_input_length": manifest.max_length,
        "max_batch_tokens": settings.max_batch_tokens,
        "max_batch_requests": None,
        "max_client_batch_size": settings.max_request_texts,
        "auto_truncate": True,
        "tokenization_workers": 1,
        "version": version("isosphere"),
        "sha": None,
        "docker_label": None,
        "fingerprint": manifest.fingerprint,
        "backbone": manifest.backbone,
        "objective": manifest.objective,
        "dim": manifest.dim,
        "prompts": manifest.prompts,
        "engine": engine.name if engine else None,
        "precision": engine.precision if engine else None,
        "device": engine.device if engine else None,
        "engines": engine.choice.table() if engine else None,
        "index": settings.index,
        "state": service.readiness.state,
    }


@router.head("/health", include_in_schema=False)
@router.head("/readyz", include_in_schema=False)
@router.head("/ping", include_in_schema=False)
@router.get("/health", summary="Ready to work?", responses=NOT_READY)
@router.get("/readyz", summary="Ready to work?", responses=NOT_READY)
@router.get("/ping", summary="Ready to work?", responses=NOT_READY)
async def ready(service: ServiceDep) -> Response:
    """200 while requests are served; 503 with the reason while loading, failing, draining or failed.

    The engine of a server that is failing is tried once more whenever one of these routes is asked.
    """
    health = await service.probed()
    if health.state == "ready":
        return json_response({"state": health.state})
    return json_response(
        {"error": f"{health.state}: {health.reason}", "error_type": "Unhealthy", "state": health.state},
        status=503,
        headers=retry_headers(RETRY_SECONDS),
    )


@router.head("/livez", include_in_schema=False)
@router.get("/livez", summary="Alive?")
async def alive(service: ServiceDep) -> dict[str, str]:
    """200 for as long as the process answers at all."""
    return {"state": service.readiness.state}


@router.get("/metrics", summary="Prometheus metrics", response_class=Response)
async def metrics(service: ServiceDep) -> Response:
    """The text exposition format."""
    _observe(service)
    return Response(service.metrics.text(), media_type=CONTENT_TYPE_LATEST)


def _observe(service: Service) -> None:
    ready = service.health.state == "ready"
    service.metrics.ready.set(service.readiness.state == "ready")
    service.metrics.model.clear()
    service.metrics.model.labels(service.manifest.name, service.manifest.fingerprint).set(1)
    service.metrics.corpora.set(len(service.corpora.names()))
    if ready:
        service.metrics.queue_size.set(service.embedder.batcher.queued_texts)
        service.metrics.queued_tokens.set(service.embedder.batcher.queued_tokens)
