"""A reverse proxy that forwards the requests under a prefix to a server."""

from __future__ import annotations

import http.client
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlsplit

PIECE = 64 * 1024
OF_THE_CONNECTION = {"connection", "keep-alive", "transfer-encoding", "host", "content-length"}


@contextmanager
def behind(address: str, prefix: str) -> Iterator[str]:
    """Yield the address of a proxy that serves `address` under `prefix` ("/tools/isosphere/")."""

    class Through(_Through):
        target, under = urlsplit(address).netloc, prefix

    server = ThreadingHTTPServer(("127.0.0.1", 0), Through)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}{prefix}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class _Through(BaseHTTPRequestHandler):
    target: str
    under: str

    def forward(self) -> None:
        """Forward a request to the server, or answer 404 outside the prefix."""
        self.close_connection = True
        if not self.path.startswith(self.under):
            self.send_error(404)
            return
        with closing(http.client.HTTPConnection(self.target)) as connection:
            self._through(connection)

    def _through(self, connection: http.client.HTTPConnection) -> None:
        headers = {name: value for name, value in self.headers.items() if name.lower() not in OF_THE_CONNECTION}
        length = int(self.headers.get("content-length", 0))
        body = self._body(length) if length else None
        if length:
            headers["content-length"] = str(length)
        connection.request(self.command, "/" + self.path.removeprefix(self.under), body, headers)
        answer = connection.getresponse()
        self.send_response(answer.status)
        for name, value in answer.getheaders():
            if name.lower() not in OF_THE_CONNECTION:
                self.send_header(name, value)
        self.send_header("connection", "close")
        self.end_headers()
        with answer, suppress(ConnectionError):  # The browser may close the connection.
            while piece := answer.read1(PIECE):
                self.wfile.write(piece)
                self.wfile.flush()

    do_GET = do_POST = do_PUT = do_DELETE = forward  # http.server calls methods with these names.

    def _body(self, length: int) -> Iterator[bytes]:
        while length:
            piece = self.rfile.read(min(PIECE, length))
            length -= len(piece)
            yield piece

    def log_message(self, format: str, *arguments: object) -> None:
        """Do nothing, so that nothing is logged."""
