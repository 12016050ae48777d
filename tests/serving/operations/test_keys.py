"""Tests of the file of keys, the command that writes it, and the server that reads it again."""

from __future__ import annotations

import errno
import json
import stat
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from serving.commands.keys import keys
from serving.errors import Overloaded, Unhealthy
from serving.operations.keys import Key, KeysError, UnreadableError, changed_keys, digest, new_secret, read_keys
from serving.operations.limits import LOOK_AGAIN, Caller, Keyring, Limits
from serving.settings import SettingsError, read_settings
from tests.serving.conftest import ROOT
from tests.serving.syncing import noted


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "keys.json"


def add(file: Path, capsys: pytest.CaptureFixture[str], name: str, *options: str) -> str:
    assert keys(["add", name, "--api-keys-file", str(file), *options]) == 0
    return capsys.readouterr().out.strip()


def test_a_key_is_shown_once_and_only_its_hash_is_kept(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    limits = (
        "--concurrency",
        "4",
        "--threads",
        "2",
        "--disk-bytes",
        "5000000000",
        "--unread-bytes",
        "9000",
        "--jobs",
        "7",
    )
    secret = add(file, capsys, "search", "--scopes", "read,write", "--corpora", "docs-*,faq", *limits)
    assert len(secret) >= 43, "256 bits"
    assert secret not in file.read_text()
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    (key,) = read_keys(file)
    unread = Caller(key, Limits(unread_bytes=10)).unread
    assert unread and unread.limit == 9000
    assert (key.sha256, key.scopes, key.corpora) == (digest(secret), ("read", "write"), ("docs-*", "faq"))
    assert keys(["list", "--api-keys-file", str(file)]) == 0
    listed = capsys.readouterr().out
    limited = "4 at once, 2 threads, 5000000000 bytes on disk, 9000 bytes unread, 7 jobs"
    assert f"search read,write docs-*,faq {limited}" in listed
    assert secret not in listed and key.sha256 not in listed


@pytest.mark.parametrize(("corpora", "says"), [(None, "*"), ((), "-")])
def test_every_corpus_and_none_are_listed_apart(
    file: Path, capsys: pytest.CaptureFixture[str], corpora: tuple[str, ...] | None, says: str
) -> None:
    key = Key(name="a", sha256="0" * 64, scopes=("read",), corpora=corpora)
    file.write_text(json.dumps({"format": 1, "keys": [key.model_dump(exclude_none=True)]}))
    assert keys(["list", "--api-keys-file", str(file)]) == 0
    assert capsys.readouterr().out.split() == ["a", "read", says, "-"]
    assert key.sees("docs") == (corpora is None)


def test_blanks_around_a_pattern_are_none_of_it(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    add(file, capsys, "search", "--corpora", " docs-*, faq ")
    (key,) = read_keys(file)
    assert key.corpora == ("docs-*", "faq")
    assert [key.sees(name) for name in ("faq", "docs-1", "docs", "other")] == [True, True, False, False]


def test_secrets_differ() -> None:
    assert len({new_secret() for _ in range(100)}) == 100


def test_revoked_is_gone_and_others_stay(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    add(file, capsys, "a")
    add(file, capsys, "b")
    assert keys(["revoke", "a", "--api-keys-file", str(file)]) == 0
    assert [key.name for key in read_keys(file)] == ["b"]
    assert list(file.parent.iterdir()) == [file], "nothing is left behind"


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["add", "a"], "has a key 'a'"),
        (["add", "b", "--scopes", "root"], "scopes: "),
        (["add", "b", "--concurrency", "0"], "concurrency: "),
        (["add", "b", "--threads", "0"], "threads: "),
        (["add", "b", "--tokens-per-second", "nan"], "tokens-per-second: "),
        (["add", "../b"], "name: "),
        (["add", "b", "--corpora", ""], "corpora: "),
        (["add", "b", "--corpora", "docs-*, ,faq"], "corpora: "),
        (["revoke", "b"], "no key 'b'"),
    ],
)
def test_what_is_refused_leaves_the_file_alone(
    file: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], says: str
) -> None:
    add(file, capsys, "a")
    before = file.read_bytes()
    assert keys([*arguments, "--api-keys-file", str(file)]) == 2
    refused = capsys.readouterr()
    assert says in refused.err and refused.err.count("\n") == 1 and refused.out == ""
    assert file.read_bytes() == before


def test_the_file_must_be_named(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ISOSPHERE_API_KEYS_FILE", raising=False)
    assert keys(["list"]) == 2
    assert "ISOSPHERE_API_KEYS_FILE" in capsys.readouterr().err


def test_the_command_is_there(file: Path) -> None:
    ran = subprocess.run(
        [sys.executable, "-m", "serving", "keys", "add", "a"],
        cwd=ROOT,
        env={"ISOSPHERE_API_KEYS_FILE": str(file)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert [key.sha256 for key in read_keys(file)] == [digest(ran.stdout.strip())]


def test_writers_at_once_lose_nothing(file: Path) -> None:
    def one(i: int) -> None:
        with changed_keys(file) as kept:
            kept.append(Key(name=f"key-{i}", sha256=digest(str(i)), scopes=("read",)))

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(one, range(40)))
    assert {key.name for key in read_keys(file)} == {f"key-{i}" for i in range(40)}


def test_a_failed_change_changes_nothing(file: Path) -> None:
    with changed_keys(file) as kept:
        kept.append(Key(name="a", sha256=digest("a"), scopes=("read",)))
    with pytest.raises(RuntimeError), changed_keys(file) as kept:
        kept.clear()
        raise RuntimeError
    assert [key.name for key in read_keys(file)] == ["a"]


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("", "the file: "),
        ("[]", "the file: "),
        ('{"format": 2, "keys": []}', "format: "),
        ('{"format": 1, "keys": [{"name": "a", "sha256": "00", "scopes": ["read"]}]}', "keys.0.sha256: "),
        ('{"format": 1, "keys": [{"name": "a", "sha256": "%s", "scopes": []}]}' % ("0" * 64), "keys.0.scopes: "),
        ('{"format": 1, "keys": [{"name": "a", "sha256": "%s", "scope": "read"}]}' % ("0" * 64), "keys.0.scope"),
    ],
)
def test_a_bad_file_is_named_with_the_field(file: Path, content: str, says: str) -> None:
    file.write_text(content)
    with pytest.raises(KeysError) as refused:
        read_keys(file)
    assert str(refused.value).startswith(f"{file}: {says}")


def test_a_file_that_cannot_be_read_is_named(file: Path) -> None:
    with pytest.raises(UnreadableError) as refused:
        read_keys(file)
    assert str(refused.value).startswith(f"{file}: ")


def test_a_name_is_given_once(file: Path) -> None:
    key = {"name": "a", "sha256": "0" * 64, "scopes": ["read"]}
    file.write_text(json.dumps({"format": 1, "keys": [key, key | {"sha256": "1" * 64}]}))
    with pytest.raises(KeysError, match="two keys have the name 'a'"):
        read_keys(file)


def test_a_hash_is_given_once(file: Path) -> None:
    """Refuse a repeated hash, because one key would get the scopes of another entry."""
    key = {"name": "a", "sha256": "0" * 64, "scopes": ["read"]}
    file.write_text(json.dumps({"format": 1, "keys": [key, key | {"name": "b", "scopes": ["admin"]}]}))
    with pytest.raises(KeysError, match="'a' and 'b' are the same key"):
        read_keys(file)


@pytest.mark.parametrize("rate", ["requests_per_second", "tokens_per_second"])
@pytest.mark.parametrize("value", [0, -1, 1e-320, 9e-7])
def test_a_rate_that_no_clock_can_count_is_refused(file: Path, rate: str, value: float) -> None:
    key = {"name": "a", "sha256": "0" * 64, "scopes": ["read"], rate: value}
    file.write_text(json.dumps({"format": 1, "keys": [key]}))
    with pytest.raises(KeysError, match=f"keys.0.{rate}: "):
        read_keys(file)
    with pytest.raises(SettingsError, match="greater than or equal"):
        read_settings([f"--key-{rate.replace('_', '-')}", str(value)])


def test_the_smallest_rate_works(file: Path) -> None:
    write(file, "a", requests_per_second=1e-6, tokens_per_second=1e-6)
    caller = Keyring(file, Limits()).find("a")
    assert caller
    with caller.admitted():
        caller.charge(300_000)
    with pytest.raises(Overloaded, match="1e-06 requests per second"), caller.admitted():
        pass


def test_the_owner_stays_when_another_user_changes_the_file(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep the owner when root revokes a key, because the server's user must still be able to read the file."""
    write(file, "a", "b")
    owner, given = file.stat(), list[tuple[int, int, int]]()

    def give(new: Path, user: int, group: int) -> None:
        given.append((new.stat().st_ino, user, group))

    monkeypatch.setattr("serving.operations.keys.os.chown", give)
    write(file, "a", "b")
    assert given == [], "who owns it need not be allowed to give anything away"
    monkeypatch.setattr("serving.operations.keys.os.geteuid", lambda: owner.st_uid + 1)
    write(file, "a")
    assert given == [(file.stat().st_ino, owner.st_uid, owner.st_gid)]
    assert [key.name for key in read_keys(file)] == ["a"]


@pytest.mark.parametrize("step", ["fsync", "chown", "replace"])
def test_a_failed_write_leaves_the_file_and_nothing_else(
    file: Path, step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(file, "a")

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("serving.operations.keys.os.geteuid", lambda: file.stat().st_uid + (step == "chown"))
    monkeypatch.setattr(f"serving.operations.keys.{'Path' if step == 'replace' else 'os'}.{step}", full)
    with pytest.raises(KeysError, match="No space left"):
        write(file, "b")
    assert list(file.parent.iterdir()) == [file]
    assert [key.name for key in read_keys(file)] == ["a"]


def test_a_change_survives_power_loss(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    steps = noted(monkeypatch)
    write(file, "a")
    _, beside = steps[0]
    assert beside.parent == file.parent and beside != file, "only on the same disk is it one step"
    assert steps == [("synced", beside), ("moved", beside), ("synced", file.parent)]


class Clock:
    def __init__(self) -> None:
        self.now = 0

    def __call__(self) -> int:
        return self.now


def write(file: Path, *secrets: str, **limits: Any) -> None:
    with changed_keys(file) as kept:
        kept[:] = [Key(name=one, sha256=digest(one), scopes=("read",), **limits) for one in secrets]


def test_the_ring_reads_the_file_again_when_it_changed(file: Path) -> None:
    clock = Clock()
    write(file, "old")
    ring = Keyring(file, Limits(), clock)
    assert ring.find("old") and not ring.find("new") and not ring.find("")
    write(file, "new")
    clock.now += LOOK_AGAIN - 1
    assert ring.find("old"), "it does not look at the disk for every request"
    clock.now += 1
    assert ring.find("new") and not ring.find("old")


@pytest.mark.parametrize("broken", ["", "gone"])
def test_a_file_that_broke_leaves_the_keys_and_is_logged(
    file: Path, broken: str, caplog: pytest.LogCaptureFixture
) -> None:
    clock = Clock()
    write(file, "a")
    ring = Keyring(file, Limits(), clock)
    if broken == "gone":
        file.unlink()
    else:
        file.write_text(broken)
    for _ in range(3):
        clock.now += LOOK_AGAIN
        assert ring.find("a") and not ring.find("b")
    assert [record.getMessage().startswith("the old keys stay valid") for record in caplog.records] == [True]
    file.unlink(missing_ok=True)
    write(file, "b")
    clock.now += LOOK_AGAIN
    assert ring.find("b") and not ring.find("a")


def test_a_failed_reading_is_tried_again_and_after_a_time_nobody_is_let_in(
    file: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    clock = Clock()
    write(file, "old")
    ring = Keyring(file, Limits(), clock, grace=5)
    write(file, "new")  # The other key is revoked.

    def fail(path: Path) -> bytes:
        raise OSError(errno.EMFILE, "Too many open files")

    with monkeypatch.context() as patched:
        patched.setattr(Path, "read_bytes", fail)
        for _ in range(5):
            clock.now += LOOK_AGAIN
            assert ring.find("old"), "what fails for a moment locks nobody out"
        assert "the old keys stay valid for 5 s" in caplog.text
        clock.now += LOOK_AGAIN
        with pytest.raises(Unhealthy, match="the file of keys can't be read") as refused:
            ring.find("old")
        assert refused.value.retry_after == 1
    clock.now += LOOK_AGAIN
    assert ring.find("new") and not ring.find("old")


def test_a_file_that_changed_while_nobody_could_read_it_lets_nobody_in_at_once(file: Path) -> None:
    """Refuse all keys if the file changed while it was unreadable, because a known key may have been revoked."""
    clock = Clock()
    write(file, "a")
    ring = Keyring(file, Limits(), clock, grace=5)
    file.unlink()
    clock.now += 3600 * LOOK_AGAIN
    with pytest.raises(Unhealthy):
        ring.find("a")


def test_a_ring_needs_its_file(file: Path) -> None:
    with pytest.raises(KeysError, match="No such file"):
        Keyring(file, Limits())


def test_a_key_that_did_not_change_keeps_what_it_took(file: Path) -> None:
    clock = Clock()
    write(file, "a", concurrency=1)
    ring = Keyring(file, Limits(), clock)
    caller = ring.find("a")
    write(file, "a", "b", concurrency=1)
    clock.now += LOOK_AGAIN
    assert ring.find("a") is caller


def test_a_key_whose_limits_change_keeps_what_it_took(file: Path) -> None:
    clock = Clock()
    write(file, "a", concurrency=1, tokens_per_second=10)
    ring = Keyring(file, Limits(), clock)
    caller = ring.find("a")
    assert caller
    caller.charge(60)  # Five seconds of requests are owed.
    with caller.admitted():
        write(file, "a", concurrency=2, tokens_per_second=50)
        clock.now += LOOK_AGAIN
        again = ring.find("a")
        assert again
        refusal = pytest.raises(Overloaded, match="2 requests of the key 'a' are running")
        with again.admitted(), refusal, again.admitted():
            pass
    with pytest.raises(Overloaded) as refused:
        again.charge(1)
    assert refused.value.retry_after == pytest.approx(0.82), "what is still owed, by the new rate"
