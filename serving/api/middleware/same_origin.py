"""Protection of servers without API keys from requests that browsers send for foreign web pages."""

from __future__ import annotations

from functools import lru_cache
from ipaddress import IPv6Address, ip_address
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.types import ASGIApp, Receive, Scope, Send

from serving.api.routing.errors import service_error
from serving.errors import Forbidden

SAFE = ("GET", "HEAD", "OPTIONS")
"""Methods that change nothing. Browsers hide the answers to these methods from pages of other origins."""


class SameOrigin:
    """Pure ASGI middleware that refuses requests of foreign web pages.

    Any web page can make its reader's browser send requests to a server that the reader's machine can reach. Simple
    requests, such as those of a form, need no CORS preflight, so CORS does not stop them. Servers with API keys need no
    such protection, because browsers never send API keys by themselves.

    The middleware recognises foreign requests as Go's `http.CrossOriginProtection` does: by `Sec-Fetch-Site`, or by
    `Origin` and `Host`. DNS rebinding can make a browser treat a foreign page as a page of the same origin. If
    `local` is true, requests to a loopback address are therefore refused if their `Host` is not a local name or
    address.
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
                f"Host: a server without API keys accepts the hosts localhost and 127.0.0.1, not {host[:80]!r}; "
                "behind a proxy, require keys (--api-keys-file) or allow everybody (--insecure)"
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
        if own:
            return None
        return f"Origin: web pages of {origin[:80]!r} may not send this request; allow them with --cors-origin"


@lru_cache(maxsize=64)  # parsing takes a twentieth of the time of a short request outside the model
def is_loopback(host: str) -> bool:
    """Return whether `host` is an IP address of the loopback interface. For a host name, return False."""
    try:
        address = ip_address(host)
    except ValueError:
        return False
    mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
    return (mapped or address).is_loopback


@lru_cache(maxsize=64)
def _is_local(host: str) -> bool:
    try:
        name = urlsplit(f"//{host}").hostname or ""
    except ValueError:
        return False
    return name == "localhost" or name.endswith(".localhost") or is_loopback(name)
