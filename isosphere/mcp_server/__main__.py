"""The command line of `isosphere mcp`."""

from __future__ import annotations

import argparse
import asyncio
import ipaddress
import socket
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from models.cli.command_line import Parser, add_key
from models.cli.table import COMMANDS, texts
from models.errors import Failed, Refused

if TYPE_CHECKING:
    import httpx2

NEEDS = ("mcp", "httpx2")
PORT = 8090
MOST_BYTES = 32_000_000
"""Maximum bytes of a call over HTTP, as the server's default for a request."""
ABOUT = """\
An assistant starts this command itself and talks to it over stdin and stdout. With --http it listens on a port instead.
Its tools search, fetch and list. With --write, other tools store and delete documents."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Serve the tools until the assistant disconnects or, with `--http`, until Ctrl-C. Return the exit status."""
    given = parser().parse_args(arguments)
    try:
        asyncio.run(_serve(given))
    except ModuleNotFoundError as error:
        if error.name not in NEEDS:
            raise
        return _fails("needs the extra `mcp`: `make setup` or, without a checkout, `pip install 'isosphere[mcp]'`", 2)
    except Failed as error:
        return _fails(str(error), 1)
    except Refused as error:
        return _fails(str(error), 2)
    except KeyboardInterrupt:
        return _fails("stopped", 130)
    return 0


async def _serve(given: argparse.Namespace) -> None:
    import httpx2

    from isosphere.mcp_server.api import SECONDS, Api
    from isosphere.mcp_server.tools import server_of

    async with httpx2.AsyncClient(base_url=given.url, timeout=SECONDS) as http:
        if given.http:
            with _listening(given.host, given.port) as listening:
                await _serve_http(http, listening, given)
        else:
            await server_of(Api(http, given.key, key_of_caller=False), writes=given.write).run_stdio_async()


async def _serve_http(http: httpx2.AsyncClient, listening: socket.socket, given: argparse.Namespace) -> None:
    """Serve the tools over streamable HTTP, without sessions, so that clients don't notice a restart.

    Raises:
        Refused: a key is given, but other machines can reach the address, so their users could use the key.
    """
    import uvicorn
    from mcp.server.transport_security import TransportSecuritySettings

    from isosphere.mcp_server.api import Api
    from isosphere.mcp_server.tools import server_of

    address, port = listening.getsockname()[:2]
    local = ipaddress.ip_address(address).is_loopback
    if given.key and not local:
        raise Refused(
            f"--host {address}: everyone who reaches this address would use your key. Leave the key out. Then each "
            "client sends its own as Authorization: Bearer KEY"
        )
    shown = f"[{address}]" if ":" in address else address
    hosts = [f"{host}:*" for host in ("127.0.0.1", "localhost", "[::1]", shown)]
    origins = [f"http://{host}" for host in hosts]
    server = server_of(Api(http, given.key, key_of_caller=not local), writes=given.write)
    app = server.streamable_http_app(
        stateless_http=True,
        json_response=True,
        max_request_body_size=MOST_BYTES,
        transport_security=TransportSecuritySettings(
            enable_dns_rebinding_protection=local, allowed_hosts=hosts, allowed_origins=origins
        ),
    )
    print(f"isosphere mcp: http://{shown}:{port}/mcp", file=sys.stderr, flush=True)
    await uvicorn.Server(uvicorn.Config(app, log_level="warning")).serve([listening])


def _listening(host: str, port: int) -> socket.socket:
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        return socket.create_server((host, port), family=family)
    except OSError as error:
        raise Failed(f"--host {host} --port {port}: {error.strerror or error}") from None


def parser() -> Parser:
    """Return the parser of this command."""
    about = texts(*COMMANDS["mcp"][:2])
    about["epilog"] = f"{ABOUT}\n\n{about['epilog']}"
    own = Parser(prog="isosphere mcp", **about)
    own.add_argument(
        "--url",
        type=_url,
        default="http://127.0.0.1:8080",
        help="address of the running server (default: http://127.0.0.1:8080)",
    )
    add_key(own)
    own.add_argument("--write", action="store_true", help="also offer tools that store and delete documents")
    own.add_argument("--http", action="store_true", help="listen for streamable HTTP, at the path /mcp")
    own.add_argument("--host", default="127.0.0.1", help="address to listen on with --http (default: 127.0.0.1)")
    own.add_argument("--port", type=_port, default=PORT, help=f"port to listen on with --http (default: {PORT})")
    return own


def _url(text: str) -> str:
    parts = urlsplit(text)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise argparse.ArgumentTypeError(f"{text!r} is not an address such as http://127.0.0.1:8080")
    return text


def _port(text: str) -> int:
    if not (text.isascii() and text.isdecimal() and int(text) <= 65535):
        raise argparse.ArgumentTypeError(f"{text!r} is not a port from 0 to 65535")
    return int(text)


def _fails(message: str, status: int) -> int:
    print(f"isosphere mcp: {message}", file=sys.stderr)
    return status


if __name__ == "__main__":
    sys.exit(main())
