"""Administration routes.

If the server requires API keys, these routes need a key with the scope `admin`. Otherwise, they accept only callers on
the same machine.
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
"""Request headers that a proxy adds, or that a browser adds to a request of a web page. If a request has one of these
headers, the peer of the connection may not be the real caller."""


def _local(request: Request) -> None:
    """Raise `Forbidden` unless the request has an API key or comes directly from a process on this machine."""
    if key_of(request):
        return
    peer = request.client.host if request.client else ""
    if not is_loopback(peer) or any(header in request.headers for header in RELAYED):
        raise Forbidden(
            "without API keys, only processes on the server's own machine may use this route, and only without a "
            "proxy: to allow other callers, start the server with --api-keys-file"
        )


router = APIRouter(prefix="/admin", tags=["admin"], route_class=Route, dependencies=[Depends(_local), *CLOSED])


class Fingerprints(BaseModel):
    """Fingerprints of a model's bundle before and after a reload."""

    old: str
    new: str


class ReloadAnswer(Fingerprints):
    """Fingerprints of the first reloaded model. `others` has the fingerprints of the other reloaded models by name."""

    others: dict[str, Fingerprints] | None = None


class LoadRequest(ClosedBody):
    """Request to serve an additional bundle."""

    bundle: Path = Field(
        strict=False,
        description="Folder of the bundle. It must be below a folder that contains a bundle given by `--bundle`, "
        "or it must be the `bundle` of an adaptation.",
    )


class LoadAnswer(BaseModel):
    """Name by which requests select the loaded model, and fingerprint of the model's bundle."""

    id: str
    fingerprint: str


@router.post("/reload", summary="Reload the bundles", response_model_exclude_none=True)
async def reload(
    service: ServiceDep,
    model: Annotated[
        str | None,
        Query(
            description="Name of the model to reload. Default: all models. If one model fails to load, no model is "
            "replaced."
        ),
    ] = None,
) -> ReloadAnswer:
    """Reload the bundles from disk, and answer when the new bundles are served.

    The old bundles answer requests until then. 409 while another reload is running, or while a bundle is being loaded.
    422 if a bundle is incomplete. 424 if a bundle does not run correctly. After an error, the old bundles stay in use,
    and the message gives the reason. The signal SIGHUP also reloads the bundles.
    """
    first, *others = await service.reload(model)
    changed = {one.name: Fingerprints(old=one.old, new=one.new) for one in others}
    return ReloadAnswer(old=first.old, new=first.new, others=changed or None)


@router.post("/models", status_code=201, summary="Load a model")
async def load(body: LoadRequest, service: ServiceDep) -> LoadAnswer:
    """Load a bundle, and answer when it is served.

    403 if `bundle` is not in one of the allowed folders. 409 if the name of the bundle is taken, or while a reload or
    another load is running. 422 if the bundle is incomplete. 424 if the bundle does not run correctly.
    """
    with service.admitted():
        served = await service.encoders.add(body.bundle)
    return LoadAnswer(id=served.name, fingerprint=served.model.manifest.fingerprint)


@router.delete("/models/{id:any}", status_code=204, summary="Unload a model")
async def unload(id: Annotated[str, PathParameter(description="Name of the model.")], service: ServiceDep) -> None:
    """Stop serving a model after its admitted requests are answered.

    409 for the default model, which is the first model. 409 while a reload or a load is running.
    """
    with service.admitted():
        service.encoders.remove(id)
