"""Maps of corpora: read, and compute by a job."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query, Response
from numpy.typing import NDArray
from pydantic import BaseModel, Field

from serving.api.jobs import ACCEPTED, JobAnswer, submitted
from serving.api.routing.answers import json_response
from serving.api.routing.deps import CLOSED, CorpusName, ServiceDep
from serving.api.routing.route import Route
from serving.api.schemas.corpora import warnings_of
from serving.corpora.backend import Backend
from serving.corpora.filters import Exists
from serving.corpora.maps import Placed, Sampled, project
from serving.corpora.values import MAX_POINTS, Scalar
from serving.errors import NotFound, Unsupported
from serving.jobs.kinds import MAP
from serving.jobs.mapping import check_installed

router = APIRouter(prefix="/corpora/{name}", tags=["corpora"], route_class=Route, dependencies=CLOSED)
POINTS = 5000
"""Points of a map, unless the caller wants more."""
MAX_VALUE = 100
"""Maximum characters of a string value on a map."""
MAX_PATH = 512
"""Maximum characters of a field's name."""
Method = Literal["pca", "t-sne"]


class PointAnswer(BaseModel):
    """A passage and its position."""

    id: str = Field(description="Id of the passage's document.")
    text: str = Field(description="First 200 characters of the passage.")
    x: float
    y: float
    value: str | int | float | bool | None = Field(
        description="Value of `field` in the metadata: the first element of a list, null for an object."
    )


class StoredMapAnswer(BaseModel):
    """The map that a job computed."""

    created: float = Field(description="Time of the map, in seconds since the epoch.")
    current: bool = Field(description="Whether the corpus has the same passages and vectors as when it was mapped.")
    points: int = Field(description="Number of passages with a place. The places of removed passages don't count.")
    added: int = Field(description="Number of passages that were added since. They have no place.")
    removed: int = Field(description="Number of passages that were removed since.")


class MapAnswer(BaseModel):
    """Passages in two dimensions."""

    points: list[PointAnswer] = Field(description="Points, oldest passage first.")
    passages: int = Field(
        description="Number of passages in the corpus. If there are more than `sample` or than the map has, the points "
        "are a fixed random sample."
    )
    projection: Method = Field(
        description="`t-sne`: the stored map, on which passages are close together if their vectors are. `pca`: the "
        "two axes along which the vectors vary most."
    )
    explained: list[float] | None = Field(
        min_length=2,
        max_length=2,
        description="Share of the variance that each axis explains, from 0 to 1. null for `t-sne`, whose axes have no "
        "meaning.",
    )
    stored: StoredMapAnswer | None = Field(description="The stored map. null if there is none.")
    hint: str | None = Field(description="How to get a better or a current map. null if the stored map is current.")
    took_ms: float
    warnings: list[str] | None = Field(
        None, description="Warning that no document has `field`. Absent if a document has it."
    )


@router.post("/map", summary="Compute a map", status_code=202, response_model=JobAnswer, responses=ACCEPTED)
async def compute(name: CorpusName, service: ServiceDep) -> Response:
    """Start a job that places the passages on a plane by t-SNE, and stores the map with the corpus.

    A map has up to 50,000 passages. From a larger corpus, it has a fixed random sample. The previous map is served
    until the job has finished. 501 if the extra `map` is not installed, or if the store keeps no maps.
    """
    _check_possible(service.library.corpora)
    await service.library.read(lambda corpora: corpora.corpus(name), of=name)
    return await submitted(service.jobs, MAP, name, {})


@router.get("/map", summary="Map a corpus", response_model=MapAnswer)
async def mapped(
    name: CorpusName,
    service: ServiceDep,
    sample: Annotated[int, Query(ge=1, le=MAX_POINTS, description="Maximum number of points.")] = POINTS,
    field: Annotated[
        str | None, Query(max_length=MAX_PATH, description="Metadata field whose value is returned with each point.")
    ] = None,
    projection: Annotated[
        Method | None, Query(description="Which map. Default: the stored map (`t-sne`) if there is one, else `pca`.")
    ] = None,
) -> Response:
    """Return the stored map, or the passages on the two axes along which their vectors vary most (PCA).

    `POST` computes the stored map. Positions on the map do not change when documents are added or removed. `stored`
    counts the added and removed passages.
    """
    started = time.perf_counter()

    def answered(corpora: Backend) -> dict[str, Any]:
        stored = corpora.placed(name, sample if projection != "pca" else 1, field)
        answer = _about(corpora, name, stored)
        if stored and projection != "pca":
            points = _points(stored.passages, stored.places)
            answer |= {"points": points, "passages": stored.of, "projection": "t-sne", "explained": None}
        elif projection == "t-sne":
            raise NotFound(f"corpus {name!r} has no stored map: {answer['hint']}")
        else:
            found = corpora.sample(name, sample, field)
            places, explained = project(found.vectors)
            points, shares = _points(found.passages, places), explained.round(6).tolist()
            answer |= {"points": points, "passages": found.of, "projection": "pca", "explained": shares}
        unmatched = corpora.unmatched(name, Exists(field)) if field else []
        return answer | ({"warnings": warnings_of(unmatched, "field")} if unmatched else {})

    answer = await service.library.scan(answered, of=name)
    return json_response(answer | {"took_ms": round(1000 * (time.perf_counter() - started), 3)})


def _check_possible(corpora: Backend) -> None:
    corpora.check_maps()
    check_installed()


def _about(corpora: Backend, name: str, stored: Placed | None) -> dict[str, Any]:
    """Return the fields `stored` and `hint` of the answer."""
    told = stored and {
        "created": stored.origin.created,
        "current": stored.current,
        "points": stored.points,
        "added": stored.added,
        "removed": stored.removed,
    }
    hint: str | None = f"POST /corpora/{name}/map computes a map on which similar passages are close together"
    try:
        _check_possible(corpora)
    except Unsupported as error:
        hint = error.message
    return {"stored": told, "hint": None if stored and stored.current else hint}


def _points(passages: Sequence[Sampled], places: NDArray[Any]) -> list[dict[str, Any]]:
    return [
        {"id": one.document, "text": one.excerpt, "x": x, "y": y, "value": _scalar(one.value)}
        for one, (x, y) in zip(passages, places.tolist(), strict=True)
    ]


def _scalar(value: object) -> Scalar:
    if isinstance(value, list):
        return _scalar(value[0]) if value else None
    if isinstance(value, str):
        return value[:MAX_VALUE]
    return value if isinstance(value, int | float) else None
