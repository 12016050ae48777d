"""The promotion report of a served bundle."""

from __future__ import annotations

from typing import Annotated, Literal

from fastapi import APIRouter, Header, Query, Response
from pydantic import BeforeValidator

from serving.api.deps import ModelName, ServiceDep
from serving.api.route import Route
from serving.api.schemas import lower
from serving.errors import NotFound

reports = APIRouter(tags=["status"], route_class=Route)

PAGE_HEADERS = {
    "content-security-policy": "default-src 'none'; style-src 'unsafe-inline'; img-src data:; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'; sandbox",
    "x-content-type-options": "nosniff",
}
"""Headers that keep a report from running or loading anything, since it shows names from elsewhere."""
CONTENT = {"application/json": {"schema": {"type": "object"}}, "text/html": {"schema": {"type": "string"}}}


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
    """Return the bundle's promotion report: JSON, or a page for `Accept: text/html` or `?format=html`.

    404 if the bundle has no report; the message names the command that makes one.
    """
    model = service.encoders.named(id).model
    if model.report is None:
        raise NotFound(f"{id!r} carries no report: `isosphere promote <bundle>` makes one")
    headers = {"vary": "accept", "x-model-fingerprint": model.manifest.fingerprint}
    if format == "html" and model.report_page is None:
        raise NotFound(f"the report of {id!r} has no page, only JSON")
    if model.report_page is not None and (format == "html" or (format is None and "text/html" in accept)):
        return Response(model.report_page, headers=headers | PAGE_HEADERS, media_type="text/html; charset=utf-8")
    return Response(model.report, headers=headers, media_type="application/json")
