"""A server that sends requests to itself, reports the results and attempted connections as JSON, and ends.

`python -m tests.serving.asking_itself BUNDLE DATA`
"""

from __future__ import annotations

import asyncio
import gc
import json
import os
import signal
import socket
import struct
import sys
import urllib.request
from fcntl import ioctl
from ipaddress import ip_address
from typing import Any

SIOCSIFFLAGS, IFF_UP = 0x8914, 1
HEAVY = ("torch", "transformers", "onnx", "sentence_transformers")
ELSEWHERE = "192.0.2.1"
"""An unassigned address (RFC 5737)."""

attempts: list[str] = []
"""Attempts to reach or look up other hosts than this machine."""


def watch(event: str, arguments: tuple[Any, ...]) -> None:
    """Record every connection, datagram and name lookup, which Python reports as audit events."""
    if event in ("socket.connect", "socket.sendto", "socket.sendmsg"):
        address = arguments[1]
        if isinstance(address, tuple) and not ip_address(address[0]).is_loopback:
            attempts.append(f"{event} {address}")
    if event in ("socket.getaddrinfo", "socket.gethostbyname") and arguments[0] not in (None, "127.0.0.1", "::1"):
        attempts.append(f"{event} {arguments[0]}")


def has_route(host: str) -> bool:
    """Return whether a datagram to the host could be routed, without sending one."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((host, 9))
        except OSError:
            return False
    return True


def ask(port: int, path: str, body: Any = None) -> tuple[int, bytes]:
    headers = {"content-type": "application/json"}
    request = urllib.request.Request(f"http://127.0.0.1:{port}{path}", body and json.dumps(body).encode(), headers)
    with urllib.request.urlopen(request) as answer:
        return answer.status, answer.read()


def main(bundle: str, data: str) -> int:
    """Run the server, and return its exit status."""
    if not has_route("127.0.0.1"):  # In a new network namespace, the loopback interface is down.
        with socket.socket() as any_socket:
            ioctl(any_socket, SIOCSIFFLAGS, struct.pack("16sh", b"lo", IFF_UP))
    route = has_route(ELSEWHERE)
    sys.addaudithook(watch)
    from serving.__main__ import run
    from serving.commands import serve as command
    from serving.commands import server

    class AskingItself(server.Server):
        async def startup(self, sockets: list[socket.socket] | None = None) -> None:
            await super().startup(sockets)
            assert sockets
            self.asking = asyncio.create_task(self.ask(sockets[0].getsockname()[1]))

        async def ask(self, port: int) -> None:
            await self._service.loaded.wait()
            status, vectors = await asyncio.to_thread(ask, port, "/embed", {"inputs": "a dog"})
            pages = [await asyncio.to_thread(ask, port, path) for path in ("/docs", "/openapi.json", "/metrics", "/")]
            found = {
                "statuses": [status, *(one for one, _ in pages)],
                "width": len(json.loads(vectors)[0]),
                "collects": gc.isenabled(),
                "heavy": [name for name in HEAVY if name in sys.modules],
                "attempts": attempts,
                "route": route,
            }
            sys.stdout.write(f"{json.dumps(found)}\n")
            sys.stdout.flush()
            os.kill(os.getpid(), signal.SIGTERM)

    command.Server = AskingItself  # type: ignore[attr-defined]
    return run(["--bundle", bundle, "--data", data, "--port", "0", "--threads", "1", "--no-demo"])


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
