"""Tests that the password in the URL of a remote never appears on the screen or in a log."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path

import fsspec
import pytest
from fsspec.implementations.memory import MemoryFileSystem
from hypothesis import given
from hypothesis import strategies as st

from models import remotes
from models.__main__ import main
from models.remotes.base import RemoteError, secrets, without_secrets, without_user
from models.remotes.filesystem import Filesystem

PASSWORD = "S3CR/ET"
USERS = ("alice:S3CRET", "alice:S3CR%2FET", f"KEY:{PASSWORD}", "alice:my S3CR@ET", "S3CRET", ":S3CRET")


@pytest.fixture
def strict_ftp() -> Iterator[str]:
    """Run an FTP server that refuses every user and names the refused user. Yield its host and port."""
    listening = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        with suppress(OSError):
            connection, _ = listening.accept()
            connection.settimeout(5)
            with connection:
                connection.sendall(b"220 hello\r\n")
                while said := connection.recv(1000):
                    connection.sendall(b"331 go on\r\n" if said.startswith(b"USER") else b"530 not " + said)

    thread = threading.Thread(target=serve)
    thread.start()
    with closing(listening):
        yield f"127.0.0.1:{listening.getsockname()[1]}"
    thread.join()


@pytest.mark.parametrize("user", USERS)
def test_a_url_is_shown_without_its_user(user: str) -> None:
    assert without_user(f"sftp://{user}@host:22/enc") == "sftp://host:22/enc"
    assert without_secrets(f"no sftp://{user}@host/enc for {user}", secrets(f"sftp://{user}@host/enc")) == (
        "no sftp://host/enc for ***"
    )


@given(st.text(st.characters(categories=["L", "N", "P"], exclude_characters="/:@"), min_size=1))
def test_no_password_is_shown(password: str) -> None:
    url = f"ftp://alice:{password}@/"
    assert without_user(url) == "ftp:///"
    assert without_secrets(f"{password} of {url}", secrets(url)) == "*** of ftp:///"


@pytest.mark.parametrize("place", ["file:///me@home/enc", "http://host:8000/a@b", "http://[::1]/a@b", "s3://b/a:1@2"])
def test_an_at_sign_in_a_path_is_of_no_user(place: str) -> None:
    assert without_user(place) == place


def test_a_server_that_lets_nobody_in_is_a_place_that_failed(
    strict_ftp: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["pull", f"ftp://alice:S3CRET@{strict_ftp}/enc", "--out", str(tmp_path / "out")]) == 1
    assert capsys.readouterr().err == f"isosphere: ftp://{strict_ftp}/enc: 530 not PASS ***\n"


def test_a_server_that_is_not_there_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with closing(socket.create_server(("127.0.0.1", 0))) as free:
        port = free.getsockname()[1]
    assert main(["pull", f"ftp://alice:S3CRET@127.0.0.1:{port}/enc", "--out", str(tmp_path / "out")]) == 1
    error = capsys.readouterr().err
    assert error.startswith(f"isosphere: ftp://127.0.0.1:{port}/enc: ") and "refused" in error


@pytest.mark.parametrize("raised", [ImportError, ValueError, ConnectionError])
def test_what_a_library_says_of_a_url_is_told_without_its_user(
    raised: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    def talkative(url: str) -> object:
        raise raised(f"can't open {url}: port S3CR is no number, and {PASSWORD} no password")

    monkeypatch.setattr("models.remotes.filesystem.url_to_fs", talkative)
    with pytest.raises((ValueError, RemoteError), match=r"^s3://bucket/enc: can't open") as caught:
        Filesystem(f"s3://KEY:{PASSWORD}@bucket/enc")
    assert "S3CR" not in str(caught.value) and "ET" not in str(caught.value)


def test_a_bundle_on_its_way_there_and_back_tells_no_password(
    tiny_bundle: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    place = "memory://alice:S3CRET@host/enc"
    assert main(["publish", str(tiny_bundle), place]) == 0
    assert main(["publish", str(tiny_bundle), place]) == 0
    assert main(["publish", str(tiny_bundle), place, "--private"]) == 2
    fsspec.filesystem("memory").pipe_file("/alice:S3CRET@host/enc/config.json", b"")
    assert main(["pull", place, "--out", str(tmp_path / "out")]) == 1

    def lost(*_: object, **__: object) -> None:
        raise ConnectionError(f"lost {place}")

    monkeypatch.setattr(MemoryFileSystem, "find", lost)
    assert main(["publish", str(tiny_bundle), place]) == 1
    printed = "".join(capsys.readouterr())
    assert "S3CRET" not in printed and printed.count("memory://host/enc") == 9
    MemoryFileSystem.store.clear()


def test_the_hub_takes_no_token_by_its_name() -> None:
    with pytest.raises(ValueError, match=r"set them with .* HF_TOKEN") as caught:
        remotes.open_remote("hf://user:hf_S3CRET@org/name")
    assert "S3CRET" not in str(caught.value)
