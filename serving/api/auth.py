"""Who asks, and what the key allows: decided before anything of the body is read."""

from __future__ import annotations

import re

from fastapi import Request
from starlette.types import ASGIApp, Receive, Scope, Send

from serving.api import errors
from serving.errors import Forbidden, ServiceError, Unauthenticated
from serving.keys.keyring import Keyring
from serving.keys.keys import Key
from serving.keys.keys import Scope as KeyScope
from serving.keys.limits import loop_turn

SAFE = ("GET", "HEAD")
PUBLIC = {"/", "/health", "/healthz", "/livez", "/readyz", "/ping", "/metrics", "/docs", "/openapi.json"}
"""What text-embeddings-inference answers without a key, and the page; to look only."""
PUBLIC_FOLDERS = ("/web/", "/static-offline-docs/")
_SEARCH = re.compile(r"/corpora/[^/]+/search")
_BEARER = re.compile(r"\Abearer(\s+|\Z)", re.IGNORECASE)


class Authentication:
    """Pure ASGI around the routes. A path that is not public needs a key, one that no route takes included."""

    def __init__(self, app: ASGIApp, keyring: Keyring) -> None:
        self._app = app
        self._keyring = keyring

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass on what is public or allowed, with the key in the scope's state; answer the rest."""
        if scope["type"] != "http" or _is_public(scope["method"], scope["path"]):
            await self._app(scope, receive, send)
            return
        try:
            caller = self._keyring.find(_secret(scope))
            if caller is None:
                raise Unauthenticated("this needs a key the server knows, sent as Authorization: Bearer <key>")
            scope["state"]["key"] = caller.key
            needed = scope_for(scope["method"], scope["path"])
            if needed not in caller.key.scopes:
                raise Forbidden(f"the key {caller.key.name!r} lacks the scope {needed!r}")
            with caller.admitted():
                await loop_turn()
                await self._app(scope, receive, send)
        except ServiceError as error:  # ours: those of routes are answered inside
            await errors.service_error(Request(scope), error)(scope, receive, send)


def key_of(request: Request) -> Key | None:
    """The key that the request came with; None where the server has none."""
    return getattr(request.state, "key", None)


def check_corpus_allowed(name: str, request: Request) -> str:
    """The name, if the key may touch a corpus that is called so.

    A 403 and no 404: the key's patterns are asked and never the store, so that it gives away nothing, and whoever has
    the wrong key hears so.

    Raises:
        Forbidden: it may not.
    """
    key = key_of(request)
    if key and not key.sees(name):
        raise Forbidden(f"the key {key.name!r} is not for the corpus {name!r}")
    return name


def scope_for(method: str, path: str) -> KeyScope:
    """What a key needs. Inference and search are reading, by whichever method."""
    if path == "/admin" or path.startswith("/admin/"):
        return "admin"
    if method in SAFE or (method == "POST" and _SEARCH.fullmatch(path)):
        return "read"
    return "write" if path.startswith(("/corpora", "/jobs")) else "read"


def _is_public(method: str, path: str) -> bool:
    if method == "OPTIONS":
        return True
    return method in SAFE and (path in PUBLIC or path.startswith(PUBLIC_FOLDERS))


def _secret(scope: Scope) -> str:
    """The key as it was sent: some clients leave out `Bearer`."""
    sent: str = next((value.decode("latin-1") for name, value in scope["headers"] if name == b"authorization"), "")
    return _BEARER.sub("", sent.strip(), count=1)
