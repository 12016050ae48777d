"""Routes for the status of the server: /info, health, metrics, and the promotion reports of bundles."""

from __future__ import annotations

from collections import Counter
from importlib.metadata import version
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Header, Query, Response
from fastapi.responses import PlainTextResponse
from prometheus_client import CONTENT_TYPE_LATEST
from pydantic import BeforeValidator

from models.bundle.bundle import CROSS_ENCODER
from serving.api.routing.answers import json_response, retry_headers
from serving.api.routing.deps import ModelName, ServiceDep
from serving.api.routing.route import Route
from serving.api.schemas.bodies import lower
from serving.api.schemas.status import InfoAnswer, StateAnswer
from serving.errors import NotFound
from serving.inference.engine import Model
from serving.inference.training_record import PARITY, training
from serving.jobs.adapting import is_installed
from serving.service import RETRY_SECONDS

reports = APIRouter(tags=["status"], route_class=Route)
PAGE_HEADERS = {
    "content-security-policy": "default-src 'none'; style-src 'unsafe-inline'; img-src data:; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'; sandbox",
    "x-content-type-options": "nosniff",
}
"""Headers of the page with a promotion report. A report contains names from other sources, so the page must not run
scripts or load files."""
CONTENT = {"application/json": {"schema": {"type": "object"}}, "text/html": {"schema": {"type": "string"}}}
router = APIRouter(tags=["status"], route_class=Route)


@reports.get(
    "/models/{id:any}/report",
    summary="Get the promotion report of a model",
    response_class=Response,
    responses={200: {"content": CONTENT}},
)
async def report(
    id: ModelName,
    service: ServiceDep,
    format: Annotated[
        Literal["json", "html"] | None,
        BeforeValidator(lower),
        Query(description="Format of the report. By default the `Accept` header selects it."),
    ] = None,
    accept: Annotated[str, Header()] = "",
) -> Response:
    """Return the promotion report of the model's bundle as JSON or as HTML.

    Without `format`, the answer is HTML if `Accept` names `text/html` and the bundle has an HTML page, else JSON. 404
    if the bundle has no report, or no HTML page for `format=html`. If there is no report, the message names the command
    that creates a report.
    """
    model = service.encoders.named(id).model
    if model.report is None:
        raise NotFound(f"{id!r} has no report: `isosphere promote <bundle>` creates one")
    headers = {"vary": "accept", "x-model-fingerprint": model.manifest.fingerprint}
    if format == "html" and model.report_page is None:
        raise NotFound(f"the report of {id!r} is only available as JSON")
    if model.report_page is not None and (format == "html" or (format is None and "text/html" in accept)):
        return Response(model.report_page, headers=headers | PAGE_HEADERS, media_type="text/html; charset=utf-8")
    return Response(model.report, headers=headers, media_type="application/json")


@router.get("/info", response_model=InfoAnswer, summary="Describe the server")
async def info(
    service: ServiceDep,
    asked: Annotated[
        str | None, Query(alias="model", description="Name of the model to describe. Default: the first model.")
    ] = None,
) -> Response:
    """Describe the server and one of its models.

    The answer has the keys of text-embeddings-inference, and keys of Isosphere. Facts about the engine are null until
    the model is loaded.
    """
    served, settings = service.encoders.requested(asked), service.settings
    manifest, engine = served.model.manifest, served.embedder.engine if served.embedder else None
    scores = dict(manifest.scores or {})
    facts = {
        "model_id": manifest.name,
        "model_sha": manifest.fingerprint,
        "model_dtype": {"fp32": "float32", "fp16": "float16", "bf16": "bfloat16"}.get(engine.precision)
        if engine
        else None,
        "served_model_name": manifest.name,
        "model_type": _model_type(served.model),
        "max_concurrent_requests": None,
        "max_input_length": manifest.max_length,
        "max_batch_tokens": settings.max_batch_tokens or (engine.batch_tokens if engine else None),
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
        "int8_limit": served.model.int8_limit,
        "parity": scores.pop(PARITY, None),
        "scores": scores,
        "training": training(manifest),
        "report": served.model.report is not None,
        "engine": engine.name if engine else None,
        "precision": engine.precision if engine else None,
        "device": engine.device if engine else None,
        "engines": engine.choice.table() if engine else None,
        "index": settings.index,
        "adapts": is_installed() and not settings.no_adapt,
        "state": service.readiness.state,
    }
    return json_response(facts)


def _model_type(model: Model) -> dict[str, Any]:
    if model.manifest.kind == CROSS_ENCODER:
        return {"reranker": {"id2label": {"0": model.label}, "label2id": {model.label: 0}}}
    return {"embedding": {"pooling": model.manifest.pooling}}


@router.get("/health", summary="Check readiness", response_model=StateAnswer)
@router.get("/healthz", summary="Check readiness", response_model=StateAnswer)
@router.get("/readyz", summary="Check readiness", response_model=StateAnswer)
@router.get("/ping", summary="Check readiness", response_model=StateAnswer)
async def ready(service: ServiceDep) -> Response:
    """Answer 200 if the server is ready for requests, else 503 with the reason.

    The server is not ready while it loads or drains, after loading failed, and while an engine fails batch after batch.
    A request to this route also tests whether a failing engine works again.
    """
    health = await service.probed()
    if health.state == "ready":
        return json_response({"state": health.state})
    return json_response(
        {"error": str(health), "error_type": "Unhealthy", "state": health.state},
        status=503,
        headers=retry_headers(RETRY_SECONDS),
    )


@router.get("/livez", response_model=StateAnswer, summary="Check liveness")
async def alive(service: ServiceDep) -> Response:
    """Answer 200 while the process is running."""
    return json_response({"state": service.readiness.state})


@router.get("/metrics", summary="Get Prometheus metrics", response_class=PlainTextResponse)
async def metrics(service: ServiceDep) -> Response:
    """Return the metrics in Prometheus's text format."""
    metrics = service.metrics  # some are computed only when they are requested
    encoders = [
        (served.model.manifest, engine.name if engine else "", engine.precision if engine else "")
        for served in service.encoders.served
        for engine in [served.embedder and served.embedder.engine]
    ]
    metrics.serving(service.readiness.state == "ready", encoders)
    metrics.indexes(service.library.corpora.index_sizes())
    batchers = [embedder.batcher for embedder in service.encoders.loaded]
    by_lane = Counter[str]()
    for batcher in batchers:
        by_lane.update(batcher.waiting_tokens)
    texts, tokens = sum(one.queued_texts for one in batchers), sum(one.queued_tokens for one in batchers)
    metrics.waiting(texts, tokens, by_lane)
    return Response(metrics.text(), media_type=CONTENT_TYPE_LATEST)
