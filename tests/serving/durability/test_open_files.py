"""The power goes while corpora are closed and opened all the time: what was acknowledged is there."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys

import pytest

from serving.corpora.stores.connections import OpenFiles
from serving.corpora.stores.corpus_file import Shared
from serving.corpora.stores.sqlite import SqliteStore
from tests.conftest import PATIENCE
from tests.serving.conftest import ROOT
from tests.serving.durability.shim import LOSSES, Disk, Loss

NAMES = ("a", "b", "c")
WRITES = """
import random, sys
from pathlib import Path
from serving.corpora.values import Corpus
from serving.corpora.stores.connections import OpenFiles
from serving.corpora.stores.corpus_file import Shared
from serving.corpora.stores.sqlite import SqliteStore
from tests.serving.corpora.stores.contents import content

store, rng = SqliteStore(Path(sys.argv[1]), shared=Shared(OpenFiles(1))), random.Random(int(sys.argv[2]))
for name in sys.argv[4:]:
    store.create(Corpus(name))
for number in range(int(sys.argv[3]), 10**9):
    name = rng.choice(sys.argv[4:])
    (change,) = store.write(name, [content([(str(number), "text", {})])])
    assert len(change.added) == 1, change
    print(name, number, flush=True)
"""
"""Says of each document that it is kept; never ends by itself."""
FAULTY = """
import errno, os, sys
from pathlib import Path
from serving.errors import ServiceError
from serving.corpora.values import Corpus
from serving.corpora.stores.connections import OpenFiles
from serving.corpora.stores.corpus_file import Shared
from serving.corpora.stores.sqlite import SqliteStore
from tests.serving.corpora.stores.contents import content

fault, names = Path(os.environ["SHIM_FAULT"]), sys.argv[2:]
store = SqliteStore(Path(sys.argv[1]), shared=Shared(OpenFiles(1)))
for name in names:
    store.create(Corpus(name))
    store.write(name, [content([("a", "text", {})])])
fault.write_text(str(errno.ENOSPC))
for name in reversed(names):
    try:
        print(name, store.document(name, "a").text)
    except ServiceError as error:
        print(name, type(error).__name__)
fault.unlink()
for name in names:
    store.write(name, [content([("b", "text", {})])])
    print(name, store.size(name).documents, *store.verify(name))
store.close()
"""
"""Reads all with the disk full, the one used last first; then writes into all."""


@pytest.mark.slow
@pytest.mark.parametrize("loss", LOSSES)
def test_what_was_acknowledged_is_there(disk: Disk, loss: Loss) -> None:
    rng, acknowledged = random.Random(0), set[tuple[str, str]]()
    disk.settle()
    for turn in range(4):
        acknowledged |= written(disk, turn, rng.randint(1, 60))
        disk.lose(loss, rng)
        store = SqliteStore(disk.data, shared=Shared(OpenFiles(1)))
        found = {(name, document.id) for name in NAMES for _, document in store.page(name, 0, 10**6).rows}
        wrong = [line for name in NAMES for line in store.verify(name)]
        store.close()
        assert not wrong and not acknowledged - found
        disk.settle()


def written(disk: Disk, turn: int, documents: int) -> set[tuple[str, str]]:
    """What a process had acknowledged when it was killed, so many and those on their way."""
    command = [sys.executable, "-c", WRITES, str(disk.data), str(turn), str(turn * 10_000), *NAMES]
    environment = {**os.environ, **disk.environment}
    with subprocess.Popen(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout
        lines = [process.stdout.readline() for _ in range(documents)]
        process.send_signal(signal.SIGKILL)
        lines += process.stdout.readlines()
        process.wait(PATIENCE)
    whole = [line.split() for line in lines if line.endswith("\n")]
    assert len(whole) >= documents
    return {(name, number) for name, number in whole}


@pytest.mark.slow
def test_while_the_disk_is_full_what_is_open_is_read_and_afterwards_all(disk: Disk) -> None:
    disk.settle()
    command = [sys.executable, "-c", FAULTY, str(disk.data), *NAMES]
    environment = {**os.environ, **disk.environment}
    said = subprocess.run(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True, check=True).stdout
    meanwhile, afterwards = said.splitlines()[:3], said.splitlines()[3:]
    assert meanwhile == ["c text", "b Unhealthy", "a Unhealthy"]
    assert afterwards == ["a 2", "b 2", "c 2"]
