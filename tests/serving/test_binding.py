"""Tests of the addresses on which the server listens."""

from __future__ import annotations

import errno
import socket
from contextlib import ExitStack

import pytest

from serving.commands import server
from serving.commands.server import BindError, bind
from serving.settings import Settings


def addresses(**options: object) -> list[str]:
    with ExitStack() as opened:
        bound = [opened.enter_context(one) for one in bind(Settings(port=0, **options))]  # type: ignore[arg-type]
        assert len({one.getsockname()[1] for one in bound}) == 1, "one port"
        return [one.getsockname()[0] for one in bound]


def without(monkeypatch: pytest.MonkeyPatch, *absent: str) -> None:
    made = server._socket

    def lacking(host: str, port: int) -> socket.socket:
        if host in absent:
            raise OSError(errno.EADDRNOTAVAIL, "Cannot assign requested address")
        return made(host, port)

    monkeypatch.setattr(server, "_socket", lacking)


def test_localhost_is_reached_by_ipv4_and_by_ipv6() -> None:
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        pytest.skip("this machine has no ::1")
    assert addresses() == ["127.0.0.1", "::1"]
    assert addresses(host="127.0.0.1") == ["127.0.0.1"]
    assert addresses(host="::1") == ["::1"]


def test_a_machine_that_has_one_of_them_listens_on_that(monkeypatch: pytest.MonkeyPatch) -> None:
    without(monkeypatch, "::1")
    assert addresses() == ["127.0.0.1"]
    without(monkeypatch, "127.0.0.1", "::1")
    with pytest.raises(BindError, match="can't listen on ::1:0: Cannot assign"):
        addresses()


def test_a_port_that_another_program_has_on_one_of_them_is_refused() -> None:
    """Refuse such a port, because clients of localhost would reach the other program."""
    try:
        taken = socket.create_server(("::1", 0), family=socket.AF_INET6)
    except OSError:
        pytest.skip("this machine has no ::1")
    with taken:
        port = taken.getsockname()[1]
        with pytest.raises(BindError, match=f"can't listen on ::1:{port}: Address already in use"):
            bind(Settings(port=port))
        with socket.create_server(("127.0.0.1", port)):
            pass  # No socket was left open.
