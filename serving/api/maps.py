"""Routes to read a map of a corpus, and to compute a map in a job."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query, Response
from numpy.typing import NDArray
from pydantic import BaseModel, BeforeValidator, Field

from serving.api.jobs import ACCEPTED, JobAnswer, submitted
from serving.api.routing.answers import json_response
from serving.api.routing.deps import CLOSED, CorpusName, ServiceDep
from serving.api.routing.route import Route
from serving.api.schemas.bodies import lower
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
"""Default number of points on a map."""
MAX_VALUE = 100
"""Maximum characters of a string value in the answer."""
MAX_PATH = 512
"""Maximum characters of the name of a metadata field."""
Method = Literal["pca", "t-sne"]


class PointAnswer(BaseModel):
    """Position of one passage on a map."""

    id: str = Field(description="Id of the passage's document.")
    text: str = Field(description="First 200 characters of the passage.")
    x: float
    y: float
    value: str | int | float | bool | None = Field(
        description="Value of `field` in the metadata of the document. For a list, this is the first element. For "
        "an object, this is null."
    )


class StoredMapAnswer(BaseModel):
    """A map that a job has computed and stored."""

    created: float = Field(description="Time at which the map was computed, in seconds since the epoch.")
    current: bool = Field(
        description="True if the passages and vectors of the corpus have not changed since the map was computed."
    )
    points: int = Field(description="Number of current passages that have a position on the map.")
    added: int = Field(description="Number of passages added after the map was computed. They have no position.")
    removed: int = Field(description="Number of passages removed after the map was computed.")


class MapAnswer(BaseModel):
    """Positions of passages in two dimensions."""

    points: list[PointAnswer] = Field(description="Points, in the order in which their passages were added.")
    passages: int = Field(
        description="Number of passages in the corpus. If not all passages are returned, the points are a random "
        "sample that is always the same."
    )
    projection: Method = Field(
        description="Method of the map. `t-sne` is the stored map, on which similar passages are close together. "
        "`pca` uses the two axes along which the vectors vary most."
    )
    explained: list[float] | None = Field(
        min_length=2,
        max_length=2,
        description="Share of the variance that each axis explains, from 0 to 1. null for `t-sne`, whose axes have no "
        "meaning.",
    )
    stored: StoredMapAnswer | None = Field(description="Facts about the stored map. null if no map is stored.")
    hint: str | None = Field(
        description="Advice on how to compute a better or newer map. null if the stored map is current."
    )
    took_ms: float
    warnings: list[str] | None = Field(
        None, description="Warning that no document has the field. Absent if at least one document has the field."
    )


@router.post("/map", summary="Compute a map", status_code=202, response_model=JobAnswer, responses=ACCEPTED)
async def compute(name: CorpusName, service: ServiceDep) -> Response:
    """Start a job that computes a map of the passages by t-SNE and stores the map with the corpus.

    A map has up to 50,000 passages. For a larger corpus, the map has a random sample of the passages. The sample stays
    the same until the corpus changes. The previous map is served until the job has finished. 501 if the extra `map` is
    not installed, or if the store does not support maps.
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
        Method | None,
        BeforeValidator(lower),
        Query(description="Method of the map. Default: the stored map (`t-sne`) if a map is stored, else `pca`."),
    ] = None,
) -> Response:
    """Return the stored map, or a PCA map if no map is stored.

    `POST` computes the stored map. Positions on the stored map do not change when documents are added or removed. In
    the answer, `stored` has the numbers of passages that were added and removed after the map was computed.
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
        return answer | warnings_of(field=corpora.unmatched(name, Exists(field)) if field else ())

    answer = await service.library.read(answered, of=name, charged=True)
    return json_response(answer | {"took_ms": round(1000 * (time.perf_counter() - started), 3)})


def _check_possible(corpora: Backend) -> None:
    corpora.check_maps()
    check_installed()


def _about(corpora: Backend, name: str, stored: Placed | None) -> dict[str, Any]:
    """Return the fields `stored` and `hint` of `MapAnswer`. The parameter `stored` is None if no map is stored."""
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
