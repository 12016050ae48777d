"""Tests of saved indexes: they load unchanged, or the damage is found before an id is served."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from serving.corpora.indexes import KINDS, saved
from serving.corpora.indexes.building import BuildInput, Plan, build
from serving.corpora.indexes.saved import Identity, UnfitError
from serving.corpora.indexes.state import Main, Marks
from tests.serving.corpora.indexes.vectors import clustered, keys

DIM, COUNT = 16, 1500
IDENTITY = Identity("1", "f" * 64, DIM)


@pytest.fixture(scope="module", params=["hnsw", "ivf-sq8", "exact"])
def generation(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Main]:
    folder = tmp_path_factory.mktemp("index") / "00000001-a"
    places = keys(range(10, COUNT + 10))
    given = BuildInput(folder, *saved.write_vectors(folder, DIM, [(places, clustered(COUNT))]), 100)
    plan = Plan(100 if request.param != "exact" else COUNT + 1, kinds=(request.param,))
    main = build(given, 0.9, plan, KINDS, lambda: None)
    saved.save(folder, saved.describe(folder, main), IDENTITY, COUNT + 20)
    return folder, main


def load(folder: Path) -> tuple[Main, int]:
    return saved.load(folder, IDENTITY, KINDS, 2)


def test_what_was_saved_comes_back(generation: tuple[Path, Main]) -> None:
    folder, main = generation
    read, covered = load(folder)
    assert covered == COUNT + 20
    assert read.tuning == main.tuning
    assert (read.build_seconds, read.reason) == (main.build_seconds, main.reason)
    assert read.bytes == sum(path.stat().st_size for path in folder.iterdir() if path.name != saved.MANIFEST)
    queries, marks = clustered(20, seed=1), Marks(COUNT)
    for one, other in zip(main.search(queries, 10, marks), read.search(queries, 10, marks), strict=True):
        assert np.array_equal(one.keys, other.keys)
        assert np.array_equal(one.scores, other.scores)


def test_another_corpus_or_encoder_is_refused(generation: tuple[Path, Main]) -> None:
    folder, _ = generation
    for other in (IDENTITY._replace(generation="2"), IDENTITY._replace(fingerprint="g"), IDENTITY._replace(dim=8)):
        with pytest.raises(UnfitError, match=r"manifest\.json: belongs to another corpus or encoder"):
            saved.load(folder, other, KINDS, 1)


@pytest.mark.slow
@pytest.mark.parametrize("name", [saved.VECTORS, saved.KEYS, saved.MANIFEST, saved.INDEX])
def test_every_byte_at_the_end_counts(generation: tuple[Path, Main], tmp_path: Path, name: str) -> None:
    folder = tmp_path / "copy"
    shutil.copytree(generation[0], folder)
    path = folder / name
    if not path.exists():
        pytest.skip("exact search needs no such file")
    whole = path.read_bytes()
    before, _ = load(folder)
    for at in range(max(0, len(whole) - 4096), len(whole), 97 if name != saved.MANIFEST else 13):
        flipped = bytearray(whole)
        flipped[at] ^= 0x10
        for damaged in (bytes(flipped), whole[:at]):
            path.write_bytes(damaged)
            try:
                after, covered = load(folder)
            except UnfitError as error:
                assert path.name in str(error)
            else:  # The change is in a byte without meaning, such as a space.
                assert name == saved.MANIFEST
                assert (after.tuning, after.keys.tolist(), covered) == (before.tuning, before.keys.tolist(), COUNT + 20)
    path.unlink()
    with pytest.raises(UnfitError, match=path.name):
        load(folder)


@pytest.mark.slow
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_no_flip_anywhere_goes_unnoticed(generation: tuple[Path, Main], data: st.DataObject) -> None:
    folder, _ = generation
    name = data.draw(st.sampled_from(sorted(path.name for path in folder.iterdir() if path.name != saved.MANIFEST)))
    path = folder / name
    whole = path.read_bytes()
    at = data.draw(st.integers(0, len(whole) - 1))
    described = json.loads((folder / saved.MANIFEST).read_text())["files"][name]
    copy = folder.parent / f"flipped-{name}"
    copy.write_bytes(whole[:at] + bytes([whole[at] ^ data.draw(st.integers(1, 255))]) + whole[at + 1 :])
    saved.check(path, described)
    with pytest.raises(UnfitError, match=name):
        saved.check(copy, described)


@pytest.mark.parametrize(
    "manifest",
    [
        b"",
        b"{}",
        b"[]",
        b"null",
        b"7",
        b"\xff",
        b'{"seal": 1}',
        b'{"seal": 1, "format": 1}',
        b'{"seal": "", "format": 2}',
    ],
)
def test_a_manifest_of_something_else_is_refused(tmp_path: Path, manifest: bytes) -> None:
    (tmp_path / saved.MANIFEST).write_bytes(manifest)
    with pytest.raises(UnfitError, match=r"manifest\.json"):
        load(tmp_path)


def test_an_index_of_another_faiss_is_refused(generation: tuple[Path, Main], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("serving.corpora.indexes.saved.faiss.__version__", "0.0.1")
    with pytest.raises(UnfitError, match=r"was written by FAISS 1\..*, but this is 0\.0\.1"):
        load(generation[0])


def test_a_kind_that_is_no_more_is_refused(generation: tuple[Path, Main]) -> None:
    folder, main = generation
    if main.approximate is None:
        pytest.skip("exact search is no kind")
    with pytest.raises(UnfitError, match=main.approximate.kind.name):
        saved.load(folder, IDENTITY, {}, 1)


def test_without_its_manifest_it_is_nothing(tmp_path: Path, generation: tuple[Path, Main]) -> None:
    folder = tmp_path / "copy"
    shutil.copytree(generation[0], folder)
    saved.remove(folder)
    assert not folder.exists()
    saved.remove(folder)


@pytest.mark.parametrize("part", ["faiss", "identity", "files", "kind", "tuning", "covered", "reason"])
@pytest.mark.parametrize("change", ["gone", 7])
def test_a_manifest_of_another_shape_is_refused(
    generation: tuple[Path, Main], tmp_path: Path, part: str, change: object
) -> None:
    folder = tmp_path / "copy"
    shutil.copytree(generation[0], folder)
    manifest = saved._manifest(folder / saved.MANIFEST)
    if change == "gone":
        del manifest[part]
    else:
        manifest[part] = change
    (folder / saved.MANIFEST).write_text(json.dumps(manifest | {"seal": saved._seal(manifest)}))
    if change == "gone" or part not in ("reason", "covered"):
        with pytest.raises(UnfitError):
            load(folder)
