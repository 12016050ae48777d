"""Disk faults: a disk that is full, fails or is read-only, and a process without free file descriptors."""

from __future__ import annotations

import errno
import resource
import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from benchmarks.stress.trial import Bound
from tests.serving.durability.history import Outcome, nothing_wrong
from tests.serving.durability.server import ROOT, Home, NotReadyError, Server, home
from tests.serving.durability.shim import Disk, NoCompilerError, compiled
from tests.serving.durability.traffic import Traffic

FAULTS = {errno.ENOSPC: 507, errno.EIO: 503, errno.EROFS: 503}
"""Expected status of a write, by errno."""
WRITERS, READERS = 3, 2
SMALL_MB = 24
"""Megabytes of the disk that is filled."""


@dataclass(frozen=True)
class Fault:
    """A fault that is active inside `begun`, with the expected status of writes."""

    name: str
    status: int
    begun: Callable[[], AbstractContextManager[None]]


def disk(folder: Path, seconds: int) -> Outcome:
    """Run each fault for some seconds.

    Writes are refused with 507 or 503, reads continue, and a restart finds everything.
    """
    outcomes = [*_failing(folder, seconds), Outcome(_too_many_files(folder / "files"))]
    if holder := _own_disk(folder / "small"):
        try:
            outcomes.append(_through(_small(folder, holder), _full(folder, holder), seconds))
            outcomes.append(Outcome(_read_only(_small(folder, holder))))
        finally:
            holder.kill()
            holder.wait()
    else:
        outcomes.append(Outcome([], {"no full disk": "mounts are not permitted here"}))
    details = {name: more for outcome in outcomes for name, more in outcome.details.items()}
    return Outcome([bound for outcome in outcomes for bound in outcome.bounds], details)


def _failing(folder: Path, seconds: int) -> Iterator[Outcome]:
    """Make every write to the folder fail with an errno."""
    try:
        library = compiled(folder)
    except NoCompilerError as error:
        yield Outcome([], {"no failing disk": str(error)})
        return
    for number, status in FAULTS.items():
        at = home(folder / errno.errorcode[number])
        shim = Disk(library, at.data, at.folder / "shadow")
        shim.settle()
        at.environment = {**shim.environment, "SHIM_SHADOW": ""}

        @contextmanager
        def begun(file: Path = shim.fault, number: int = number) -> Iterator[None]:
            file.write_text(str(number))
            yield
            file.unlink()

        yield _through(at, Fault(errno.errorcode[number], status, begun), seconds)


def _full(folder: Path, holder: subprocess.Popen[bytes]) -> Fault:
    """Fill the small disk completely."""
    ballast = Path(f"/proc/{holder.pid}/root", *_small(folder, holder).data.parts[1:], "ballast")

    @contextmanager
    def begun() -> Iterator[None]:
        with ballast.open("wb", buffering=0) as file, suppress(OSError):
            while True:
                file.write(bytes(1 << 12))
        yield
        ballast.unlink()

    return Fault("a full disk", 507, begun)


def _through(at: Home, fault: Fault, seconds: int) -> Outcome:
    """Run traffic before, during and after a fault in one process, and check the state in the next process."""
    traffic = Traffic.of(WRITERS)
    with at.server() as server:
        traffic.check(server)
        traffic.run(server, READERS, seconds / 2)
        before = traffic.statuses.copy()
        with fault.begun():
            traffic.run(server, READERS, seconds)
            during = traffic.since(before)
        before = traffic.statuses.copy()
        traffic.run(server, READERS, seconds / 2)
        after = traffic.since(before)
        died = int(server.process.poll() is not None)
    with at.server() as server:
        traffic.check(server)
    expected = {"write 200", "write 204", "read 200"}
    bounds = [
        Bound("exits", died, 0),
        Bound(f"writes refused with {fault.status}", during.get(f"write {fault.status}", 0), 1, at_least=True),
        Bound("reads that went on", during.get("read 200", 0), 1, at_least=True),
        Bound("other answers", _other(during, expected | {f"write {fault.status}"}), 0),
        Bound("writes once it was over", after.get("write 200", 0), 1, at_least=True),
        Bound("refused once it was over", _other(after, expected), 0),
        *nothing_wrong(traffic.verdict),
    ]
    named = [bound._replace(what=f"{fault.name}: {bound.what}") for bound in bounds]
    return Outcome(named, {fault.name: {"during": during, "after": after, **traffic.report()}})


def _other(answers: dict[str, int], expected: set[str]) -> int:
    return sum(n for answer, n in answers.items() if answer not in expected)


def _too_many_files(folder: Path) -> list[Bound]:
    """Check that existing connections work without free descriptors, and that new files are refused meanwhile."""
    with home(folder).server() as server, server.client() as client:
        client.put("/corpora/c").raise_for_status()
        document = {"documents": [{"id": "a", "text": "a river"}]}
        client.post("/corpora/c/documents", json=document).raise_for_status()
        search = {"query": "river"}
        client.post("/corpora/c/search", json=search).raise_for_status()
        with _no_more_files(server):
            refused = client.put("/corpora/d").status_code
            found = client.post("/corpora/c/search", json=search).status_code
        again = client.put("/corpora/d").status_code
        return [
            Bound(f"EMFILE: not 503 but {refused} for what needs a file", int(refused != 503), 0),
            Bound(f"EMFILE: not 200 but {found} for a search", int(found != 200), 0),
            Bound(f"EMFILE: not 201 but {again} once there is room", int(again != 201), 0),
        ]


@contextmanager
def _no_more_files(server: Server) -> Iterator[None]:
    pid = server.process.pid
    used = {int(one.name) for one in Path(f"/proc/{pid}/fd").iterdir()}
    lowest = next(number for number in range(len(used) + 1) if number not in used)
    limits = resource.prlimit(pid, resource.RLIMIT_NOFILE)
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (lowest, limits[1]))
    try:
        yield
    finally:
        resource.prlimit(pid, resource.RLIMIT_NOFILE, limits)


def _read_only(at: Home) -> list[Bound]:
    """Check that a server on a read-only disk reads and refuses writes, or refuses to start and names the folder."""
    subprocess.run([*at.prefix, "mount", "-o", "remount,ro", str(at.data)], check=True)
    try:
        with at.server() as server, server.client() as client:
            found = client.post("/corpora/c/search", json={"query": "river"}).status_code
            told = client.post("/corpora/c/documents", json={"documents": [{"text": "a"}]}).status_code
    except NotReadyError as error:
        return [Bound("read-only: refused without naming the folder", int(str(at.data) not in str(error)), 0)]
    return [
        Bound(f"read-only: not 200 but {found} for a search", int(found != 200), 0),
        Bound(f"read-only: not 503 but {told} for a write", int(told != 503), 0),
    ]


def _own_disk(folder: Path) -> subprocess.Popen[bytes] | None:
    """Start a process that sees a small disk at `folder`/data. Return None if mounts are not permitted."""
    if not (shutil.which("unshare") and shutil.which("nsenter")):
        return None
    data = folder / "data"
    data.mkdir(parents=True)
    mount = f"mount -t tmpfs -o size={SMALL_MB}m none '{data}' && echo there && exec sleep 1000000"
    holder = subprocess.Popen(
        ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c", mount],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    assert holder.stdout is not None
    with holder.stdout as said:
        if said.readline() == b"there\n":
            return holder
    holder.wait()
    return None


def _small(folder: Path, holder: subprocess.Popen[bytes]) -> Home:
    return Home(folder / "small", prefix=_within(holder))


def _within(holder: subprocess.Popen[bytes]) -> tuple[str, ...]:
    return ("nsenter", "--preserve-credentials", "--user", "--mount", "--target", str(holder.pid), f"--wd={ROOT}")
