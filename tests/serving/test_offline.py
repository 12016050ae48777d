"""Nothing is fetched and nobody is called: a server that can't reach other machines does not try to."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

WATCHED = """
import asyncio, json, os, signal, sys, urllib.request
from ipaddress import ip_address

attempts = []


def watch(event, arguments):
    if event in ("socket.connect", "socket.sendto", "socket.sendmsg"):
        address = arguments[1]
        if isinstance(address, tuple) and not ip_address(address[0]).is_loopback:
            attempts.append(f"{event} {address}")
    if event in ("socket.getaddrinfo", "socket.gethostbyname") and arguments[0] not in (None, "127.0.0.1"):
        attempts.append(f"{event} {arguments[0]}")


sys.addaudithook(watch)
import serving.command as command
from serving import server


def ask(port, path, body=None):
    headers = {"content-type": "application/json"}
    request = urllib.request.Request(f"http://127.0.0.1:{port}{path}", body and json.dumps(body).encode(), headers)
    with urllib.request.urlopen(request) as answer:
        return answer.status


class Probe(server.Server):
    async def startup(self, sockets=None):
        await super().startup(sockets)
        self.probing = asyncio.get_running_loop().create_task(self.probe(sockets[0].getsockname()[1]))

    async def probe(self, port):
        await self._service.loaded.wait()
        statuses = [await asyncio.to_thread(ask, port, "/embed", {"inputs": "a dog"})]
        statuses += [await asyncio.to_thread(ask, port, path) for path in ("/docs", "/openapi.json", "/metrics", "/")]
        print(json.dumps({"statuses": statuses, "attempts": attempts}), flush=True)
        os.kill(os.getpid(), signal.SIGTERM)


command.Server = Probe
sys.exit(command.serve(["--bundle", sys.argv[1], "--data", sys.argv[2], "--port", "0", "--threads", "1", "--no-demo"]))
"""


def test_a_server_with_a_real_bundle_reaches_for_nothing(tiny_bundle: Path, tmp_path: Path) -> None:
    """Python's own audit events tell every connection, datagram and name looked up."""
    ran = subprocess.run(
        [sys.executable, "-c", WATCHED, str(tiny_bundle), str(tmp_path)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    assert '{"statuses": [200, 200, 200, 200, 200], "attempts": []}' in ran.stdout
