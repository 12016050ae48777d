"""Tests of fetching a dataset: it is complete or absent, fetched once, and checked by its checksums."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.training.datasets.samples import FILES, Hub, contents, lay
from training.evaluation.datasets.catalogue import Dataset
from training.evaluation.datasets.fetch import Download, HubError, default_folder, provide
from training.evaluation.pairs import DataError

Bring = Callable[[Download | None], str]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "data"


@pytest.fixture
def bring(dataset: Dataset, folder: Path) -> Bring:
    """Return a function that fetches the dataset under the name `small`, and returns the output."""

    def call(download: Download | None) -> str:
        said = io.StringIO()
        provide("small", dataset, folder, said, download=download)
        return said.getvalue()

    return call


def record(folder: Path) -> dict[str, object]:
    entry = json.loads((folder / "checksums.json").read_text())["small"]
    assert isinstance(entry, dict)
    return entry


def test_what_is_fetched_is_laid_out_and_recorded(bring: Bring, hub: Hub, folder: Path) -> None:
    said = bring(hub)
    assert contents(folder) == FILES, "what was asked for, nothing hidden, no draft"
    assert said.splitlines()[0] == "small: archive.tar of some/archive, 1.5 MB"
    assert said.splitlines()[-1] == f"small: 6 lines, 4 files in {folder}"
    entry = record(folder)
    expected = {f: {"sha256": hashlib.sha256(text).hexdigest(), "size": len(text)} for f, text in FILES.items()}
    assert entry["files"] == expected
    archive = (hub.folder / "archive.tar").read_bytes()
    assert isinstance(entry["sources"], list)
    assert entry["sources"][0] == {
        "repo": "some/archive",
        "commit": "a" * 40,
        "file": "archive.tar",
        "sha256": hashlib.sha256(archive).hexdigest(),
        "size": len(archive),
    }


def test_what_is_there_is_not_fetched_again(bring: Bring, hub: Hub, folder: Path) -> None:
    bring(hub)
    before = (folder / "checksums.json").read_bytes()
    hub.given.clear()
    assert "already there, 4 files" in bring(hub)
    assert hub.given == []
    assert "already there" in bring(None), "nor is a network needed to verify it"
    assert (folder / "checksums.json").read_bytes() == before


@pytest.mark.parametrize("download", [True, False])
def test_an_altered_file_is_named_and_left_alone(bring: Bring, hub: Hub, folder: Path, download: bool) -> None:
    bring(hub)
    hub.given.clear()
    (folder / "text/corpus.txt").write_bytes(b"a\nB\n")
    with pytest.raises(DataError, match=r"text/corpus\.txt: changed since"):
        bring(hub if download else None)
    assert hub.given == []
    assert (folder / "text/corpus.txt").read_bytes() == b"a\nB\n"


def test_a_missing_file_is_named_by_verify_and_brought_by_get(bring: Bring, hub: Hub, folder: Path) -> None:
    bring(hub)
    (folder / "eval/B/deep/two.txt").unlink()
    with pytest.raises(DataError, match=r"two\.txt: missing; `isosphere data get small"):
        bring(None)
    bring(hub)
    assert contents(folder) == FILES


def test_a_found_file_that_is_another_than_the_hubs_stops_all(bring: Bring, hub: Hub, folder: Path) -> None:
    (folder / "text").mkdir(parents=True)
    (folder / "text/ids.tsv").write_bytes(b"y\n")
    with pytest.raises(DataError, match=r"text/ids\.tsv: differs from the fetched file; remove it"):
        bring(hub)
    assert contents(folder) == {"text/ids.tsv": b"y\n"}


def test_an_interrupted_fetch_leaves_nothing_and_the_next_goes_on(bring: Bring, hub: Hub, folder: Path) -> None:
    hub.failing = {"ids.tsv": KeyboardInterrupt()}
    with pytest.raises(KeyboardInterrupt):
        bring(hub)
    assert not folder.exists()
    hub.failing = {}
    bring(hub)
    assert contents(folder) == FILES


def test_a_kill_between_two_files_is_made_good(
    bring: Bring, hub: Hub, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    replace, moved = Path.replace, list[Path]()

    def once(self: Path, target: Path) -> Path:
        if moved:
            raise KeyboardInterrupt
        moved.append(target)
        return replace(self, target)

    with monkeypatch.context() as broken:
        broken.setattr(Path, "replace", once)
        broken.setattr(shutil, "rmtree", lambda *_args, **_options: None)  # A kill leaves everything as it was.
        with pytest.raises(KeyboardInterrupt):
            bring(hub)
    assert (folder / ".draft").is_dir()
    assert not (folder / "checksums.json").exists()
    bring(hub)
    assert contents(folder) == FILES
    assert (folder / "checksums.json").exists()


def test_a_folder_with_a_blank_is_quoted_in_the_commands_that_take_it(
    dataset: Dataset, hub: Hub, tmp_path: Path
) -> None:
    folder = tmp_path / "my data"
    hub.failing = {"archive.tar": HubError("no network")}
    for download, command in ((hub, "data verify small"), (None, "data get small")):
        with pytest.raises(DataError) as caught:
            provide("small", dataset, folder, io.StringIO(), download=download)
        assert f"isosphere {command} --to '{folder}'" in str(caught.value)


def test_offline_says_which_files_go_where_and_verify_takes_them_from_there(
    bring: Bring, hub: Hub, folder: Path
) -> None:
    hub.failing = {file: HubError("no network") for file in ("archive.tar", "corpus.txt.gz", "ids.tsv")}
    with pytest.raises(DataError) as caught:
        bring(hub)
    message = str(caught.value)
    assert "\n" not in message
    assert "archive.tar of some/archive can't be fetched (no network)" in message
    places = [folder / "downloads" / repo for repo in ("some/archive", "some/texts")]
    commit = "b" * 40
    assert (
        f"archive.tar of the hub dataset some/archive, commit {'a' * 40}, elsewhere and put it into {places[0]};"
        in message
    )
    assert f"corpus.txt.gz and ids.tsv of the hub dataset some/texts, commit {commit}, elsewhere" in message
    assert message.endswith(f"into {places[1]}; then: isosphere data verify small --to {folder}")

    for place, file in zip((places[0], places[1], places[1]), hub.failing, strict=True):
        place.mkdir(parents=True, exist_ok=True)
        shutil.copy(hub.folder / file, place / file)
    assert "small: 6 lines, 4 files" in bring(None)
    assert {file: text for file, text in contents(folder).items() if not file.startswith("downloads/")} == FILES
    sources = record(folder)["sources"]
    assert isinstance(sources, list)
    assert [source["commit"] for source in sources] == [None] * 3, "no one knows which commit a person took"


def test_what_a_person_brought_is_not_asked_for_again(bring: Bring, hub: Hub, folder: Path) -> None:
    place = folder / "downloads/some/archive"
    place.mkdir(parents=True)
    shutil.copy(hub.folder / "archive.tar", place)
    hub.failing = {"corpus.txt.gz": HubError("no network")}
    with pytest.raises(DataError) as caught:
        bring(hub)
    assert "archive.tar" not in str(caught.value)
    hub.failing = {}
    bring(hub)
    assert hub.given == ["corpus.txt.gz", "ids.tsv"]


def test_files_that_a_person_laid_out_are_counted_and_recorded(bring: Bring, folder: Path) -> None:
    lay(folder)
    assert "small: found 6 lines, 4 files" in bring(None)
    assert record(folder)["sources"] == []
    (folder / "eval/A/one.txt").write_bytes(b"1\n3\n")
    with pytest.raises(DataError, match=r"one\.txt: changed"):
        bring(None)


def test_verify_fetches_nothing_and_says_what_is_wrong(bring: Bring, folder: Path) -> None:
    lay(folder)
    (folder / "text/corpus.txt").write_bytes(b"a\n")
    with pytest.raises(DataError, match=r"corpus\.txt: not as many lines .*data get small"):
        bring(None)
    assert not (folder / "checksums.json").exists()


def test_a_fetched_file_with_wrong_counts_is_named_and_nothing_is_kept(bring: Bring, hub: Hub, folder: Path) -> None:
    (hub.folder / "corpus.txt.gz").write_bytes(gzip.compress(b"a\n"))
    with pytest.raises(DataError, match=r"hub/corpus\.txt\.gz.*: text/corpus\.txt: not as many lines"):
        bring(hub)
    assert contents(folder) == {}
    assert not (folder / "checksums.json").exists()


def test_a_record_of_several_datasets_keeps_them_apart(dataset: Dataset, hub: Hub, folder: Path) -> None:
    for name in ("second", "first"):
        provide(name, dataset, folder, io.StringIO(), download=hub)
    assert list(json.loads((folder / "checksums.json").read_text())) == ["first", "second"]


@pytest.mark.parametrize(
    "text", ["{", "[" * 100_000, "[]", '{"small": {"time": "now"}}', '{"small": {"files": 3}}', "3"]
)
def test_a_broken_record_is_named(bring: Bring, hub: Hub, folder: Path, text: str) -> None:
    folder.mkdir()
    (folder / "checksums.json").write_text(text)
    with pytest.raises(DataError, match=r"checksums\.json: not a record"):
        bring(hub)


def test_the_default_folder_is_named_by_the_environment() -> None:
    assert default_folder({"ISOSPHERE_DATA": "/some/where", "XDG_CACHE_HOME": "/cache"}) == Path("/some/where")
    assert default_folder({"ISOSPHERE_DATA": "", "XDG_CACHE_HOME": "/cache"}) == Path("/cache/isosphere/data")
    with pytest.raises(DataError, match=r"^ISOSPHERE_DATA=~nobody-of-that-name/data: "):
        default_folder({"ISOSPHERE_DATA": "~nobody-of-that-name/data"})
    for relative in ({}, {"XDG_CACHE_HOME": "cache"}):
        assert default_folder(relative) == Path.home() / ".cache/isosphere/data"


def test_a_user_without_a_home_must_name_a_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    def home() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "home", home)
    assert default_folder({"XDG_CACHE_HOME": "/cache"}) == Path("/cache/isosphere/data")
    with pytest.raises(DataError, match="--to"):
        default_folder({})
