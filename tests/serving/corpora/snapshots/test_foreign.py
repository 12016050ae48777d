"""Snapshots by another's hand: nothing in one decides where anything is written, and what is none changes nothing."""

from __future__ import annotations

import hashlib
import io
import tarfile
from collections.abc import Callable
from pathlib import Path

import orjson
import pytest
from backports import zstd

from serving.corpora.corpora import Corpora
from serving.corpora.snapshots import CONTENT, MANIFEST, PIECE, Progress, Snapshots
from serving.corpora.values import Corpus
from serving.errors import Invalid, TooLarge
from tests.serving.corpora.snapshots.kept import content, hits, ids


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
NEXT, CUT = "its next part must be the file", "not a snapshot, or cut short"
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
        "contains more than manifest.json and corpus.sqlite",
    ),
    "zeros without an end": (
        lambda body: archive((MANIFEST, manifest(body)), (CONTENT, body)) + zstd.compress(b"\0" * 2 * PIECE),
        "contains more than manifest.json and corpus.sqlite",
    ),
    "other bytes": (
        lambda body: archive((MANIFEST, manifest(body)), (CONTENT, body.replace(b"text of", b"test of"))),
        "its content differs from its manifest",
    ),
    "fewer bytes": (
        lambda body: archive((MANIFEST, manifest(body)), (CONTENT, body[:-1])),
        "its content differs from its manifest",
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
        "has the format 2, but this version reads 1",
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
    corpora.create(Corpus("other"))
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
        (manifest(BODY, format=2), "has the format 2, but this version reads 1"),
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
    wrong = bytes(byte ^ 0xFF for byte in whole[place : place + 8])  # a single bit may be one that zstd does not use
    for damaged in (whole[:place], whole[:place] + wrong + whole[place + 8 :]):
        file = tmp_path / "damaged"
        file.write_bytes(damaged)
        with pytest.raises(Invalid):
            snapshots.restore("c", file, Progress())
        assert ids(corpora) == ["a", "b", "c"]
