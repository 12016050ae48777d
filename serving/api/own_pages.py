"""Web pages have browsers send what nobody asked for: a server without keys takes that from its own pages alone."""

from __future__ import annotations

from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.types import ASGIApp, Receive, Scope, Send

from serving.api.addresses import is_loopback
from serving.api.errors import service_error
from serving.errors import Forbidden

SAFE = ("GET", "HEAD", "OPTIONS")
"""They change nothing, and browsers keep the answers from pages of other origins."""


class OwnPages:
    """Pure ASGI. Keys make it needless: no browser sends one by itself.

    A form or a `fetch` of any page reaches whatever its reader's machine reaches, and simple ones are not asked about
    before (CORS). Told apart as Go's `http.CrossOriginProtection` does: by `Sec-Fetch-Site`, or by `Origin` and `Host`.
    And a page whose own name leads to this machine (DNS rebinding) is of the same origin for its browser; so where only
    this machine can reach the server, and `local`, it has to be asked by one of this machine's names.
    """

    def __init__(self, app: ASGIApp, origins: tuple[str, ...], *, local: bool) -> None:
        self._app, self._origins, self._local = app, origins, local

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Refuse it, or pass on."""
        if scope["type"] == "http" and (refusal := self._refusal(scope)):
            await service_error(Request(scope), Forbidden(refusal))(scope, receive, send)
            return
        await self._app(scope, receive, send)

    def _refusal(self, scope: Scope) -> str | None:
        headers = Headers(scope=scope)
        host = headers.get("host", "")
        if self._local and host and is_loopback((scope.get("server") or ("",))[0]) and not _is_local(host):
            return (
                f"Host: without keys this server answers to localhost and 127.0.0.1, not to {host[:80]!r}; behind a "
                "proxy ask for keys (--api-keys-file), or let everybody in (--insecure)"
            )
        if scope["method"] in SAFE:
            return None
        origin = headers.get("origin", "")
        if origin in self._origins or "*" in self._origins:
            return None
        if site := headers.get("sec-fetch-site"):
            own = site in ("same-origin", "none")
        else:
            own = not origin or origin.partition("://")[2] in (host or None, headers.get("x-forwarded-host"))
        return None if own else f"Origin: pages of {origin[:80]!r} may not ask that; --cors-origin lets them"


def _is_local(host: str) -> bool:
    try:
        name = urlsplit(f"//{host}").hostname or ""
    except ValueError:
        return False
    return name == "localhost" or name.endswith(".localhost") or is_loopback(name)
