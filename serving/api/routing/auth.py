"""Authentication and authorisation by API key. Both happen before the body of the request is read."""

from __future__ import annotations

import re

from fastapi import Request
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from serving.api.routing import errors
from serving.errors import Forbidden, ServiceError, Unauthenticated
from serving.operations.keys import Key
from serving.operations.keys import Scope as KeyScope
from serving.operations.limits import Keyring, loop_turn

SAFE = ("GET", "HEAD")
PUBLIC = {"/", "/health", "/healthz", "/livez", "/readyz", "/ping", "/metrics", "/docs", "/openapi.json"}
"""Paths that can be read without a key: the web page, the documentation, and the paths that are public in
text-embeddings-inference."""
PUBLIC_FOLDERS = ("/web/", "/static-offline-docs/")
_SEARCH = re.compile(r"/corpora/[^/]+/search")
_BEARER = re.compile(r"\Abearer(\s+|\Z)", re.IGNORECASE)


class Authentication:
    """Pure ASGI middleware that checks the API key of each request.

    Every path that is not public needs a key, even if the path has no route.
    """

    def __init__(self, app: ASGIApp, keyring: Keyring) -> None:
        self._app = app
        self._keyring = keyring

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Forward public requests, and requests whose API key passes all checks.

        The key is stored in the state of the ASGI `scope`.

        Answer 401 if the key is missing or unknown, 403 if the key lacks the scope that the request needs, and 429 if
        the key is over a limit.
        """
        if scope["type"] != "http" or _is_public(scope["method"], scope["path"]):
            await self._app(scope, receive, send)
            return
        try:
            caller = self._keyring.find(_secret(scope))
            if caller is None:
                raise Unauthenticated(
                    "this request needs a key that the server knows, sent as Authorization: Bearer <key>"
                )
            scope["state"]["key"] = caller.key
            needed = scope_for(scope["method"], scope["path"])
            if needed not in caller.key.scopes:
                raise Forbidden(f"the key {caller.key.name!r} lacks the scope {needed!r}")
            with caller.admitted():
                await loop_turn()
                await self._app(scope, receive, send)
        except ServiceError as error:  # the framework answers only errors of routes, and this code runs outside them
            await errors.service_error(Request(scope), error)(scope, receive, send)


def key_of(request: Request) -> Key | None:
    """Return the API key of the request, or None if its path is public or the server requires no keys."""
    return getattr(request.state, "key", None)


def allowed_corpus(name: str, request: Request) -> str:
    """Return the name of the corpus whose name or alias is `name`.

    The request's key must have access to `name` and to the returned corpus.

    Access depends only on the key's patterns and on aliases. The answer 403 therefore does not reveal whether a corpus
    exists.

    Raises:
        Forbidden: the key has no access.
    """
    key, corpus = key_of(request), str(request.state.service.aliases.corpora.get(name, name))
    if key and not (key.sees(name) and key.sees(corpus)):
        raise Forbidden(f"the key {key.name!r} has no access to the corpus {name!r}")
    return corpus


def scope_for(method: str, path: str) -> KeyScope:
    """Return the scope that the API key of a request needs.

    Inference and search need the scope `read`, whatever their method.
    """
    if path == "/admin" or path.startswith("/admin/"):
        return "admin"
    if method in SAFE or (method == "POST" and _SEARCH.fullmatch(path)):
        return "read"
    return "write" if path.startswith(("/corpora", "/aliases", "/jobs")) else "read"


def _is_public(method: str, path: str) -> bool:
    if method == "OPTIONS":
        return True
    return method in SAFE and (path in PUBLIC or path.startswith(PUBLIC_FOLDERS))


def _secret(scope: Scope) -> str:
    """Return the API key in the headers of a request, or an empty string if the headers have no key.

    `Bearer` is optional, because some clients leave it out. Clients of Azure send the header `api-key` instead of
    `Authorization`.
    """
    headers = Headers(scope=scope)
    sent = headers.get("authorization") or headers.get("api-key", "")
    return _BEARER.sub("", sent.strip(), count=1)
