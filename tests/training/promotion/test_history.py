"""Tests of the ledger, of rollbacks and of kept copies."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from models.bundle import bundle
from training.promotion import history
from training.promotion.ledger import Ledger, PromotionError
from training.promotion.place import Place, open_place

Command = Callable[..., int]


def opened(descriptor: int) -> Path:
    return Path(f"/proc/self/fd/{descriptor}").readlink()


def test_rollbacks_go_back_one_by_one(artifacts: Path, command: Command) -> None:
    for name in ("tiny", "other", "tiny"):
        assert command("promote", name, "--margin", "100") == 0
    place = Place(artifacts / "default")
    first, second, third = place.ledger.served()
    assert (first, third) == (second.replace(second, first), f"{first}-2")
    assert command("rollback") == 0
    assert place.current() == second
    assert command("rollback") == 0
    assert place.current() == first
    with pytest.raises(PromotionError, match="there is no earlier bundle to go back to"):
        command("rollback")
    assert command("promote", "other", "--margin", "100") == 0
    assert command("rollback") == 0
    assert place.current() == first
    last = place.ledger.entries()[-1]
    assert (last["outcome"], last["copy"], last["candidate"]["name"]) == ("rolled back", first, "tiny")
    assert last["candidate"]["fingerprint"].startswith(first)


def test_a_rollback_to_what_does_not_verify_is_refused(artifacts: Path, command: Command) -> None:
    for name in ("tiny", "other"):
        assert command("promote", name, "--margin", "100") == 0
    place = Place(artifacts / "default")
    before = place.current()
    with (place.copies / place.ledger.served()[0] / "config.json").open("a") as file:
        file.write(" ")
    lines = place.ledger.file.read_text()
    with pytest.raises(PromotionError, match=r"config\.json: changed \(its SHA-256 differs"):
        command("rollback")
    assert (place.current(), place.ledger.file.read_text()) == (before, lines)


def test_a_folder_in_place_of_the_link_is_copied_and_goes_back_to_what_was_served(
    artifacts: Path, command: Command
) -> None:
    shutil.copytree(artifacts / "tiny", artifacts / "mine")
    for name in ("tiny", "other"):
        assert command("promote", name, "--margin", "100") == 0
    place = Place(artifacts / "default")
    first, second = place.ledger.served()
    place.default.unlink()
    (artifacts / "mine").rename(place.default)
    files = bundle.load(place.default).manifest.files
    assert command("rollback") == 0
    assert place.current() == second
    line = place.ledger.entries()[-1]
    kept = line["incumbent"]["copy"]
    assert bundle.load(place.copies / kept).manifest.files == files and kept not in (first, second)
    assert line["incumbent"]["fingerprint"] == bundle.load(place.copies / kept).manifest.fingerprint
    assert place.ledger.served() == [first, second]
    assert command("rollback") == 0
    assert place.current() == first


def test_a_folder_that_does_not_verify_goes_back_too_and_is_kept(artifacts: Path, command: Command) -> None:
    assert command("promote", "tiny") == 0
    place = Place(artifacts / "default")
    place.default.unlink()
    (artifacts / "other" / "tokenizer.json").write_text("{}")
    (artifacts / "other").rename(place.default)
    assert command("rollback") == 0
    assert place.current() == place.ledger.served()[-1]
    assert (place.copies / "unverified" / "tokenizer.json").read_text() == "{}"


def test_a_folder_without_a_copy_is_never_removed(artifacts: Path, command: Command) -> None:
    assert command("promote", "tiny") == 0
    place = Place(artifacts / "default")
    (name,) = place.ledger.served()
    place.default.unlink()
    shutil.copytree(artifacts / "other", place.default)
    place.serve(name)
    uncopied = place.copies / "uncopied"
    assert bundle.load(uncopied).manifest.name == "other" and place.current() == name
    place.default.unlink()
    shutil.copytree(uncopied, place.copies / bundle.load(uncopied).manifest.fingerprint[:12])
    uncopied.rename(place.default)
    place.serve(name)
    assert not uncopied.exists(), "now there is one"


def test_a_copy_whose_line_is_lost_keeps_its_name(tmp_path: Path) -> None:
    place = Place(tmp_path / "default")
    (place.copies / "a").mkdir(parents=True)
    assert not place.ledger.file.exists()
    assert place.free_name("a") == "a-2"


def test_what_is_served_survives_power_loss(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place, synced = Place(tmp_path / "default"), []
    monkeypatch.setattr(os, "fsync", lambda descriptor: synced.append((opened(descriptor), place.current())))
    place.serve("a")
    assert synced == [(tmp_path, "a")]


@pytest.mark.parametrize("path", [".", "/", "..", "x/..", "artifacts/promoted", "artifacts/promoted-x"])
def test_a_path_where_no_link_can_be_is_refused(path: str) -> None:
    with pytest.raises(PromotionError, match=r"^--default .*a link can't be created at this path") as refused:
        open_place(Path(path))
    assert str(Path(path)) in str(refused.value)


@pytest.mark.slow
def test_the_last_copies_stay_and_the_rest_goes(artifacts: Path, command: Command) -> None:
    place = Place(artifacts / "default")
    (place.copies / ".x.draft-bundle-1").mkdir(parents=True)
    (place.copies / "mine").mkdir()
    for _ in range(4):
        for name in ("tiny", "other"):
            assert command("promote", name, "--margin", "100") == 0
    kept = {path.name for path in place.copies.iterdir()} - {"mine"}
    served = place.ledger.served()
    assert kept == set(served[-4:]) and len(served) == 8
    assert (place.copies / "mine").is_dir()
    for _ in range(3):
        assert command("rollback") == 0
    with pytest.raises(PromotionError, match="can't go back"):
        command("rollback")


@pytest.mark.slow
def test_two_paths_of_a_folder_are_two_places(artifacts: Path, command: Command) -> None:
    default, staging = Place(artifacts / "default"), Place(artifacts / "staging.1")

    def serve(name: str, place: Place) -> None:
        assert command("promote", name, "--margin", "100", "--default", str(place.default)) == 0

    serve("tiny", staging)
    for name in ("other", "tiny", "other", "tiny", "other", "tiny"):
        serve(name, default)
    assert bundle.load(staging.default).manifest.name == "tiny", "no copy of another place's is swept"
    assert [entry["outcome"] for entry in default.ledger.entries()] == 6 * ["promoted"]
    assert len(staging.ledger.entries()) == 1
    with pytest.raises(PromotionError, match="there is no earlier bundle to go back to"):
        command("rollback", "--default", str(staging.default))
    assert command("rollback", "--default", str(default.default)) == 0
    assert bundle.load(default.default).manifest.name == "other"


@pytest.mark.slow
def test_after_rollbacks_the_one_before_is_never_swept(artifacts: Path, command: Command) -> None:
    for name in ("tiny", "other", "tiny", "other"):
        assert command("promote", name, "--margin", "100") == 0
    assert command("rollback") == command("rollback") == 0
    for _ in range(3):
        assert command("promote", "tiny", "--margin", "100") == 0
        before = Place(artifacts / "default").ledger.served()[-2]
        assert bundle.load(artifacts / "promoted" / before)


def test_a_link_set_by_hand_or_before_a_crash_is_entered(artifacts: Path, command: Command) -> None:
    assert command("promote", "tiny") == 0
    assert command("promote", "other", "--margin", "100") == 0
    place = Place(artifacts / "default")
    first, second = place.ledger.served()
    lines = place.ledger.file.read_text().splitlines(keepends=True)
    place.ledger.file.write_text(lines[0])  # The crash happened between the change of the link and the ledger's line.
    history.recover_lost_line(place)
    entry = place.ledger.entries()[-1]
    assert entry["recovered"] and entry | {"recovered": True} == json.loads(lines[1]) | {"recovered": True}
    assert place.ledger.served() == [first, second]
    place.serve(first)
    history.recover_lost_line(place)
    assert place.ledger.served() == [first]
    history.recover_lost_line(place)
    assert len(place.ledger.entries()) == 3
    shutil.copytree(place.copies / second, place.copies / "by-hand")
    (place.copies / "by-hand" / bundle.REPORT).unlink()
    place.serve("by-hand")
    history.recover_lost_line(place)
    assert place.ledger.served() == [first, "by-hand"]


def test_half_a_line_gives_way_and_a_bad_one_is_named(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "promotions.jsonl")
    ledger.append({"outcome": "promoted", "copy": "a"})
    with ledger.file.open("a") as file:
        file.write('{"outcome": "prom')
    assert ledger.served() == ["a"]
    ledger.append({"outcome": "promoted", "copy": "b"})
    assert ledger.served() == ["a", "b"]
    for bad in ("{", "[]", "{}"):
        whole = ledger.file.read_text()
        ledger.file.write_text(f"{whole}{bad}\n")
        with pytest.raises(PromotionError, match=r"promotions\.jsonl:3"):
            ledger.served()
        ledger.file.write_text(whole)


def test_a_line_survives_power_loss(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ledger, synced = Ledger(tmp_path / "promotions.jsonl"), []
    monkeypatch.setattr(os, "fsync", lambda descriptor: synced.append((opened(descriptor), ledger.served())))
    for copy in ("a", "b"):
        ledger.append({"outcome": "promoted", "copy": copy})
    assert synced == [(ledger.file, ["a"]), (tmp_path, ["a"]), (ledger.file, ["a", "b"])]


@given(st.lists(st.sampled_from(["promote", "refuse", "back"]), max_size=30))
def test_the_ledger_is_a_stack(tmp_path_factory: pytest.TempPathFactory, steps: list[str]) -> None:
    ledger, stack = Ledger(tmp_path_factory.mktemp("ledger") / "promotions.jsonl"), list[str]()
    for number, step in enumerate(steps):
        incumbent = {"copy": stack[-1]} if stack else None
        if step == "promote":
            ledger.append({"outcome": "promoted", "copy": str(number), "incumbent": incumbent})
            stack.append(str(number))
        elif step == "refuse":
            ledger.append({"outcome": "refused", "copy": None, "incumbent": incumbent})
        elif len(stack) > 1:
            stack.pop()
            ledger.append({"outcome": "rolled back", "copy": stack[-1], "incumbent": incumbent})
    assert ledger.served() == stack
