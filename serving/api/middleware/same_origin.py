"""Protection of servers without keys from requests that foreign web pages make browsers send."""

from __future__ import annotations

from ipaddress import IPv6Address, ip_address
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.types import ASGIApp, Receive, Scope, Send

from serving.api.routing.errors import service_error
from serving.errors import Forbidden

SAFE = ("GET", "HEAD", "OPTIONS")
"""Methods that change nothing. Browsers hide their answers from pages of other origins."""


class SameOrigin:
    """Pure ASGI middleware. Servers with keys don't need it, since browsers never send keys by themselves.

    A form or `fetch` of any web page can send requests to every server that the machine of the page's reader can reach.
    Simple requests have no CORS preflight. Foreign requests are recognised as in Go's `http.CrossOriginProtection`: by
    `Sec-Fetch-Site`, or by `Origin` and `Host`. With DNS rebinding, a browser treats a foreign page as a page of the
    same origin. With `local`, or if only this machine can reach the server, the `Host` must therefore be a name of this
    machine.
    """

    def __init__(self, app: ASGIApp, origins: tuple[str, ...], *, local: bool) -> None:
        self._app, self._origins, self._local = app, origins, local

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Refuse or forward the request."""
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


def is_loopback(host: str) -> bool:
    """Return whether `host` is an IP address of the loopback interface. False for a host name."""
    try:
        address = ip_address(host)
    except ValueError:
        return False
    mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
    return (mapped or address).is_loopback


def _is_local(host: str) -> bool:
    try:
        name = urlsplit(f"//{host}").hostname or ""
    except ValueError:
        return False
    return name == "localhost" or name.endswith(".localhost") or is_loopback(name)
