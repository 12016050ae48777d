"""Administration routes.

They need a key with the scope `admin`. On a server without keys, they need a caller on the same machine.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from fastapi import APIRouter, Depends, Query, Request
from fastapi import Path as PathParameter
from pydantic import BaseModel, Field

from serving.api.middleware.same_origin import is_loopback
from serving.api.routing.auth import key_of
from serving.api.routing.deps import CLOSED, ServiceDep
from serving.api.routing.route import Route
from serving.api.schemas.bodies import ClosedBody
from serving.errors import Forbidden

RELAYED = ("forwarded", "x-forwarded-for", "origin")
"""Headers that proxies, or browsers acting for a web page, send. With such a header, the peer of the connection is
not the caller."""


def _local(request: Request) -> None:
    """Raise `Forbidden` unless the request came with a key, or directly from a process on this machine."""
    if key_of(request):
        return
    peer = request.client.host if request.client else ""
    if not is_loopback(peer) or any(header in request.headers for header in RELAYED):
        raise Forbidden("only answered to a process on the server's own machine, asking directly")


router = APIRouter(prefix="/admin", tags=["admin"], route_class=Route, dependencies=[Depends(_local), *CLOSED])


class Fingerprints(BaseModel):
    """Fingerprints of the bundle that was served before, and of the bundle that is served now."""

    old: str
    new: str


class ReloadAnswer(Fingerprints):
    """Changes of the first model that was reloaded, and of each other model by its name."""

    others: dict[str, Fingerprints] | None = None


class LoadRequest(ClosedBody):
    """A further bundle to serve."""

    bundle: Path = Field(
        strict=False,
        description="Folder of the bundle. It must be inside the parent folder of a bundle given by `--bundle`, or be "
        "the `bundle` of an adaptation.",
    )


class LoadAnswer(BaseModel):
    """The model's name in requests, and the fingerprint of its bundle."""

    id: str
    fingerprint: str


@router.post("/reload", summary="Reload the bundles", response_model_exclude_none=True)
async def reload(
    service: ServiceDep,
    model: Annotated[
        str | None,
        Query(description="Name of the model to reload. Default: all models. If one fails, none is replaced."),
    ] = None,
) -> ReloadAnswer:
    """Reload the bundles from disk, and answer when they are served. Until then, the old bundles answer requests.

    409 while another reload is running. 422 if a bundle is incomplete, and 424 if it does not run correctly. The error
    gives the reason, and the old bundles are still served. SIGHUP also reloads.
    """
    first, *others = await service.reload(model)
    changed = {one.name: Fingerprints(old=one.old, new=one.new) for one in others}
    return ReloadAnswer(old=first.old, new=first.new, others=changed or None)


@router.post("/models", status_code=201, summary="Load a model")
async def load(body: LoadRequest, service: ServiceDep) -> LoadAnswer:
    """Load a bundle, and answer when it is served.

    403 if no bundle of the server's start is in the same parent folder and no adaptation made the bundle, 409 if the
    name is taken, 422 and 424 as for a reload.
    """
    with service.admitted():
        served = await service.encoders.add(body.bundle)
    return LoadAnswer(id=served.name, fingerprint=served.model.manifest.fingerprint)


@router.delete("/models/{id:any}", status_code=204, summary="Unload a model")
async def unload(id: Annotated[str, PathParameter(description="Name of the model.")], service: ServiceDep) -> None:
    """Stop serving a model, after the requests that it has admitted. 409 for the first model, which is the default."""
    with service.admitted():
        service.encoders.remove(id)
