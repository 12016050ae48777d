"""Tests of the kit for GPU machines: files arrive unchanged, or an error names the problem.

The tests need no network and use small files.
"""

from __future__ import annotations

import hashlib
import re
import subprocess
import sys
import tomllib
import zipfile
from base64 import urlsafe_b64encode
from collections.abc import Callable, Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from safetensors.numpy import load_file, save_file

from benchmarks.gpu import gathering, kernels, kit
from benchmarks.gpu.kit import KitError, Manifest, Source, join, main, split, unpack
from tests.benchmarks.test_gpu_kernels import container
from training.data.files import lines

ROOT = Path(__file__).parents[2]
LISTED = tomllib.loads(gathering.LIST.read_text(encoding="utf-8"))
HERE = f"{sys.version_info.major}.{sys.version_info.minor}"
CONTENTS = {"one.txt": b"to be, or not to be", "folder/two.txt": b"that is the question"}


def sources(folder: Path, contents: dict[str, bytes], *needed_by: str) -> list[Source]:
    folder.mkdir(parents=True, exist_ok=True)
    for number, content in enumerate(contents.values()):
        (folder / str(number)).write_bytes(content)
    return [Source(folder / str(number), name, list(needed_by)) for number, name in enumerate(contents)]


def wheel(
    folder: Path, name: str, *needs: str, files: dict[str, bytes] | None = None, tag: str = "py3-none-any"
) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}-1.0-{tag}.whl"
    metadata = "".join(
        (f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n", *(f"Requires-Dist: {n}\n" for n in needs))
    )
    with zipfile.ZipFile(path, "w") as archive:
        for file, content in (files or {f"{name}.py": b"FOUND = True\n"}).items():
            archive.writestr(file, content)
        archive.writestr(f"{name}-1.0.dist-info/METADATA", metadata)
        archive.writestr(f"{name}-1.0.dist-info/WHEEL", f"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: {tag}\n")
        archive.writestr(f"{name}-1.0.dist-info/RECORD", "")
    return path


@pytest.fixture
def parts(tmp_path: Path) -> list[Path]:
    """Make a kit of two text files, both needed by "checks", in parts of ten bytes."""
    (tmp_path / "kit").mkdir()
    manifest = split(sources(tmp_path / "from", CONTENTS, "checks"), tmp_path / "kit", HERE, 10)
    return [tmp_path / "kit" / part.name for part in manifest.parts]


@given(contents=st.lists(st.binary(max_size=60), max_size=6), most=st.integers(1, 70))
def test_files_of_any_size_come_out_of_parts_of_any_size(
    contents: list[bytes], most: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("kit")
    given_files = sources(folder / "from", {str(number): each for number, each in enumerate(contents)}, "checks")
    manifest = split(given_files, folder, HERE, most)
    assert Manifest.read(folder / kit.MANIFEST) == manifest
    assert [b"".join(join(file, folder)) for file in manifest.files] == contents
    assert [part.size for part in manifest.parts[:-1]] == [most] * (len(manifest.parts) - 1)
    assert b"".join((folder / part.name).read_bytes() for part in manifest.parts) == b"".join(contents)


@given(data=st.data())
def test_a_changed_byte_names_its_part(data: st.DataObject, tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.mktemp("kit")
    manifest = split(sources(folder / "from", CONTENTS, "checks"), folder, HERE, data.draw(st.integers(1, 50)))
    part = folder / data.draw(st.sampled_from(manifest.parts)).name
    content = bytearray(part.read_bytes())
    content[data.draw(st.integers(0, len(content) - 1))] ^= data.draw(st.integers(1, 255))
    part.write_bytes(content)
    with pytest.raises(KitError, match=f"{part.name}: damaged"):
        unpack([folder / each.name for each in manifest.parts], folder / "to")


def test_parts_may_come_one_by_one_in_any_order(parts: list[Path], tmp_path: Path) -> None:
    to = tmp_path / "to"
    for number, part in enumerate(reversed(parts), start=1):
        (said,) = unpack([part], to).report()
        part.unlink()  # A later call does not need this file either.
        waiting = [each.name for each in parts[: len(parts) - number]]
        assert said.startswith(f"checks: needs {', '.join(waiting)} (" if waiting else "checks: can start")
        assert (to / "data/folder/two.txt").is_file() == (number >= 3), "which lies in the last three"
    assert {name: (to / "data" / name).read_bytes() for name in CONTENTS} == CONTENTS


def test_a_call_that_was_interrupted_is_made_good_by_the_next(
    parts: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(kit.Unpacked, "install", lambda _: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            unpack(parts, tmp_path / "to")
    assert list(unpack(parts[:1], tmp_path / "to").report()) == ["checks: can start"]
    assert (tmp_path / "to/data/one.txt").read_bytes() == CONTENTS["one.txt"]


def _other_python(parts: list[Path], to: Path) -> None:
    manifest = Manifest.read(parts[0].parent / kit.MANIFEST)
    Manifest("2.7", manifest.parts, manifest.files).write(parts[0].parent / kit.MANIFEST)


def _other_kit(parts: list[Path], to: Path) -> None:
    unpack(parts, to)
    split(sources(to / "more", {"three": b"more"}, "checks"), parts[0].parent, HERE)


def _spoil(name: str, content: bytes | None) -> Callable[[list[Path], Path], None]:
    def spoil(parts: list[Path], to: Path) -> None:
        path = parts[0].parent / name
        path.unlink() if content is None else path.write_bytes(content)

    return spoil


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (_spoil("part-02", None), "part-02: missing$"),
        (_spoil("manifest.json", None), "manifest.json: missing; copy it together with the first parts"),
        (_spoil("manifest.json", b"{}"), "manifest.json: damaged, or not the manifest of a kit"),
        (_spoil("manifest.json", b"\xff"), "manifest.json: damaged, or not the manifest of a kit"),
        (_other_python, f"the kit is for Python 2.7, and .* is Python {re.escape(HERE)}"),
        (_other_kit, "to: contains another kit; unpack this one into an empty folder"),
        (
            lambda parts, _: parts.append(parts[0].with_name("part-99")),
            "part-99: not a part of this kit; .* part-01 to",
        ),
    ],
)
def test_what_is_wrong_is_one_line(
    spoil: Callable[[list[Path], Path], None],
    message: str,
    parts: list[Path],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    spoil(parts, tmp_path / "to")
    assert main(["unpack", *map(str, parts), "--to", str(tmp_path / "to")]) == 1
    out, err = capsys.readouterr()
    assert not out and err.startswith("kit: ") and err.count("\n") == 1
    assert re.search(message, err.rstrip())


@pytest.mark.slow
def test_a_wheel_for_another_machine_is_one_line(tmp_path: Path) -> None:
    path = wheel(tmp_path, "elsewhere", tag="cp27-cp27m-win32")
    split([Source(path, path.name, ["checks"])], tmp_path, HERE)
    with pytest.raises(
        KitError, match=r"pip refuses the wheels: ERROR: elsewhere.* is not a supported wheel"
    ) as raised:
        unpack([tmp_path / "part-01"], tmp_path / "to")
    assert "\n" not in str(raised.value)


@pytest.mark.slow
def test_as_a_plain_file_it_needs_nothing_of_the_project(tmp_path: Path) -> None:
    path = wheel(tmp_path, "carried")
    manifest = split([Source(path, path.name, ["checks"])], tmp_path, HERE, path.stat().st_size // 2 + 1)
    script = tmp_path / "alone" / "kit.py"
    script.parent.mkdir()
    script.write_bytes(Path(kit.__file__).read_bytes())

    def call(*parts: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-I", str(script), "unpack", *parts, "--to", "to"]
        return subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)

    assert len(manifest.parts) == 2
    assert call("part-01").stderr == "checks: needs part-02 (carried)\n"
    ended = call("part-02")
    assert ended.stderr == "checks: can start\n"
    used = subprocess.run(
        ["bash", "-c", f'{ended.stdout}\n{sys.executable} -c "import carried; print(carried.__file__)"'],
        capture_output=True,
        text=True,
        check=True,
    )
    assert used.stdout.strip() == str(tmp_path / "to/site/carried.py")


@pytest.mark.slow
def test_libraries_of_the_machine_are_found_and_builds_that_clash_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Check a machine that has CUDA's libraries and another build of ONNX Runtime, but no FAISS."""
    path = wheel(tmp_path, "onnxruntime_gpu")
    (tmp_path / "machine/nvidia/cu13/lib").mkdir(parents=True)
    for name in ("onnxruntime", "onnx"):
        with zipfile.ZipFile(wheel(tmp_path, name)) as archive:
            archive.extractall(tmp_path / "machine")
    monkeypatch.setattr(sys, "path", [str(tmp_path / "machine")])
    split([Source(path, path.name, ["checks"])], tmp_path, HERE)
    unpacked = unpack([tmp_path / "part-01"], tmp_path / "to")
    expected = [
        f"export PYTHONPATH={tmp_path}/to/site${{PYTHONPATH:+:$PYTHONPATH}}",
        f"export LD_LIBRARY_PATH={tmp_path}/machine/nvidia/cu13/lib${{LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}}",
        f"{sys.executable} -m pip uninstall --quiet --yes onnxruntime",
    ]
    assert list(kit.shell_commands(unpacked)) == expected
    sys.path.insert(0, str(unpacked.site))  # This is a shell that ran the commands of an earlier call.
    monkeypatch.chdir(tmp_path)
    assert list(kit.shell_commands(unpack([Path("part-01")], Path("to")))) == expected


@pytest.fixture
def _no_network(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Replace the wheels by small files and minilm by a single number."""

    def download(requirements: Sequence[str], folder: Path, listed: dict[str, Any]) -> list[Path]:
        return [wheel(folder, re.sub(r"\W", "_", each.partition("==")[0]), "numpy>=1") for each in requirements]

    encoder = tmp_path / "encoder"
    (encoder / "1_Pooling").mkdir(parents=True)
    for name in ("config.json", "README.md", "1_Pooling/config.json"):
        (encoder / name).write_text(name)
    save_file({"weight": np.array([1.0001], np.float32), "at": np.array([3])}, encoder / "model.safetensors")
    monkeypatch.setattr(gathering, "_download", download)
    monkeypatch.setattr(gathering, "minilm", lambda: encoder)


@pytest.mark.usefixtures("_no_network")
def test_a_kit_is_in_the_order_of_the_benchmarks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gathering, "SENTENCES", 2)
    monkeypatch.setattr(kit, "_pip_install", lambda *_: None)
    (tmp_path / "corpus.txt").write_text("One.\nTwo.\nThree.\n")
    (tmp_path / "data/STS").mkdir(parents=True)
    (tmp_path / "data/STS/dev.csv").write_text("a\tb\t5\n")
    (tmp_path / "kit").mkdir()
    (tmp_path / "kit/part-77").write_text("of a kit before")
    manifest = gathering.gather(tmp_path / "kit", [tmp_path / "corpus.txt"], tmp_path / "data")

    names = [file.name.partition("-")[0].partition(".")[0] for file in manifest.files]
    landmarks = ["isosphere", "fastapi", "onnxruntime_gpu", "faiss_gpu_cuvs", "minilm", "corpus", "evaluation"]
    assert [name for name in names if name in landmarks] == landmarks
    assert manifest.files[-1].name == "minilm/model.safetensors" and manifest.python == "3.12"
    assert manifest.benchmarks()[0] == "checks"
    ends = list(accumulate(file.size for file in manifest.files))
    assert ends[-1] == sum(part.size for part in manifest.parts)
    assert {path.name for path in (tmp_path / "kit").iterdir()} == {"manifest.json", "part-01"}

    Manifest(HERE, manifest.parts, manifest.files).write(tmp_path / "kit" / kit.MANIFEST)
    data = unpack([tmp_path / "kit/part-01"], tmp_path / "to").data
    assert {str(path.relative_to(data)) for path in data.rglob("*") if path.is_file()} == {
        *("minilm/config.json", "minilm/1_Pooling/config.json", "minilm/model.safetensors"),
        *("corpus.txt.xz", "evaluation/STS/dev.csv"),
    }
    assert "".join(lines([data / "corpus.txt.xz"])) == "One.\nTwo.\n"
    weights = load_file(data / "minilm/model.safetensors")
    assert weights["weight"].tolist() == [np.float16(1.0001)] and weights["weight"].dtype == np.float16
    assert weights["at"].tolist() == [3] and weights["at"].dtype == np.int64


@pytest.mark.usefixtures("_no_network")
@pytest.mark.parametrize(
    ("flags", "message"),
    [(["--corpus", "none.txt"], "none.txt: No such file"), (["--data", "empty"], "empty: contains no files")],
)
def test_what_can_not_be_gathered_is_named(
    flags: list[str],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").mkdir()
    assert main(["gather", "kit", *flags]) == 1
    assert f"kit: {message}" in capsys.readouterr().err
    assert not list((tmp_path / "kit").iterdir())


def test_a_dependency_that_is_nowhere_is_named(tmp_path: Path) -> None:
    wheels = [
        wheel(tmp_path, "fastapi", "Star_lette>=1", "numpy", "tomli; python_version < '3.11'", "rich; extra == 'all'"),
        wheel(tmp_path, "star_lette"),
    ]
    gathering.refuse_missing(wheels, ["numpy"])
    with pytest.raises(KitError, match=r"fastapi needs numpy: add it to kit.toml"):
        gathering.refuse_missing(wheels, ["torch"])


def test_the_list_has_what_the_server_needs_in_the_versions_of_constraints() -> None:
    pinned = dict(line.split("==") for line in (ROOT / "constraints.txt").read_text().splitlines() if "==" in line)
    listed = dict(each.split("==") for group in LISTED["wheels"] for each in group["requirements"])
    elsewhere = {"faiss-gpu-cuvs", "libcuvs-cu13", "libraft-cu13", "librmm-cu13", "rapids-logger"}
    assert {name: version for name, version in listed.items() if pinned.get(name) != version}.keys() == elsewhere
    assert listed["faiss-gpu-cuvs"] == pinned["faiss-gpu"]
    serve = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]["serve"]
    names = {re.split(r"[><=;]", each)[0].strip() for each in serve}
    assert names <= {*listed, *LISTED["machine"]}


@pytest.mark.slow
def test_a_trimmed_wheel_installs_and_its_record_is_true(tmp_path: Path) -> None:
    library = container((kernels.CUBIN, 80, b"eighty" * 9), (kernels.CUBIN, 90, b"ninety"))
    path = wheel(
        tmp_path,
        "kernels",
        files={
            "kernels/__init__.py": b"",
            "kernels/lib.so.1.2": library,
            "kernels/include/a.h": b"int a;",
            "kernels/x": library,
        },
    )
    trimmed = gathering.trim(path, 90)
    assert trimmed.name == path.name and trimmed != path
    split([Source(trimmed, trimmed.name, ["checks"])], tmp_path, HERE)
    site = unpack([tmp_path / "part-01"], tmp_path / "to").site
    expected = container((kernels.CUBIN, 80, bytes(54)), (kernels.CUBIN, 90, b"ninety"))
    assert (site / "kernels/lib.so.1.2").read_bytes() == expected
    assert (site / "kernels/x").read_bytes() == library, "which is no shared library"
    assert not (site / "kernels/include").exists()
    digest = urlsafe_b64encode(hashlib.sha256(expected).digest()).rstrip(b"=").decode()
    assert f"kernels/lib.so.1.2,sha256={digest},{len(expected)}" in (site / "kernels-1.0.dist-info/RECORD").read_text()


def test_a_wheel_without_kernels_stays_as_it_was_published(tmp_path: Path) -> None:
    path = wheel(tmp_path, "plain")
    assert gathering.trim(path, 90) == path
