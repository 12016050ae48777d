"""What changes the server itself: for keys with the scope `admin`; without keys, for the machine's own users."""

from __future__ import annotations

from fastapi import APIRouter, Depends, Request
from pydantic import BaseModel

from serving.addresses import is_loopback
from serving.api.auth import key_of
from serving.api.deps import ServiceDep
from serving.api.route import Route
from serving.api.schemas import ErrorAnswer
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


router = APIRouter(prefix="/admin", tags=["admin"], route_class=Route, dependencies=[Depends(_local)])


class ReloadAnswer(BaseModel):
    """Fingerprints: of the bundle that served, and of the one that serves now."""

    old: str
    new: str


@router.post("/reload", summary="Serve what the bundle path holds now", responses={403: {"model": ErrorAnswer}})
async def reload(service: ServiceDep) -> ReloadAnswer:
    """Reads the configured bundle again and answers once it serves; requests go on meanwhile, on the old one.

    409 while a reload is running. 422 (not a whole bundle) or 424 (it does not run as it should) say why the old one
    goes on. Also by SIGHUP.
    """
    return ReloadAnswer(**(await service.reload())._asdict())
