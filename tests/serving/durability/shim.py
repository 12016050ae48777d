"""A disk that loses unsynced data, or that fails: `shim.c` between a process and its data folder.

Data are durable once the shim has seen a sync. `Disk.lose` turns the folder into a possible state after a power loss.
Each file has its durable bytes, with none, some or most of the later ones. Each folder has its durable names, with
none, some or all of the later changes.
"""

from __future__ import annotations

import os
import random
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple

SOURCE = Path(__file__).with_suffix(".c")
Loss = Literal["all", "tail", "sectors", "pages"]
LOSSES: tuple[Loss, ...] = ("all", "tail", "sectors", "pages")
"""Kinds of loss of unsynced bytes: all, those behind a random offset, random blocks of 512 bytes, of 4 KB."""
_BLOCKS = {"sectors": 512, "pages": 4096}


class NoCompilerError(RuntimeError):
    """The shim is C, and there is no compiler."""


class Entry(NamedTuple):
    """The target of a name in a folder."""

    kind: str
    """Kind: d for a folder, f for a file."""
    inode: int


Entries = Mapping[str, Entry]


def compiled(folder: Path) -> Path:
    """Compile the shim as a library.

    Raises:
        NoCompilerError: there is no `cc`.
    """
    if (cc := shutil.which("cc")) is None:
        raise NoCompilerError("no cc on the path: the shim can't be compiled")
    library = folder / "shim.so"
    subprocess.run([cc, "-O2", "-shared", "-fPIC", "-o", library, SOURCE, "-ldl"], check=True)
    return library


@dataclass
class Disk:
    """The simulated disk of the folder `data`. `shadow` is on the same file system and stores the durable state."""

    library: Path
    data: Path
    shadow: Path

    @property
    def fault(self) -> Path:
        """Return a file. While it contains an errno, every write fails with that error."""
        return self.shadow / "fault"

    @property
    def environment(self) -> dict[str, str]:
        """Return the environment of a process that uses this disk."""
        return {
            "LD_PRELOAD": str(self.library),
            "SHIM_ROOT": str(self.data.resolve()),
            "SHIM_SHADOW": str(self.shadow.resolve()),
            "SHIM_FAULT": str(self.fault.resolve()),
        }

    def settle(self) -> None:
        """Make the folder's current content durable. Call it before each start of a process."""
        shutil.rmtree(self.shadow, ignore_errors=True)
        for part in ("content", "kept", "entries"):
            (self.shadow / part).mkdir(parents=True)
        for folder, _, files in os.walk(self.data):
            where = Path(folder)
            lines = [f"{kind} {inode} {name}\n" for name, (kind, inode) in _present(where).items()]
            (self.shadow / "entries" / str(where.stat().st_ino)).write_text("".join(lines))
            for name in files:
                inode = str((where / name).stat().st_ino)
                os.link(where / name, self.shadow / "kept" / inode)
                shutil.copyfile(where / name, self.shadow / "content" / inode)

    def lose(self, loss: Loss, rng: random.Random) -> None:
        """Simulate a power loss: replace the folder by a possible content of the disk, and reset the shadow."""
        inodes: dict[int, Path] = {}
        for folder, _, files in os.walk(self.data):
            inodes.update(
                (path.stat().st_ino, path) for path in (Path(folder), *(Path(folder, name) for name in files))
            )
        image = self.data.with_name("image")
        self._restore(self.data.stat().st_ino, image, inodes, loss, rng)
        shutil.rmtree(self.data)
        image.rename(self.data)
        self.settle()

    def _restore(self, inode: int, to: Path, present: Mapping[int, Path], loss: Loss, rng: random.Random) -> None:
        to.mkdir()
        durable = self._entries(inode)
        now = _present(present[inode]) if inode in present else {}
        for name in durable.keys() | now.keys():
            entry = durable.get(name)
            if loss != "all" and now.get(name) != entry and rng.random() < 0.5:
                entry = now.get(name)
            if entry is not None and entry.kind == "d":
                self._restore(entry.inode, to / name, present, loss, rng)
            elif entry is not None:
                (to / name).write_bytes(self._bytes(entry.inode, present, loss, rng))

    def _entries(self, inode: int) -> Entries:
        kept = self.shadow / "entries" / str(inode)
        lines = kept.read_text().splitlines() if kept.exists() else []
        parts = (line.split(" ", 2) for line in lines)
        return {name: Entry(kind, int(number)) for kind, number, name in parts}

    def _bytes(self, inode: int, present: Mapping[int, Path], loss: Loss, rng: random.Random) -> bytes:
        content, kept = self.shadow / "content" / str(inode), self.shadow / "kept" / str(inode)
        durable = content.read_bytes() if content.exists() else b""
        if loss == "all":
            return durable
        here = kept if kept.exists() else present.get(inode)
        return mixed(durable, here.read_bytes() if here else durable, loss, rng)


def mixed(durable: bytes, now: bytes, loss: Loss, rng: random.Random) -> bytes:
    """Return a file in which some of the bytes since the last sync are lost."""
    if durable == now:
        return durable
    shortest, longest = sorted((len(durable), len(now)))
    if loss == "tail":
        start = next((i for i, (a, b) in enumerate(zip(durable, now, strict=False)) if a != b), shortest)
        cut = rng.randint(start, len(now)) if start < len(now) else len(now)
        return now if cut == len(now) and rng.random() < 0.5 else now[:cut] + durable[cut:]
    size, block = rng.choice((shortest, longest, rng.randint(shortest, longest))), _BLOCKS[loss]
    sources = [source.ljust(longest, b"\0") for source in (durable, now)]
    blocks = (rng.choice(sources)[at : at + block] for at in range(0, longest, block))
    return b"".join(blocks)[:size]


def _present(folder: Path) -> Entries:
    with os.scandir(folder) as entries:
        return {one.name: Entry("d" if one.is_dir() else "f", one.inode()) for one in entries}
