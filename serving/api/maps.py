"""A corpus as points in a plane."""

from __future__ import annotations

import time
from typing import Annotated

from fastapi import APIRouter, Query, Response
from pydantic import BaseModel, Field

from serving.api.routing.answers import json_response
from serving.api.routing.deps import CLOSED, CorpusName, ServiceDep
from serving.api.routing.route import Route
from serving.api.schemas.corpora import warnings_of
from serving.corpora.corpora import Corpora, Projection, Sample, project
from serving.corpora.filters import Exists
from serving.corpora.ports import Scalar

router = APIRouter(tags=["corpora"], route_class=Route, dependencies=CLOSED)

MOST = 5000
"""Maximum number of points."""
MAX_VALUE = 100
"""Maximum characters of a string value."""
MAX_PATH = 512
"""Maximum characters of a field's name."""


class PointAnswer(BaseModel):
    """A passage and its position."""

    id: str = Field(description="Id of the passage's document.")
    text: str = Field(description="First 200 characters of the passage.")
    x: float
    y: float
    value: str | int | float | bool | None = Field(
        description="Value of `field` in the metadata: the first element of a list, null for an object."
    )


class MapAnswer(BaseModel):
    """Passages in two dimensions."""

    points: list[PointAnswer] = Field(description="Points, oldest passage first.")
    passages: int = Field(
        description="Number of passages in the corpus. If it exceeds `sample`, the points are a fixed random sample."
    )
    explained: list[float] = Field(
        min_length=2, max_length=2, description="Share of the variance that each axis explains, from 0 to 1."
    )
    took_ms: float
    warnings: list[str] | None = Field(
        None, description="Warning that no document has `field`. Absent if a document has it."
    )


@router.get("/corpora/{name}/map", summary="Map a corpus", response_model=MapAnswer)
async def mapped(
    name: CorpusName,
    service: ServiceDep,
    sample: Annotated[int, Query(ge=1, le=MOST, description="Maximum number of points.")] = MOST,
    field: Annotated[
        str | None, Query(max_length=MAX_PATH, description="Metadata field whose value is returned with each point.")
    ] = None,
) -> Response:
    """Place passages of the corpus, or a sample, on the two axes along which their vectors vary most (PCA)."""
    started = time.perf_counter()
    found, (places, explained), unmatched = await service.library.look_through(
        lambda corpora: _map(corpora, name, sample, field), of=name
    )
    points = [
        {"id": one.document, "text": one.excerpt, "x": x, "y": y, "value": _scalar(one.value)}
        for one, (x, y) in zip(found.passages, places.tolist(), strict=True)
    ]
    took = round(1000 * (time.perf_counter() - started), 3)
    answer = {"points": points, "passages": found.of, "explained": explained.round(6).tolist(), "took_ms": took}
    return json_response(answer | ({"warnings": warnings_of(unmatched, "field")} if unmatched else {}))


def _map(corpora: Corpora, name: str, size: int, field: str | None) -> tuple[Sample, Projection, list[str]]:
    sample = corpora.sample(name, size, field)
    return sample, project(sample.vectors), corpora.unmatched(name, Exists(field)) if field else []


def _scalar(value: object) -> Scalar:
    if isinstance(value, list):
        return _scalar(value[0]) if value else None
    if isinstance(value, str):
        return value[:MAX_VALUE]
    return value if isinstance(value, int | float) else None
