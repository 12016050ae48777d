"""The disk that loses what was not synced: it loses that, and nothing else."""

from __future__ import annotations

import os
import random
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.serving.durability.shim import LOSSES, Disk, Loss, mixed

ROWS = """
import sqlite3, sys
connection = sqlite3.connect(sys.argv[1] + "/rows.sqlite", isolation_level=None)
connection.execute("PRAGMA journal_mode = WAL")
connection.execute("PRAGMA synchronous = " + sys.argv[2])
connection.execute("CREATE TABLE IF NOT EXISTS rows (n INTEGER PRIMARY KEY, text TEXT)")
first = connection.execute("SELECT coalesce(max(n), 0) FROM rows").fetchone()[0]
print(*[n for (n,) in connection.execute("SELECT n FROM rows")], flush=True)
for n in range(first + 1, first + 60):
    connection.execute("INSERT INTO rows VALUES (?, ?)", (n, "x" * 500))
    print(n, flush=True)
import os, signal
os.kill(os.getpid(), signal.SIGKILL)
"""
"""Prints the rows that it finds, then each that it has committed; then it is killed."""
FILES = """
import os, sys
root = sys.argv[1]
def make(path, text, sync):
    with open(os.path.join(root, path), "w") as file:
        file.write(text); file.flush()
        if sync: os.fsync(file.fileno())
def sync(folder):
    descriptor = os.open(os.path.join(root, folder), os.O_RDONLY); os.fsync(descriptor); os.close(descriptor)
make("synced", "synced", True); make("not", "not synced", False)
os.mkdir(root + "/folder"); make("folder/inner", "inner", True); sync("folder"); sync(".")
make("unnamed", "synced, its name is not", True); os.remove(root + "/old"); make("kept.new", "new", True)
os.replace(root + "/kept.new", root + "/kept")
os.mkdir(root + "/another"); make("another/inner", "inner", True); sync("another")
"""
REUSED = """
import os, shutil, sys
root = sys.argv[1]
def make(path, text):
    with open(os.path.join(root, path), "w") as file:
        file.write(text); file.flush(); os.fsync(file.fileno())
def sync(folder):
    descriptor = os.open(os.path.join(root, folder), os.O_RDONLY); os.fsync(descriptor); os.close(descriptor)
os.mkdir(root + "/folder"); make("folder/inner", "inner"); sync("folder")
with open(root + "/empty", "w") as file: file.write("never synced")
sync(".")
try: os.rmdir(root + "/folder"); print(1)
except OSError: pass
shutil.rmtree(root + "/folder"); os.remove(root + "/empty")
for n in range(50):
    make(f"other{n}", "other"); os.mkdir(root + f"/others{n}"); make(f"others{n}/inner", "other"); sync(f"others{n}")
"""
"""What was durable is removed, and much is made that the file system may give its numbers to."""


def run(disk: Disk, script: str, *arguments: str) -> list[list[int]]:
    environment = {**os.environ, **disk.environment}
    done = subprocess.run(
        [sys.executable, "-c", script, str(disk.data), *arguments],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert not done.stderr, done.stderr
    return [[int(n) for n in line.split()] for line in done.stdout.splitlines()]


def lost_rows(disk: Disk, synchronous: str, loss: Loss) -> int:
    """How many committed rows are gone, over three times that the power goes."""
    rng, committed, lost = random.Random(0), set[int](), 0
    disk.settle()
    for _ in range(3):
        found, *new = run(disk, ROWS, synchronous)
        lost += len(committed - set(found))
        committed = set(found) | {n for (n,) in new}
        disk.lose(loss, rng)
    return lost


@pytest.mark.parametrize("loss", LOSSES)
def test_what_sqlite_synced_is_there(disk: Disk, loss: Loss) -> None:
    assert lost_rows(disk, "FULL", loss) == 0


def test_what_sqlite_did_not_sync_is_lost(disk: Disk) -> None:
    assert lost_rows(disk, "OFF", "all") > 50


def test_only_synced_bytes_under_synced_names_are_left(disk: Disk) -> None:
    (disk.data / "old").write_text("old")
    (disk.data / "kept").write_text("kept")
    disk.settle()
    run(disk, FILES)
    disk.lose("all", random.Random(0))
    left = {str(path.relative_to(disk.data)): path.read_text() for path in disk.data.rglob("*") if path.is_file()}
    assert left == {"synced": "synced", "not": "", "folder/inner": "inner", "old": "old", "kept": "kept"}


def test_of_names_that_were_not_synced_any_may_be_left(disk: Disk) -> None:
    seen = set()
    for seed in range(8):
        (disk.data / "kept").write_text("kept")
        disk.settle()
        (disk.data / "old").touch()
        run(disk, FILES)
        disk.lose("pages", random.Random(seed))
        seen.add((disk.data / "kept").read_text())
        assert (disk.data / "synced").read_text() == "synced"
        for path in list(disk.data.rglob("*"))[::-1]:
            path.unlink() if path.is_file() else path.rmdir()
    assert seen == {"kept", "new"}


def test_while_it_fails_nothing_is_written_and_all_is_read(disk: Disk) -> None:
    (disk.data / "kept").write_text("kept")
    disk.settle()
    disk.fault.write_text("28")
    script = (
        "import os, sys; os.chdir(sys.argv[1]); print(len(open('kept').read()))\n"
        "for act in (lambda: open('new', 'w'), "
        "lambda: os.write(os.open('kept', os.O_WRONLY), b'x'), lambda: os.mkdir('f')):\n"
        "    try: act()\n"
        "    except OSError as error: print(error.errno)\n"
    )
    assert run(disk, script) == [[4], [28], [28], [28]]
    assert (disk.data / "kept").read_text() == "kept"
    assert not (disk.data / "new").exists()


@given(st.binary(max_size=3000), st.binary(max_size=3000), st.sampled_from(LOSSES[1:]), st.integers())
def test_a_mixed_file_has_each_byte_from_one_of_both(durable: bytes, now: bytes, loss: Loss, seed: int) -> None:
    made = mixed(durable, now, loss, random.Random(seed))
    assert min(len(durable), len(now)) <= len(made) <= max(len(durable), len(now))
    for i, byte in enumerate(made):
        assert byte in {*durable[i : i + 1], *now[i : i + 1], *(b"\0" if i >= min(len(durable), len(now)) else b"")}
    assert mixed(now, now, loss, random.Random(seed)) == now


def test_what_comes_later_under_the_same_number_is_not_taken_for_what_was_removed(disk: Disk) -> None:
    disk.settle()
    assert run(disk, REUSED) == [], "a folder with something in it can't be removed"
    disk.lose("all", random.Random(0))
    files = {path.name: path.read_text() for path in disk.data.rglob("*") if path.is_file()}
    assert files == {"inner": "inner", "empty": ""}
    assert (disk.data / "folder" / "inner").exists()
