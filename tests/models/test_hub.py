"""Tests of features that only the hub has: revisions, commit messages, privacy, and commits of other users."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from models import remotes
from models.__main__ import main
from models.bundle import bundle
from models.remotes import transfer
from models.remotes.base import RemoteError
from models.remotes.hub import Hub
from tests.models.fake_hub import FakeHub


def _contents(folder: Path) -> dict[str, bytes]:
    return {p.relative_to(folder).as_posix(): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


@pytest.mark.slow
def test_the_hub_keeps_revisions_and_messages(
    tiny_bundle: Path, other_bundle: Path, hub: FakeHub, tmp_path: Path
) -> None:
    assert main(["publish", str(tiny_bundle), "hf://org/tiny", "--private", "--message", "the first"]) == 0
    assert main(["publish", str(other_bundle), "org/tiny", "--revision", "next"]) == 0
    repository = hub.repositories["org/tiny"]
    assert repository.private and "the first" in repository.messages
    first = repository.branches["main"]
    assert repository.files("next").keys() == {".gitattributes", *_contents(other_bundle)}
    for source, expected in {
        "org/tiny": tiny_bundle,
        "hf://org/tiny@next": other_bundle,
        f"org/tiny@{first}": tiny_bundle,
    }.items():
        assert main(["pull", source, "--out", str(tmp_path / "pulled"), "--replace"]) == 0
        assert _contents(tmp_path / "pulled") == _contents(expected)


def test_a_public_repository_is_no_place_for_a_private_bundle(
    tiny_bundle: Path, hub: FakeHub, capsys: pytest.CaptureFixture[str]
) -> None:
    hub.make("org/tiny", {})
    assert main(["publish", str(tiny_bundle), "hf://org/tiny", "--private"]) == 1
    assert "is public" in capsys.readouterr().err
    assert hub.repositories["org/tiny"].files().keys() == {".gitattributes"}


def test_a_commit_of_someone_else_meanwhile_is_not_overwritten(
    tiny_bundle: Path, hub: FakeHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    repository = hub.make("org/tiny", {})
    put = Hub.put

    def too_late(self: Hub, folder: Path, paths: Sequence[str], **how: Sequence[str]) -> None:
        repository.commit("main", {"theirs": b"x"})
        put(self, folder, paths, removed=how["removed"])

    monkeypatch.setattr(Hub, "put", too_late)
    with pytest.raises(RemoteError):
        transfer.publish(bundle.load(tiny_bundle), remotes.open_remote("hf://org/tiny"))
    assert repository.files() == {"theirs": b"x"}


def test_a_new_branch_has_the_bundle_alone_and_the_one_it_was_made_from_keeps_what_it_has(
    tiny_bundle: Path, hub: FakeHub
) -> None:
    repository = hub.make("org/tiny", {"thesis.tex": b"years of work"})
    before = repository.files()
    assert main(["publish", str(tiny_bundle), "org/tiny", "--revision", "next"]) == 0
    assert repository.files("next").keys() == {".gitattributes", *_contents(tiny_bundle)}
    assert repository.files() == before


@pytest.mark.parametrize(
    ("revision", "says"), [(None, "409|already"), ("next", "someone else created this branch in the meantime")]
)
def test_what_someone_else_made_meanwhile_keeps_what_is_in_it(
    tiny_bundle: Path, hub: FakeHub, monkeypatch: pytest.MonkeyPatch, revision: str | None, says: str
) -> None:
    theirs, put = {"theirs": b"x"}, Hub.put
    if revision:
        hub.make("org/tiny", {})

    def too_late(self: Hub, folder: Path, paths: Sequence[str], **how: Sequence[str]) -> None:
        repository = hub.repositories["org/tiny"] if revision else hub.make("org/tiny", {})
        repository.commit(revision or "main", theirs)
        put(self, folder, paths, removed=how["removed"])

    monkeypatch.setattr(Hub, "put", too_late)
    with pytest.raises(RemoteError, match=says):
        transfer.publish(bundle.load(tiny_bundle), remotes.open_remote("hf://org/tiny", revision=revision))
    assert hub.repositories["org/tiny"].files(revision or "main") == theirs
