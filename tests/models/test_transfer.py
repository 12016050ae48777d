"""Tests of the transfer of bundles to a remote and back: the files arrive unchanged, or nothing is stored."""

from __future__ import annotations

import errno
import json
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import fsspec
import pytest
from fsspec.implementations.local import LocalFileSystem
from fsspec.implementations.memory import MemoryFileSystem
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from models import remotes
from models.__main__ import main
from models.bundle import bundle
from models.bundle.bundle import MANIFEST, BundleError
from models.errors import Refused
from models.remotes import base, filesystem, transfer
from models.remotes import hub as hub_of_models
from models.remotes.base import Remote, RemoteError
from models.remotes.filesystem import Filesystem
from models.remotes.hub import Hub
from models.runtimes.graph import golden_cosine
from tests.models.fake_hub import FakeHub


@pytest.fixture(autouse=True)
def _nothing_in_memory() -> Iterator[None]:
    yield
    MemoryFileSystem.store.clear()
    MemoryFileSystem.pseudo_dirs[:] = [""]


@pytest.fixture(params=["memory", "folder", "hub"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "hub":
        request.getfixturevalue("hub")
    return {"memory": "memory://bucket/tiny", "folder": str(tmp_path / "shelf" / "tiny"), "hub": "hf://org/tiny"}[
        request.param
    ]


def _contents(folder: Path) -> dict[str, bytes]:
    return {p.relative_to(folder).as_posix(): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def _published(source: Path, place: str, **how: bool) -> int:
    return transfer.publish(bundle.load(source), remotes.open_remote(place), **how)


def _pulled(place: str, folder: Path, **how: bool) -> Path:
    return transfer.pull(remotes.open_remote(place), folder, **how)[0].folder


def test_what_is_pulled_is_what_was_published(tiny_bundle: Path, place: str, tmp_path: Path) -> None:
    assert _published(tiny_bundle, place) == len(_contents(tiny_bundle))
    assert _contents(_pulled(place, tmp_path / "pulled")) == _contents(tiny_bundle)


def test_what_is_there_already_is_neither_sent_nor_fetched_again(tiny_bundle: Path, place: str, tmp_path: Path) -> None:
    _published(tiny_bundle, place)
    assert _published(tiny_bundle, place) == 0
    assert transfer.pull(remotes.open_remote(place), tmp_path / "pulled")[1] > 0
    assert transfer.pull(remotes.open_remote(place), tmp_path / "pulled")[1] == 0


def test_another_bundle_is_replaced_on_demand_only(
    tiny_bundle: Path, other_bundle: Path, place: str, tmp_path: Path
) -> None:
    longer = Path(shutil.copytree(tiny_bundle, tmp_path / "longer"))
    (longer / "onnx" / "extra.txt").write_text("only in this one")
    facts = {k: v for k, v in vars(bundle.load(tiny_bundle).manifest).items() if k not in COMPUTED}
    bundle.write_manifest(longer, **facts)
    _published(longer, place)
    kept = Path(shutil.copytree(longer, tmp_path / "kept"))

    with pytest.raises(Refused, match=r"contains another .*--replace"):
        _published(other_bundle, place)
    with pytest.raises(Refused, match=r"kept: contains another bundle.*--replace"):
        _published(other_bundle, str(tmp_path / "others"))
        _pulled(str(tmp_path / "others"), kept)
    assert _contents(_pulled(place, tmp_path / "pulled")) == _contents(longer) == _contents(kept)

    _published(other_bundle, place, replace=True)
    assert remotes.open_remote(place).files() == set(_contents(other_bundle))
    assert _contents(_pulled(place, kept, replace=True)) == _contents(other_bundle)


COMPUTED = ("files", "fingerprint", "format_version")


def test_files_that_are_of_no_bundle_are_left_alone(tiny_bundle: Path, place: str, hub: FakeHub) -> None:
    if place.startswith("hf:"):
        hub.make("org/tiny", {"thesis.tex": b"years of work"})
    else:
        with fsspec.open(f"{place}/thesis.tex", "wb") as file:
            file.write(b"years of work")
    for replace in (False, True):
        with pytest.raises(Refused, match=r"contains thesis\.tex, which is not part of a bundle"):
            _published(tiny_bundle, place, replace=replace)
    assert remotes.open_remote(place).files() == {"thesis.tex"}


def _damage(place: str, path: str, hub: FakeHub) -> None:
    if place.startswith("hf:"):
        content = hub.repositories["org/tiny"].files()
        hub.repositories["org/tiny"].commit("main", {**content, path: content[path][:-1] + b"?"})
    else:
        filesystem, root = fsspec.core.url_to_fs(place)
        filesystem.pipe_file(f"{root}/{path}", filesystem.cat_file(f"{root}/{path}")[:-1] + b"?")


@pytest.mark.parametrize("path", ["model.safetensors", "1_Pooling/config.json", "README.md"])
def test_a_file_damaged_at_its_remote_is_named_and_nothing_is_kept(
    tiny_bundle: Path, place: str, hub: FakeHub, tmp_path: Path, path: str
) -> None:
    _published(tiny_bundle, place)
    _damage(place, path, hub)
    before = set(tmp_path.iterdir())
    with pytest.raises(RemoteError, match=f"{path}: damaged on the remote or during the download"):
        _pulled(place, tmp_path / "pulled")
    assert set(tmp_path.iterdir()) == before
    assert _published(tiny_bundle, place) == 2, "publishing again mends it: the file and the manifest"
    bundle.load(_pulled(place, tmp_path / "pulled"))


def test_a_damaged_pull_leaves_the_old_bundle(
    tiny_bundle: Path, other_bundle: Path, hub: FakeHub, tmp_path: Path
) -> None:
    folder = Path(shutil.copytree(other_bundle, tmp_path / "served"))
    _published(tiny_bundle, "memory://tiny")
    _damage("memory://tiny", "tokenizer.json", hub)
    with pytest.raises(RemoteError, match=r"tokenizer\.json: damaged"):
        _pulled("memory://tiny", folder, replace=True)
    assert _contents(folder) == _contents(other_bundle)
    assert [p.name for p in tmp_path.iterdir()] == ["served"]


def test_a_file_damaged_on_its_way_out_is_noticed(
    tiny_bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put = LocalFileSystem.put_file

    def lossy(self: LocalFileSystem, source: str, target: str, **how: object) -> None:
        put(self, source, target, **how)
        if target.endswith("config.json"):
            content = Path(target).read_bytes()
            Path(target).write_bytes(content.replace(b"4", b"5", 1))

    monkeypatch.setattr(LocalFileSystem, "put_file", lossy)
    with pytest.raises(RemoteError, match=r"config\.json: was damaged during the upload"):
        _published(tiny_bundle, str(tmp_path / "shelf"))


def test_a_publication_cut_short_is_no_bundle_and_goes_on(
    tiny_bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put = LocalFileSystem.put_file
    sent: list[str] = []

    def failing(self: LocalFileSystem, source: str, target: str, **how: object) -> None:
        if len(sent) == 3:
            raise ConnectionError("gone\nfor now")
        sent.append(target)
        put(self, source, target, **how)

    shelf = str(tmp_path / "shelf")
    monkeypatch.setattr(LocalFileSystem, "put_file", failing)
    with pytest.raises(RemoteError, match=r"shelf: gone$"):
        _published(tiny_bundle, shelf)
    with pytest.raises(BundleError, match=r"has no manifest\.json"):
        _pulled(shelf, tmp_path / "pulled")
    monkeypatch.undo()
    assert _published(tiny_bundle, shelf) == len(_contents(tiny_bundle)) - 3
    bundle.load(_pulled(shelf, tmp_path / "pulled"))


@pytest.mark.parametrize("removals", range(4))
def test_a_replacement_cut_short_goes_on_for_what_is_left_of_the_old_bundle_is_still_listed(
    tiny_bundle: Path, other_bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, removals: int
) -> None:
    longer = Path(shutil.copytree(tiny_bundle, tmp_path / "longer"))
    (longer / "onnx" / "extra.txt").write_text("only in this one")
    facts = {k: v for k, v in vars(bundle.load(tiny_bundle).manifest).items() if k not in COMPUTED}
    bundle.write_manifest(longer, **facts)
    shelf = str(tmp_path / "shelf")
    _published(longer, shelf)
    remove = LocalFileSystem.rm_file
    removed: list[str] = []

    def failing(self: LocalFileSystem, path: str) -> None:
        if len(removed) == removals:
            raise ConnectionError("gone")
        removed.append(path)
        remove(self, path)

    monkeypatch.setattr(LocalFileSystem, "rm_file", failing)
    with pytest.raises(RemoteError, match="gone"):
        _published(other_bundle, shelf, replace=True)
    monkeypatch.undo()
    _published(other_bundle, shelf, replace=True)
    assert _contents(_pulled(shelf, tmp_path / "pulled")) == _contents(other_bundle)


@pytest.mark.slow
@settings(max_examples=20, suppress_health_check=[HealthCheck.function_scoped_fixture])
@pytest.mark.parametrize("kind", ["memory", "folder"])
@given(data=st.data())
def test_what_was_cut_in_the_middle_of_a_file_goes_on_and_nothing_else_does(
    tiny_bundle: Path, tmp_path: Path, kind: str, data: st.DataObject
) -> None:
    """Continue an upload to a remote that stores one file after another. On the hub, one commit has all files."""
    place = "memory://bucket/tiny" if kind == "memory" else str(tmp_path / "tiny")
    filesystem, root = fsspec.core.url_to_fs(place)
    whole = _contents(tiny_bundle)
    order = [*sorted(whole.keys() - {MANIFEST}), MANIFEST]
    done = data.draw(st.integers(0, len(order) - 1), "files that arrived whole")
    cut = order[done]
    length = data.draw(st.integers(1, len(whole[cut]) - 1), "bytes of the next one")
    for path, content in {**{path: whole[path] for path in order[:done]}, cut: whole[cut][:length]}.items():
        filesystem.makedirs(f"{root}/{path}".rpartition("/")[0], exist_ok=True)
        filesystem.pipe_file(f"{root}/{path}", content)
    at = data.draw(st.integers(0, length - 1), "a byte that is another")
    strange = bytearray(whole[cut][:length])
    strange[at] ^= 1
    filesystem.pipe_file(f"{root}/{cut}", bytes(strange))
    with pytest.raises(Refused, match=f"contains another {cut}; .*--replace"):
        _published(tiny_bundle, place)
    filesystem.pipe_file(f"{root}/{cut}", whole[cut][:length])
    assert _published(tiny_bundle, place) == len(order) - done
    assert {path: filesystem.cat_file(f"{root}/{path}") for path in order} == whole
    filesystem.rm(root, recursive=True)


@pytest.mark.parametrize("name", ["../outside", "/etc/outside", "a/../../outside", "a\\outside", "", "a//b"])
def test_a_name_that_leaves_the_folder_is_refused_before_anything_is_written(
    tiny_bundle: Path, place: str, hub: FakeHub, tmp_path: Path, name: str
) -> None:
    _published(tiny_bundle, place)
    manifest = json.loads((tiny_bundle / MANIFEST).read_text())
    manifest["files"][name] = "00"
    content = json.dumps(manifest).encode()
    if place.startswith("hf:"):
        hub.repositories["org/tiny"].commit("main", {**hub.repositories["org/tiny"].files(), MANIFEST: content})
    else:
        with fsspec.open(f"{place}/{MANIFEST}", "wb") as file:
            file.write(content)
    before = set(tmp_path.rglob("*"))
    with pytest.raises(BundleError, match="must be a plain name of a file inside the folder"):
        _pulled(place, tmp_path / "deep" / "pulled")
    assert set(tmp_path.rglob("*")) == before


def test_a_manifest_of_too_many_bytes_or_files_is_refused(
    tiny_bundle: Path, place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _published(tiny_bundle, place)
    monkeypatch.setattr(bundle, "MOST_FILES", 3)
    with pytest.raises(BundleError, match=r"manifest\.json: lists \d+ files, more than the maximum of 3"):
        _pulled(place, tmp_path / "pulled")
    for module in (filesystem, hub_of_models, base):
        monkeypatch.setattr(module, "MOST_JSON_BYTES", 100)
    with pytest.raises(RemoteError, match=r"manifest\.json: has more than 100 bytes"):
        _pulled(place, tmp_path / "pulled")
    assert not (tmp_path / "pulled").exists()


@pytest.mark.parametrize("content", [b"", b"\xff", b"[" * 100_000, b"[]"])
def test_a_manifest_that_is_none_is_refused(content: bytes, tmp_path: Path) -> None:
    with fsspec.open(f"memory://tiny/{MANIFEST}", "wb") as file:
        file.write(content)
    with pytest.raises(BundleError, match=r"memory://tiny: manifest\.json: not "):
        _pulled("memory://tiny", tmp_path / "pulled")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("link", ["tokenizer.json", "onnx"])
def test_a_link_at_the_remote_is_refused(tiny_bundle: Path, tmp_path: Path, link: str) -> None:
    shelf = Path(shutil.copytree(tiny_bundle, tmp_path / "shelf"))
    (shelf / link).rename(tmp_path / "elsewhere")
    (shelf / link).symlink_to(tmp_path / "elsewhere")
    with pytest.raises(RemoteError, match=f"{link}: is a link"):
        _pulled(shelf.as_uri(), tmp_path / "pulled")
    assert not (tmp_path / "pulled").exists()
    with pytest.raises(
        (RemoteError, Refused), match=f"{link}: is a link|contains {link}, which is not part of a bundle"
    ):
        _published(tiny_bundle, str(shelf))


def test_replacing_a_folder_here_leaves_what_shares_its_files_and_what_a_link_leads_to(
    tiny_bundle: Path, other_bundle: Path, tmp_path: Path
) -> None:
    shared = shutil.copytree(tiny_bundle, tmp_path / "shared", copy_function=os.link)
    _published(other_bundle, str(shared), replace=True)
    assert _contents(bundle.load(tiny_bundle).folder) != _contents(other_bundle) == _contents(shared)
    (tmp_path / "link").symlink_to(shared)
    with pytest.raises(RemoteError, match="a link"):
        _published(tiny_bundle, str(tmp_path / "link"), replace=True)
    assert _contents(shared) == _contents(other_bundle)


def test_an_altered_bundle_is_not_published(tiny_bundle: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(tiny_bundle, tmp_path / "copy"))
    (copy / "config.json").write_text("{}")
    assert main(["publish", str(copy), str(tmp_path / "shelf")]) == 2
    assert not (tmp_path / "shelf").exists()


@pytest.mark.parametrize("source", ["hf://org/nothing", "org/tiny@nowhere", "memory://nothing", "/no/such/folder"])
def test_a_place_without_a_bundle_is_named(hub: FakeHub, tmp_path: Path, source: str) -> None:
    hub.make("org/tiny", {})
    with pytest.raises(BundleError, match=r"has no manifest\.json"):
        _pulled(source, tmp_path / "out")
    assert list(tmp_path.iterdir()) == []


def test_the_command_line_ends_in_one_line(
    tiny_bundle: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def driverless(name: str, **_: object) -> object:
        raise ImportError("Install s3fs to access S3")

    monkeypatch.setattr("models.remotes.filesystem.url_to_fs", driverless)
    assert main(["pull", "s3://bucket/tiny", "--out", str(tmp_path / "out")]) == 2
    assert capsys.readouterr().err.startswith("isosphere: s3://bucket/tiny: Install s3fs")
    monkeypatch.undo()
    for arguments, code, says in (
        (["pull", "gopher://x/y", "--out", str(tmp_path / "out")], 2, "gopher"),
        (["pull", "hf://org/tiny@a", "--out", str(tmp_path / "out")], 1, "offline"),
        (["publish", str(tiny_bundle), str(tmp_path / "shelf"), "--private"], 2, "--private"),
        (["publish", str(tiny_bundle), "hf://o/n@a", "--revision", "b"], 2, "--revision b"),
        (["publish", str(tmp_path / "nothing"), "memory://x"], 2, "nothing/manifest.json: missing"),
    ):
        assert main(arguments) == code
        error = capsys.readouterr().err
        assert error.startswith("isosphere: ") and error.count("\n") == 1 and says in error
    assert list(tmp_path.iterdir()) == []


def test_whose_disk_is_full_is_said(
    tiny_bundle: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_: object, source: str, *__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device", source)

    monkeypatch.setattr(MemoryFileSystem, "put_file", full)
    assert main(["publish", str(tiny_bundle), "memory://shelf"]) == 1
    assert capsys.readouterr().err.startswith("isosphere: memory://shelf: [Errno 28] No space left on device: ")
    monkeypatch.undo()
    _published(tiny_bundle, "memory://shelf")
    monkeypatch.setattr(MemoryFileSystem, "get_file", full)
    assert main(["pull", "memory://shelf", "--out", str(tmp_path / "out")]) == 1
    assert capsys.readouterr().err == f"isosphere: {tmp_path}/out: No space left on device\n"
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("place", "kind"),
    [
        ("hf://org/name", Hub),
        ("org/name", Hub),
        ("org/name@refs/pr/1", Hub),
        ("./org/name", Filesystem),
        ("/org/name", Filesystem),
        ("artifacts/name", Filesystem),
        ("name", Filesystem),
        ("a/b/c", Filesystem),
        ("here/name", Filesystem),
        ("file:///org/name", Filesystem),
        ("memory://org/name", Filesystem),
    ],
)
def test_a_place_is_the_hub_or_a_folder(
    place: str, kind: Callable[..., Remote], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "here").mkdir()
    assert type(remotes.open_remote(place)) is kind


def test_a_pulled_bundle_gives_its_golden_vectors(tiny_bundle: Path, tmp_path: Path) -> None:
    _published(tiny_bundle, "memory://tiny")
    assert golden_cosine(bundle.load(_pulled("memory://tiny", tmp_path / "pulled"))) > 0.999999
