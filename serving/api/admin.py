"""What changes the server itself: for keys with the scope `admin`; without keys, for the machine's own users."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from fastapi import APIRouter, Depends, Query, Request
from fastapi import Path as PathParameter
from pydantic import BaseModel, Field

from serving.api.addresses import is_loopback
from serving.api.auth import key_of
from serving.api.deps import CLOSED, ServiceDep
from serving.api.route import Route
from serving.api.schemas import ClosedBody
from serving.errors import Forbidden

RELAYED = ("forwarded", "x-forwarded-for", "origin")
"""Headers of a proxy, and of a browser that sends what some page told it to: the peer is not who asks."""


def _local(request: Request) -> None:
    """Raises `Forbidden` unless it came with a key, or straight from a process of this machine."""
    if key_of(request):
        return
    peer = request.client.host if request.client else ""
    if not is_loopback(peer) or any(header in request.headers for header in RELAYED):
        raise Forbidden("only answered to a process on the server's own machine, asking directly")


router = APIRouter(prefix="/admin", tags=["admin"], route_class=Route, dependencies=[Depends(_local), *CLOSED])


class Fingerprints(BaseModel):
    """Of the bundle that served, and of the one that serves now."""

    old: str
    new: str


class ReloadAnswer(Fingerprints):
    """What changed: of the first model that was reloaded, and of each other one by its name."""

    others: dict[str, Fingerprints] | None = None


class LoadRequest(ClosedBody):
    """Which bundle to serve, too."""

    bundle: Path = Field(strict=False, description="its folder, beside those that the server was started with")


class LoadAnswer(BaseModel):
    """By what name requests ask for it, and which it is."""

    id: str
    fingerprint: str


@router.post("/reload", summary="Serve what the bundle paths hold now", response_model_exclude_none=True)
async def reload(
    service: ServiceDep,
    model: Annotated[
        str | None, Query(description="this one alone, by its name; default: all, or on an error none")
    ] = None,
) -> ReloadAnswer:
    """Reads the bundles again and answers once they serve; requests go on meanwhile, on the old ones.

    409 while a reload is running. 422 (not a whole bundle) or 424 (it does not run as it should) say why the old ones
    go on. Also by SIGHUP.
    """
    first, *others = await service.reload(model)
    changed = {one.name: Fingerprints(old=one.old, new=one.new) for one in others}
    return ReloadAnswer(old=first.old, new=first.new, others=changed or None)


@router.post("/models", status_code=201, summary="Serve one more bundle")
async def load(body: LoadRequest, service: ServiceDep) -> LoadAnswer:
    """Answers once it serves. 403 for a folder elsewhere, 409 for a name that is taken, 422 and 424 as for a reload."""
    with service.admitted():
        slot = await service.encoders.add(body.bundle)
    return LoadAnswer(id=slot.name, fingerprint=slot.model.manifest.fingerprint)


@router.delete("/models/{id:any}", status_code=204, summary="Serve a model no more")
async def unload(id: Annotated[str, PathParameter(description="name of the model")], service: ServiceDep) -> None:
    """What was asked of it before is finished. 409 for the first one, which is the default."""
    with service.admitted():
        service.encoders.remove(id)
