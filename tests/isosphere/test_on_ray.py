"""Tests of `isosphere embed --on ray`: formats, resumption, folders of other commands, and the sizes of the pool."""

from __future__ import annotations

import hashlib
import io
import json
import socket
from collections.abc import Callable, Iterator, Sequence
from importlib.metadata import PackageNotFoundError
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from isosphere.command import main
from isosphere.embed.embedding import Model, Options
from isosphere.embed.embedding import embed as embed_here
from isosphere.embed.on_ray import bulk
from isosphere.embed.on_ray.bulk import MANIFEST, Made, embed
from isosphere.embed.on_ray.places import Folder, list_files, state
from isosphere.embed.on_ray.pool import Pool, derive
from isosphere.encoder import Encoder, load
from models import cluster
from models.errors import Refused
from models.remotes.base import RemoteError
from tests.clusters import small_ray

pytestmark = pytest.mark.filterwarnings("ignore")
TEXTS = ["a cat can sleep", "the dog", 'the man, "he" can play', "Hällo wörld", "a book", "rain"]


@pytest.fixture(scope="module")
def shared_ray() -> Iterator[None]:
    with small_ray():
        yield


def on_ray(test: Callable[..., None]) -> Any:
    """Mark a test as one that needs the module's Ray, whose start takes seconds."""
    return pytest.mark.slow(pytest.mark.usefixtures("shared_ray")(test))


@pytest.fixture(scope="module")
def encoder(tiny_bundle: Path) -> Encoder:
    return load(tiny_bundle, engine="onnxruntime", precision="fp32", threads=1)


@pytest.fixture
def files(tmp_path: Path) -> list[str]:
    """Write a folder with files in three formats, and with a line that is not UTF-8."""
    folder = tmp_path / "in"
    folder.mkdir()
    (folder / "a.txt").write_text("".join(f"{text}\n" for text in TEXTS * 3))
    rows = ({"id": f"n{i}", "text": text, "year": i} for i, text in enumerate(TEXTS))
    (folder / "b.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    pq.write_table(pa.table({"id": [f"p{i}" for i in range(6)], "text": TEXTS}), folder / "c.parquet")
    return [str(folder)]


def model(bundle: Path) -> Model:
    return Model(str(bundle), "onnxruntime", "fp32", "cpu", 1)


def run(bundle: Path, files: Sequence[str], out: str, *, force: bool = False, **options: Any) -> Made:
    chosen = Options(rows_of_a_part=4, **options)
    return embed(model(bundle), files, out, chosen, address=None, force=force, stream=io.StringIO())


def table(out: Path) -> pa.Table:
    return pq.read_table(out)


@on_ray
def test_the_folder_has_the_rows_of_the_file_of_one_process(
    tiny_bundle: Path, encoder: Encoder, files: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bulk, "SHARD_BYTES", 1)
    out, plain = tmp_path / "out", tmp_path / "plain.parquet"
    made = run(tiny_bundle, files, str(out))
    embed_here(encoder, files, plain, Options(), force=False, stream=io.StringIO())
    assert made.done.rows == 30 and made.encoder == "tiny"
    found, expected = table(out), table(plain)
    assert found["id"].to_pylist() == expected["id"].to_pylist()
    ours, theirs = (np.stack(each["vector"].to_numpy()) for each in (found, expected))
    np.testing.assert_allclose(ours, theirs, atol=2e-6)
    assert found.schema.metadata[b"fingerprint"].decode() == encoder.fingerprint
    manifest = json.loads((out / MANIFEST).read_text())
    assert manifest["done"]["rows"] == 30 and manifest["fingerprint"] == encoder.fingerprint
    digests = {part.name: hashlib.sha256(part.read_bytes()).hexdigest() for part in out.glob("part-*")}
    assert manifest["parts"] == digests and len(digests) == 5 + 2 + 2


@on_ray
def test_only_missing_parts_are_made_again(
    tiny_bundle: Path, files: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out"
    run(tiny_bundle, files, str(out))
    whole = (out / MANIFEST).read_text()
    manifest = json.loads(whole)
    parts = sorted(out.glob("part-*"))
    del manifest["done"], manifest["parts"]  # A killed run leaves these files.
    (out / MANIFEST).write_text(json.dumps(manifest))
    for part in parts[::2]:
        part.unlink()
    kept = {part: part.stat().st_mtime_ns for part in parts[1::2]}
    run(tiny_bundle, files, str(out))
    assert (out / MANIFEST).read_text() == whole
    assert {part: part.stat().st_mtime_ns for part in kept} == kept
    parts[0].unlink()  # A part of a complete folder was removed, too.
    run(tiny_bundle, files, str(out))
    assert parts[0].exists() and (out / MANIFEST).read_text() == whole
    assert {part: part.stat().st_mtime_ns for part in kept} == kept
    parts[0].write_bytes(b"damaged")
    run(tiny_bundle, files, str(out), force=True)
    assert (out / MANIFEST).read_text() == whole
    monkeypatch.setattr(bulk, "_check", None)
    assert run(tiny_bundle, files, str(out)).done.rows == 30  # A complete folder is not read again.


@on_ray
def test_a_folder_of_another_run_is_refused(
    tiny_bundle: Path, other_bundle: Path, files: list[str], tmp_path: Path
) -> None:
    out = tmp_path / "out"
    run(tiny_bundle, files, str(out))
    before = (out / MANIFEST).read_bytes()
    with pytest.raises(Refused, match="fingerprint"):
        run(other_bundle, files, str(out))
    with pytest.raises(Refused, match="dimensions was None and is 8"):
        run(tiny_bundle, files, str(out), dimensions=8)
    (tmp_path / "in" / "a.txt").write_text("a cat\n")
    with pytest.raises(Refused, match=r"a\.txt has changed"):
        run(tiny_bundle, files, str(out))
    assert (out / MANIFEST).read_bytes() == before
    assert run(tiny_bundle, files, str(out), force=True).done.rows == len(table(out)) == 13
    (out / "notes.txt").write_text("mine")
    with pytest.raises(Refused, match=r"notes\.txt"):
        run(tiny_bundle, files, str(out), force=True)


@on_ray
def test_what_another_command_writes_meanwhile_is_kept(
    tiny_bundle: Path, files: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, check = tmp_path / "out", bulk._check

    def overtaken(*arguments: Any) -> Any:
        (out / MANIFEST).write_text('{"encoder": "other"}')
        return check(*arguments)

    out.mkdir()
    monkeypatch.setattr(bulk, "_check", overtaken)
    with pytest.raises(Refused, match="another command"):
        run(tiny_bundle, files, str(out))
    assert [file.name for file in out.iterdir() if not file.name.startswith(".")] == [MANIFEST]


@on_ray
def test_bad_rows_are_named_or_counted(tiny_bundle: Path, files: list[str], tmp_path: Path) -> None:
    (tmp_path / "in" / "d.jsonl").write_text('{"text": 1}\n{"text": "a cat", "year": 3}\n{"text": "b\n')
    with pytest.raises(Refused, match=r"d\.jsonl:1"):
        run(tiny_bundle, files, str(tmp_path / "out"))
    assert not (tmp_path / "out").exists()
    made = run(tiny_bundle, files, str(tmp_path / "out"), on_error="skip")
    assert (made.done.rows, made.done.skipped) == (31, 2) and "d.jsonl:1" in made.done.first_skipped


@on_ray
def test_columns_have_one_type_in_all_files(tiny_bundle: Path, tmp_path: Path) -> None:
    for name, year in {"a": 1, "b": 2.5}.items():
        (tmp_path / f"{name}.jsonl").write_text(json.dumps({"text": "a cat", "year": year}) + "\n")
    (tmp_path / "c.jsonl").write_text('{"text": "the dog", "year": "MMI"}\n')
    places = [str(tmp_path / f"{name}.jsonl") for name in "abc"]
    with pytest.raises(Refused, match=r"'year'.*c\.jsonl"):
        run(tiny_bundle, places, str(tmp_path / "out"), columns=["year"])
    run(tiny_bundle, places[:2], str(tmp_path / "out"), columns=["year"], encoding="ubinary")
    found = table(tmp_path / "out")
    assert found["year"].to_pylist() == [1, 2.5] and found.schema.field("vector").type == pa.list_(pa.uint8(), 4)


@on_ray
def test_urls_are_read_and_written(tiny_bundle: Path, files: list[str], tmp_path: Path) -> None:
    made = run(tiny_bundle, [f"file://{files[0]}"], f"file://{tmp_path}/out")
    assert made.done.rows == len(table(tmp_path / "out")) == 30
    assert run(tiny_bundle, [f"file://{files[0]}/*.jsonl"], f"file://{tmp_path}/other").done.rows == 6
    with pytest.raises(Refused, match="no such file"):
        run(tiny_bundle, [f"file://{tmp_path}/nothing"], f"file://{tmp_path}/third")


@on_ray
def test_an_input_that_changes_meanwhile_is_one_line(
    tiny_bundle: Path, files: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill = bulk._fill

    def change(*given: Any) -> Any:
        (tmp_path / "in" / "a.txt").write_text("a cat\n")
        return fill(*given)

    monkeypatch.setattr(bulk, "_fill", change)
    with pytest.raises(Refused, match=r"a\.txt.*changed"):
        run(tiny_bundle, files, str(tmp_path / "out"))


def test_the_state_of_a_url_changes_with_its_content(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("a")
    (file,) = list_files([f"file://{tmp_path}/a.txt"])
    before = state(file)
    assert state(file) == before
    (tmp_path / "a.txt").write_text("b")
    assert state(file) != before


def test_a_folder_at_a_url_says_how_many_files_it_leaves_out(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    for name in ("a.txt", "b.txt.gz", "_log/0.jsonl", "_SUCCESS", "read.me"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("a")
    url = f"file://{tmp_path}"
    assert [str(file) for file in list_files([url])] == [f"{url}/a.txt", f"{url}/b.txt.gz"]
    assert [record.args for record in caplog.records] == [(url, 3, "_SUCCESS")]


def test_a_pattern_at_a_url_matches_files_alone(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("a")
    (tmp_path / "b.txt").mkdir()
    assert [str(file) for file in list_files([f"file://{tmp_path}/*.txt"])] == [f"file://{tmp_path}/a.txt"]


def test_a_folder_does_not_hide_an_encoder_of_this_project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("default", "mine"):
        (tmp_path / name).mkdir()
    monkeypatch.chdir(tmp_path)
    assert [bulk._model_name(name) for name in ("default", "mine")] == ["default", str(tmp_path / "mine")]


def test_a_place_that_can_not_be_opened_is_named_without_its_password() -> None:
    with pytest.raises(ValueError, match="nofs"):
        list_files(["nofs://user:secret@host/a.txt"])
    with pytest.raises((ValueError, RemoteError)) as refused:
        Folder("sftp://user:secret@127.0.0.1:1/a").names()
    assert "secret" not in str(refused.value) and "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("nodes", "free", "threads", "device", "expected"),
    [
        ([2], None, None, "auto", Pool(1, 2, 1, 0)),  # One CPU is left to tasks that read.
        ([2], None, 1, "auto", Pool(2, 1, 0.5, 0)),
        ([1], None, None, "auto", Pool(1, 1, 0.5, 0)),
        ([64, 64], None, None, "auto", Pool(2, 64, 63, 0)),
        ([64, 16], None, None, "auto", Pool(5, 16, 15, 0)),
        ([64], None, 4, "auto", Pool(16, 4, 3, 0)),
        ([0, 1, 1], None, None, "cpu", Pool(2, 1, 0.5, 0)),
        ([8], 3, 2, "auto", Pool(2, 2, 1, 0)),  # Other jobs have reserved five CPUs.
        ([(16, 4), (16, 4)], None, None, "auto", Pool(8, 1, 1, 1)),
        ([(16, 4)], None, None, "cpu", Pool(1, 16, 15, 0)),
    ],
)
def test_the_pool_leaves_cpus_to_tasks_that_read(
    nodes: list[Any], free: float | None, threads: int | None, device: str, expected: Pool
) -> None:
    each = [
        dict(zip(("CPU", "GPU"), map(float, node if isinstance(node, tuple) else (node, 0)), strict=True))
        for node in nodes
    ]
    total = {name: sum(node[name] for node in each) for name in ("CPU", "GPU")}
    assert derive(each, total | ({} if free is None else {"CPU": free}), threads=threads, device=device) == expected


@pytest.mark.parametrize(
    ("cpus", "free", "threads", "device", "says"),
    [(0, 0, None, "auto", "too small"), (8, 1, 4, "cpu", "3.25 CPUs"), (8, 8, 1, "cuda", "no GPU")],
)
def test_a_cluster_that_is_too_small_is_an_error(
    cpus: float, free: float, threads: int | None, device: str, says: str
) -> None:
    with pytest.raises(Refused, match=says):
        derive([{"CPU": cpus}], {"CPU": free}, threads=threads, device=device)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--on", "ray", "--out", "a.parquet"], "a folder of Parquet files"),
        (["--ray-address", "127.0.0.1:6379", "--out", "a.npy"], "--on ray"),
        (["--out", "folder"], ".npy"),
    ],
)
def test_options_that_do_not_belong_together_are_one_line(
    options: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["embed", "nowhere.txt", *options]) == 2
    said = capsys.readouterr().err
    assert says in said and said.count("\n") == 1


def test_no_cluster_at_the_address_is_one_line(
    tiny_bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import ray

    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    with (
        pytest.raises(Refused, match=f"127.0.0.1:{port}: no cluster answers") as refused,
        cluster.connected(f"127.0.0.1:{port}"),
    ):
        pass
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(("found", "says"), [("2.9.3", "2.9.3"), ("3.0.0", "3.0.0"), (None, r"isosphere\[ray\]")])
def test_an_unsupported_ray_is_named(found: str | None, says: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def version(_: str) -> str:
        if found is None:
            raise PackageNotFoundError
        return found

    monkeypatch.setattr(cluster, "version", version)
    with pytest.raises(Refused, match=says):
        cluster.check_version()
