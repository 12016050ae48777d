"""Snapshots: whole, or refused; nothing in one of them decides where anything is written."""

from __future__ import annotations

import errno
import hashlib
import io
import shutil
import tarfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import orjson
import pytest
from backports import zstd

from serving import snapshots as of_snapshots
from serving.corpora import Corpora
from serving.errors import InsufficientStorage, Invalid, NotFound, ServiceError, TooLarge, Unhealthy
from serving.finding import Query, Wanted
from serving.opening import Indexes
from serving.ports import Content, Document
from serving.progress import Progress
from serving.snapshot_manifest import MANIFEST
from serving.snapshots import CONTENT, PIECE, SUFFIX, Snapshots
from serving.stores import STORES

DIM = 4


def content(*names: str) -> Content:
    vectors = np.eye(DIM, dtype=np.float32)[[i % DIM for i in range(len(names))]]
    return Content([Document(name, f"text of {name}", {"n": i}) for i, name in enumerate(names)], vectors, "f")


@pytest.fixture
def corpora(tmp_path: Path) -> Corpora:
    opened = Corpora(STORES["sqlite"](tmp_path / "corpora"), Indexes(tmp_path / "indexes"))
    opened.create("c", description="kept")
    opened.put("c", content("a", "b", "c"))
    return opened


@pytest.fixture
def snapshots(corpora: Corpora, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Snapshots:
    monkeypatch.setattr(of_snapshots, "ANY_RATIO", 1 << 20)  # so that a bomb need not be one of a gigabyte
    return Snapshots(corpora, tmp_path / "snapshots")


def ids(corpora: Corpora, name: str = "c") -> list[str]:
    return [document.id for document in corpora.page(name, 0, 100)[0]]


def hits(corpora: Corpora, row: int, name: str = "c") -> list[str]:
    query = Query(None, np.eye(DIM, dtype=np.float32)[row])
    return [hit.passage.document.id for hit in corpora.search(name, [query], Wanted(k=1)).hits[0]]


def test_there_and_back(corpora: Corpora, snapshots: Snapshots) -> None:
    made = snapshots.create("c", Progress())
    assert (made.corpus, made.documents, made.passages, made.fingerprint) == ("c", 3, 3, "f")
    assert snapshots.listing("c") == [made]
    corpora.delete("c", "a")
    corpora.put("c", content("d"))
    snapshots.restore("c", snapshots.path("c", made.id), Progress())
    assert ids(corpora) == ["a", "b", "c"]
    assert hits(corpora, 0) == ["a"]
    assert corpora.corpus("c")[0].description == "kept"
    assert not corpora.verify("c")


def test_one_that_packs_well_comes_back(
    corpora: Corpora, snapshots: Snapshots, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server's own whatever it packs to; one that is sent if it isn't large."""
    monkeypatch.setattr(of_snapshots, "MAX_RATIO", 1)
    own = snapshots.path("c", snapshots.create("c", Progress()).id)
    sent = Path(shutil.copy(own, tmp_path / "sent"))
    for name, file in (("again", own), ("elsewhere", sent)):
        snapshots.restore(name, file, Progress())
        assert ids(corpora, name) == ["a", "b", "c"]
    monkeypatch.setattr(of_snapshots, "ANY_RATIO", 1000)
    snapshots.restore("c", own, Progress())
    with pytest.raises(TooLarge, match="unpacks to more than 1 times"):
        snapshots.restore("c", sent, Progress())


@pytest.mark.parametrize("left_at", ["snapshots.before-restore", "store.before-adopt"])
def test_what_nobody_wants_any_more_changes_nothing(
    corpora: Corpora, snapshots: Snapshots, monkeypatch: pytest.MonkeyPatch, left_at: str
) -> None:
    """Behind the last look it is too late."""
    made = snapshots.create("c", Progress())
    corpora.put("c", content("d"))
    progress = Progress()

    def reach(place: str) -> None:
        if place == left_at:
            progress.leave()

    for module in ("serving.snapshots", "serving.stores.files"):
        monkeypatch.setattr(f"{module}.reach", reach)
    with pytest.raises(ServiceError, match=r"stopped|stays as it was"):
        snapshots.restore("c", snapshots.path("c", made.id), progress)
    too_late = left_at == "store.before-adopt"
    assert ids(corpora) == (["a", "b", "c"] if too_late else ["a", "b", "c", "d"])
    assert hits(corpora, 2) == ["c"]
    assert not corpora.verify("c")
    assert [one.id for one in snapshots.listing("c")] == [made.id]


@pytest.mark.parametrize("work", ["create", "restore"])
def test_it_stops_in_the_middle_of_a_statement(
    corpora: Corpora, snapshots: Snapshots, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, work: str
) -> None:
    """Which takes minutes of a large corpus."""
    made = snapshots.create("c", Progress())
    monkeypatch.setattr("serving.stores.connections.STEPS", 1)
    progress = Progress()
    looks = iter(range(5))
    monkeypatch.setattr(progress, "left", lambda: next(looks, None) is None)
    with pytest.raises(ServiceError, match=r"stopped|interrupted"):
        if work == "create":
            snapshots.create("c", progress)
        else:
            snapshots.restore("c", snapshots.path("c", made.id), progress)
    assert [one.id for one in snapshots.listing("c")] == [made.id]
    assert list((tmp_path / "snapshots" / "c").iterdir()) == [snapshots.path("c", made.id)]
    corpora.put("c", content("d"))
    assert ids(corpora) == ["a", "b", "c", "d"] and not corpora.verify("c")


def test_into_another_name_and_after_the_corpus_is_gone(corpora: Corpora, snapshots: Snapshots) -> None:
    made = snapshots.create("c", Progress())
    snapshots.restore("copy", snapshots.path("c", made.id), Progress())
    assert ids(corpora, "copy") == ids(corpora, "c")
    corpora.put("copy", content("z"))
    assert ids(corpora) == ["a", "b", "c"]
    corpora.drop("c")
    snapshots.restore("c", snapshots.path("c", made.id), Progress())
    assert hits(corpora, 1) == ["b"]


def test_none_is_found_by_a_path(snapshots: Snapshots) -> None:
    made = snapshots.create("c", Progress())
    for id in ("../c/" + made.id, made.id + "/..", "", made.id[:-1], ".."):
        with pytest.raises(NotFound):
            snapshots.path("c", id)
    snapshots.delete("c", made.id)
    assert snapshots.listing("c") == []
    with pytest.raises(NotFound):
        snapshots.delete("c", made.id)


def test_one_that_goes_at_this_very_moment_is_not_there(snapshots: Snapshots, monkeypatch: pytest.MonkeyPatch) -> None:
    made = snapshots.create("c", Progress())
    snapshots.path("c", made.id).unlink()
    monkeypatch.setattr(Path, "is_file", lambda _: True)  # as whoever looked before saw it
    for work in (snapshots.path, snapshots.opened, snapshots.delete):
        with pytest.raises(NotFound, match="has no snapshot"):
            work("c", made.id)


@pytest.mark.parametrize("work", ["listing", "path", "opened", "delete"])
def test_a_disk_that_fails_is_said(snapshots: Snapshots, monkeypatch: pytest.MonkeyPatch, work: str) -> None:
    made = snapshots.create("c", Progress())

    def fails(*_: object, **__: object) -> None:
        raise OSError(errno.EMFILE, "too many open files")

    for name in ("stat", "open", "unlink"):
        monkeypatch.setattr(Path, name, fails)
    monkeypatch.setattr("serving.snapshots.zstd.open", fails)
    with pytest.raises(Unhealthy, match="too many open files"):
        getattr(snapshots, work)(*(("c",) if work == "listing" else ("c", made.id)))


def archive(*members: tuple[str, bytes] | tarfile.TarInfo) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w|") as tar:
        for member in members:
            if isinstance(member, tarfile.TarInfo):
                tar.addfile(member)
            else:
                described = tarfile.TarInfo(member[0])
                described.size = len(member[1])
                tar.addfile(described, io.BytesIO(member[1]))
    return zstd.compress(out.getvalue())


def manifest(body: bytes, **changed: object) -> bytes:
    content = {"bytes": len(body), "sha256": hashlib.sha256(body).hexdigest()}
    facts = {"format": 1, "corpus": "c", "created": 1.0, "documents": 1, "passages": 1, "fingerprint": "f"}
    return orjson.dumps({**facts, "content": content, **changed})


def link(name: str) -> tarfile.TarInfo:
    member = tarfile.TarInfo(name)
    member.type, member.linkname = tarfile.SYMTYPE, "/etc/passwd"
    return member


BODY = b"not a database" * 100
BOMB = b"\0" * 50_000_000
NEXT, CUT = "its next part must be the file", "no snapshot, or cut short"
BAD: dict[str, tuple[Callable[[bytes], bytes], str]] = {
    "nothing": (lambda _: b"", CUT),
    "no zstd": (lambda _: b"x" * 1000, CUT),
    "no tar": (lambda _: zstd.compress(b"x" * 10_000), CUT),
    "no database": (lambda _: archive((MANIFEST, manifest(BODY)), (CONTENT, BODY)), "not a corpus of this server"),
    "the content first": (lambda body: archive((CONTENT, body), (MANIFEST, manifest(body))), NEXT),
    "another name": (lambda body: archive((MANIFEST, manifest(body)), ("../../corpus.sqlite", body)), NEXT),
    "an absolute name": (lambda body: archive((MANIFEST, manifest(body)), ("/tmp/corpus.sqlite", body)), NEXT),
    "a link": (lambda _: archive((MANIFEST, manifest(b"")), link(CONTENT)), NEXT),
    "a link for the manifest": (lambda body: archive(link(MANIFEST), (CONTENT, body)), NEXT),
    "a third part": (
        lambda body: archive((MANIFEST, manifest(body)), (CONTENT, body), ("more", b"x")),
        "holds more than manifest.json and corpus.sqlite",
    ),
    "zeros without an end": (
        lambda body: archive((MANIFEST, manifest(body)), (CONTENT, body)) + zstd.compress(b"\0" * 2 * PIECE),
        "holds more than manifest.json and corpus.sqlite",
    ),
    "other bytes": (
        lambda body: archive((MANIFEST, manifest(body)), (CONTENT, body.replace(b"text of", b"test of"))),
        "not what its manifest says: damaged",
    ),
    "fewer bytes": (
        lambda body: archive((MANIFEST, manifest(body)), (CONTENT, body[:-1])),
        "not what its manifest says: damaged",
    ),
    "more bytes": (lambda body: archive((MANIFEST, manifest(body)), (CONTENT, body + b"x")), NEXT),
    "no manifest": (lambda body: archive((MANIFEST, b"[]"), (CONTENT, body)), "its 'format' is missing"),
    **{
        f"{count} documents": (
            lambda body, count=count: archive((MANIFEST, manifest(body, documents=count)), (CONTENT, body)),  # type: ignore[misc]
            "its 'documents' is missing or wrong",
        )
        for count in (-5, 2**63, True)
    },
    "half a manifest": (lambda body: archive((MANIFEST, b'{"format": 1}'), (CONTENT, body)), "its 'corpus' is missing"),
    "a later format": (
        lambda body: archive((MANIFEST, manifest(body, format=2)), (CONTENT, body)),
        "of format 2, this version reads 1",
    ),
    "a long manifest": (lambda body: archive((MANIFEST, b" " * 100_000), (CONTENT, body)), NEXT),
    "a bomb": (lambda _: archive((MANIFEST, manifest(BOMB)), (CONTENT, BOMB)), "unpacks to more than 200 times"),
    "a bomb of a header": (
        lambda body: archive(("x" * 5_000_000, b""), (MANIFEST, manifest(body)), (CONTENT, body)),
        NEXT,
    ),
}


@pytest.fixture
def body(corpora: Corpora, tmp_path: Path) -> bytes:
    """A whole corpus, other than `c`."""
    corpora.create("other")
    corpora.put("other", content("x", "y"))
    corpora.copy("other", tmp_path / "copy")
    return (tmp_path / "copy").read_bytes()


def test_what_is_one_by_another_s_hand_is_restored(
    corpora: Corpora, snapshots: Snapshots, tmp_path: Path, body: bytes
) -> None:
    """So that what is wrong below is wrong for that alone."""
    file = tmp_path / "given"
    file.write_bytes(archive((MANIFEST, manifest(body)), (CONTENT, body)))
    snapshots.restore("c", file, Progress())
    assert ids(corpora) == ["x", "y"]


@pytest.mark.parametrize("name", BAD)
def test_what_is_no_snapshot_changes_nothing(
    corpora: Corpora, snapshots: Snapshots, tmp_path: Path, body: bytes, name: str
) -> None:
    make, says = BAD[name]
    file = tmp_path / "given"
    file.write_bytes(make(body))
    before = sorted(path for path in tmp_path.rglob("*") if path.is_file() and "indexes" not in path.parts)
    with pytest.raises((Invalid, TooLarge), match=says):
        snapshots.restore("c", file, Progress())
    assert ids(corpora) == ["a", "b", "c"]
    assert hits(corpora, 2) == ["c"]
    assert before == sorted(path for path in tmp_path.rglob("*") if path.is_file() and "indexes" not in path.parts)


@pytest.mark.parametrize(
    ("described", "says"),
    [
        (b"[]", "its 'format' is missing or wrong"),
        (b"{", "manifest.json is not JSON"),
        (manifest(BODY, format=2), "of format 2, this version reads 1"),
        (manifest(BODY, documents="many"), "its 'documents' is missing or wrong"),
        (manifest(BODY, content={"bytes": 5}), "its 'sha256' is missing or wrong"),
    ],
)
def test_what_is_wrong_with_a_manifest_is_told(
    snapshots: Snapshots, tmp_path: Path, described: bytes, says: str
) -> None:
    file = tmp_path / "given"
    file.write_bytes(archive((MANIFEST, described), (CONTENT, BODY)))
    with pytest.raises(Invalid, match=says):
        snapshots.restore("c", file, Progress())


@pytest.mark.parametrize("at", [0.0, 0.1, 0.5, 0.9, 0.999])
def test_a_damaged_one_is_refused(corpora: Corpora, snapshots: Snapshots, tmp_path: Path, at: float) -> None:
    whole = snapshots.path("c", snapshots.create("c", Progress()).id).read_bytes()
    place = int(at * (len(whole) - 1))
    for damaged in (whole[:place], whole[:place] + bytes([whole[place] ^ 0x40]) + whole[place + 1 :]):
        file = tmp_path / "damaged"
        file.write_bytes(damaged)
        with pytest.raises(Invalid):
            snapshots.restore("c", file, Progress())
        assert ids(corpora) == ["a", "b", "c"]


def test_what_a_kill_left_is_swept(snapshots: Snapshots, tmp_path: Path) -> None:
    made = snapshots.create("c", Progress())
    folder = tmp_path / "snapshots" / "c"
    for left in (".1-2.sqlite", ".1-2.sqlite-wal", f"{made.id}.tar.zst.part"):
        (folder / left).write_bytes(b"half")
    snapshots.sweep()
    assert [path.name for path in folder.iterdir()] == [f"{made.id}.tar.zst"]


def test_one_that_is_damaged_hides_no_other(snapshots: Snapshots, tmp_path: Path) -> None:
    made = snapshots.create("c", Progress())
    (tmp_path / "snapshots" / "c" / f"20200101T000000Z-00000000{SUFFIX}").write_bytes(b"damaged")
    assert snapshots.listing("c") == [made]


@pytest.mark.parametrize("work", ["create", "restore"])
def test_a_full_disk_is_said(
    corpora: Corpora, snapshots: Snapshots, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, work: str
) -> None:
    made = snapshots.path("c", snapshots.create("c", Progress()).id)

    def full(_: str) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(of_snapshots, "reach", full)
    with pytest.raises(InsufficientStorage, match="No space left"):
        snapshots.create("c", Progress()) if work == "create" else snapshots.restore("c", made, Progress())
    assert [path.name for path in (tmp_path / "snapshots" / "c").iterdir()] == [made.name]
    assert ids(corpora) == ["a", "b", "c"]
