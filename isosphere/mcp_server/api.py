"""Client of a running Isosphere server. It converts the server's errors to tool errors that suggest what to do."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote

import httpx2
from mcp.server.mcpserver import Context
from mcp.server.mcpserver.exceptions import ToolError

SECONDS = 60
HINTS = {
    401: "`isosphere mcp` takes the key from ISOSPHERE_API_KEY. Over HTTP, a client may send its own as Authorization.",
    403: "The owner of the server can make a key with `isosphere keys add`.",
    404: "`list_corpora` lists the corpora, and `search` returns the ids of documents.",
}
"""Hints by HTTP status, which are appended to the server's own messages."""


@dataclass(frozen=True)
class Api:
    """The HTTP API of one server."""

    http: httpx2.AsyncClient
    key: str | None = field(repr=False)
    """API key for requests of callers that send no key."""
    key_of_caller: bool
    """True if every caller must send a key of its own."""

    async def ask(self, caller: Context, method: str, *path: str, **sent: Any) -> Any:
        """Send a request to the path that consists of the segments `path`, and return the JSON of the answer.

        The request has the key that `caller` sent or else the key of this object. `sent` has further arguments of the
        HTTP client, such as `json`.

        Raises:
            ToolError: the server does not answer, or answers with an error; or `key_of_caller` is true, and the caller
                sent no key.
        """
        headers = self._authorization(caller)
        server = self.http.base_url.copy_with(userinfo=b"")  # The assistant must not see a password in the URL.
        try:
            answer = await self.http.request(method, f"/{'/'.join(map(_segment, path))}", headers=headers, **sent)
        except httpx2.ReadTimeout:
            raise ToolError(
                f"{server} has not answered for {SECONDS} s, but may still do what was asked. "
                "Check the result before you repeat the call."
            ) from None
        except httpx2.TransportError as error:
            raise ToolError(
                f"no server answers at {server} ({type(error).__name__}). `isosphere serve` starts one; "
                "`isosphere mcp --url URL` names another one."
            ) from None
        try:
            content: Any = answer.json() if answer.content else {}
            if answer.is_success:
                return content
            message = content["error"]
        except (json.JSONDecodeError, UnicodeDecodeError, KeyError, TypeError):
            raise ToolError(
                f"{server} answered {answer.status_code}, not as an Isosphere server does. "
                "Check the URL that `isosphere mcp` was started with."
            ) from None
        seconds = answer.headers.get("retry-after")
        hint = f"Try again in {seconds} s." if seconds else HINTS.get(answer.status_code, "")
        raise ToolError(f"{message}. {hint}".rstrip())

    def _authorization(self, caller: Context) -> dict[str, str]:
        sent = (caller.headers or {}).get("authorization")
        if sent:
            return {"authorization": sent}
        if self.key_of_caller:
            raise ToolError("this address needs a key of the Isosphere server, sent as Authorization: Bearer KEY")
        return {"authorization": f"Bearer {self.key}"} if self.key else {}


def _segment(name: str) -> str:
    """Percent-encode a segment of a path. Dots are encoded, too, because HTTP clients resolve `..`."""
    return quote(name, safe="").replace(".", "%2E")
