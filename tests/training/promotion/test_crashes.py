"""Tests of kills at any step, and of concurrent commands: a whole bundle is always served."""

from __future__ import annotations

import errno
import os
import shutil
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from models.bundle import bundle
from tests.conftest import PATIENCE
from tests.training.forks import SERVER, forked
from tests.training.promotion.killing import killed_everywhere
from training.cli.options import parse
from training.promotion.ledger import Ledger
from training.promotion.place import Place

Command = Callable[..., int]


def killed(template: Path, verb: str, *, stride: int) -> dict[str, Any]:
    """Return the result of `killed_everywhere` for a verb on copies of `template`."""
    found, told = SERVER.Pipe(duplex=False)
    process = forked(killed_everywhere, template, verb, stride, told)
    told.close()
    try:
        return dict(found.recv())
    except EOFError:
        pytest.fail("it ended; its last words are on stderr")
    finally:
        process.join()


@pytest.mark.parametrize(
    "stride", [pytest.param(5, marks=pytest.mark.slow), pytest.param(1, marks=pytest.mark.nightly)]
)
def test_promotion_in_place_of_a_folder_killed_at_any_step(stride: int, artifacts: Path) -> None:
    (artifacts / "tiny").rename(artifacts / "default")
    told = killed(artifacts, "promote", stride=stride)
    assert told["seen"] == ["other", "tiny"]
    assert told["kills"] > 60 // stride


@pytest.mark.slow
def test_rollback_killed_at_any_step(artifacts: Path, command: Command) -> None:
    assert command("promote", "tiny") == command("promote", "other", "--margin", "100") == 0
    told = killed(artifacts, "rollback", stride=2)
    assert told["seen"] == ["other", "tiny"]
    assert told["kills"] > 2


@pytest.mark.slow
def test_rollback_from_a_folder_killed_at_any_step(artifacts: Path, command: Command) -> None:
    assert command("promote", "tiny") == command("promote", "other", "--margin", "100") == 0
    (artifacts / "default").unlink()
    (artifacts / "tiny").rename(artifacts / "default")
    told = killed(artifacts, "rollback", stride=11)
    assert told["seen"] == ["other", "tiny"]
    assert told["kills"] > 2


def ran(given: list[str]) -> int:
    options = parse(given)
    return int(options.load()(options))


@pytest.mark.slow
def test_two_promotions_at_once_leave_one_winner_and_a_whole_link(
    artifacts: Path, corpus: Path, tmp_path: Path
) -> None:
    said = tmp_path / "said"
    terms = ["--default", str(artifacts / "default"), "--margin", "100", "--corpus", str(corpus)]
    both = [forked(ran, ["promote", str(artifacts / name), *terms], said=said) for name in ("tiny", "other")]
    for process in both:
        process.join(PATIENCE)
    assert [process.exitcode for process in both] == [0, 0], said.read_text()
    place = Place(artifacts / "default")
    first, second = place.ledger.entries()
    assert first["incumbent"] is None
    assert second["incumbent"]["fingerprint"] == first["candidate"]["fingerprint"], "the second was held against it"
    assert place.current() == second["copy"] == place.ledger.served()[-1]
    assert bundle.load(place.default).manifest.name == second["candidate"]["name"]


@pytest.mark.slow
def test_a_waiting_promotion_says_so(artifacts: Path, corpus: Path, tmp_path: Path) -> None:
    place, said = Place(artifacts / "default"), tmp_path / "said"
    given = ["promote", str(artifacts / "tiny"), "--default", str(place.default), "--corpus", str(corpus)]
    with place.locked(sys.stderr):
        process = forked(ran, given, said=said)
        deadline = time.monotonic() + PATIENCE
        while not (said.exists() and said.read_text().endswith("\n")):
            assert process.is_alive() and time.monotonic() < deadline
            time.sleep(0.01)
        assert said.read_text() == f"waiting for another promotion to {place.default} to end\n"
        process.join(0.5)
        assert process.is_alive()
        assert not place.ledger.file.exists() and place.current() is None
    process.join(PATIENCE)
    assert process.exitcode == 0, said.read_text()
    assert place.current()


class NoExchange:
    """C library of a kernel that can't exchange two names."""

    @staticmethod
    def renameat2(*_: object) -> int:
        return -1


def test_where_names_can_not_be_exchanged(artifacts: Path, command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    (artifacts / "tiny").rename(artifacts / "default")
    monkeypatch.setattr("ctypes.CDLL", lambda *_, **__: NoExchange)
    monkeypatch.setattr("ctypes.get_errno", lambda: errno.EINVAL)
    assert command("promote", "other", "--margin", "100") == 0
    assert bundle.load(artifacts / "default").manifest.name == "other"
    assert command("rollback") == 0
    assert bundle.load(artifacts / "default").manifest.name == "tiny"
    assert not (artifacts / ".default.aside").exists()
    monkeypatch.setattr("ctypes.get_errno", lambda: errno.EACCES)
    shutil.rmtree(artifacts / "promoted")
    (artifacts / "default").unlink()
    shutil.copytree(artifacts / "other", artifacts / "default")
    (artifacts / "promoted" / "x").mkdir(parents=True)
    with pytest.raises(PermissionError):
        Place(artifacts / "default").serve("x")
    assert bundle.load(artifacts / "default").manifest.name == "other"


def test_a_folder_left_aside_is_put_back(artifacts: Path) -> None:
    """Restore a folder after a crash between two renames, which leave no `default` without an atomic exchange."""
    (artifacts / "tiny").rename(artifacts / ".default.aside")
    place = Place(artifacts / "default")
    with place.locked(sys.stderr):
        assert bundle.load(place.default).manifest.name == "tiny"


def test_links_where_there_are_none(artifacts: Path, command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object, **__: object) -> None:
        raise OSError(errno.EXDEV, os.strerror(errno.EXDEV))

    monkeypatch.setattr(os, "link", refused)
    assert command("promote", "tiny") == 0
    served = bundle.load(artifacts / "default")
    assert served.onnx.stat().st_ino != (artifacts / "tiny" / bundle.ONNX).stat().st_ino


def test_an_unwritable_ledger_is_named(tmp_path: Path) -> None:
    (tmp_path / "promotions.jsonl").mkdir()
    with pytest.raises(OSError, match=r"promotions\.jsonl"):
        Ledger(tmp_path / "promotions.jsonl").append({"outcome": "refused"})
