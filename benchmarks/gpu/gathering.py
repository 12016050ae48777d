"""Collection of the files of a kit (see `benchmarks.gpu.kit`): wheels, weights, sentences and evaluation data."""

from __future__ import annotations

import hashlib
import lzma
import subprocess
import sys
import tarfile
import tempfile
import tomllib
import zipfile
from base64 import urlsafe_b64encode
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from email import message_from_bytes
from importlib.metadata import distribution
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from safetensors.numpy import load_file, save_file

from benchmarks.gpu import kernels
from benchmarks.gpu.kit import KitError, Manifest, Source, last_error, split
from models.bundle.bundle import WEIGHTS
from models.bundle.sources import minilm
from models.errors import Refused
from training.data.files import lines

LIST = Path(__file__).with_name("kit.toml")
SENTENCES = 200_000
PROJECT = "isosphere"
UNNEEDED = {WEIGHTS, "README.md", ".gitattributes", "data_config.json"}
"""Files of minilm's package that are left out: the weights, which are packed separately, and what no loader reads."""


def gather(folder: Path, corpus: Sequence[Path], data: Path | None, *, all_kernels: bool = False) -> Manifest:
    """Write the parts of a kit to a folder, and replace the parts of an earlier kit.

    Raises:
        KitError: a wheel can't be downloaded or lacks a dependency, or a requested file can't be read.
    """
    listed = tomllib.loads(LIST.read_text(encoding="utf-8"))
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.glob("part-*"):
        old.unlink()
    with tempfile.TemporaryDirectory(dir=folder) as work:
        try:
            wheels = list(_wheels(Path(work), listed))
            refuse_missing((wheel.path for wheel in wheels), listed["machine"])
            if not all_kernels:
                wheels = [replace(wheel, path=trim(wheel.path, listed["capability"])) for wheel in wheels]
            sources = [*wheels, *_material(Path(work), corpus, data)]
        except (Refused, OSError) as error:
            raise KitError(str(error)) from error
        return split(sources, folder, listed["python"])


def _wheels(work: Path, listed: dict[str, Any]) -> Iterator[Source]:
    """Yield a wheel with the project's metadata, and then the wheels of the list in order."""
    project = _metadata(work)
    yield Source(project, project.name, listed["wheels"][0]["needed_by"])
    for number, group in enumerate(listed["wheels"]):
        print(f"downloading {group['of']} …", file=sys.stderr)
        for path in _download(group["requirements"], work / str(number), listed):
            yield Source(path, path.name, group["needed_by"])


def _metadata(work: Path) -> Path:
    """Make a wheel that contains only the project's metadata, and return its path.

    The server reads its version from the metadata of the installed project. The code itself comes from the working
    tree, because an installed copy of the code would be older.
    """
    installed = distribution(PROJECT)
    folder = f"{PROJECT}-{installed.version}.dist-info"
    members = {
        "METADATA": installed.read_text("METADATA") or installed.read_text("PKG-INFO") or "",
        "entry_points.txt": installed.read_text("entry_points.txt") or "",
        "WHEEL": "Wheel-Version: 1.0\nGenerator: benchmarks.gpu.kit\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    path = work / f"{PROJECT}-{installed.version}-py3-none-any.whl"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as wheel:
        for name, text in members.items():
            wheel.writestr(f"{folder}/{name}", text)
        wheel.writestr(f"{folder}/RECORD", "".join(f"{folder}/{name},,\n" for name in (*members, "RECORD")))
    return path


def _download(requirements: Sequence[str], folder: Path, listed: dict[str, Any]) -> list[Path]:
    platforms = [flag for platform in listed["platforms"] for flag in ("--platform", platform)]
    flags = ["--no-deps", "--only-binary=:all:", "--implementation=cp", f"--python-version={listed['python']}"]
    command = [sys.executable, "-m", "pip", "download", "--disable-pip-version-check", "--quiet", "--dest", str(folder)]
    ended = subprocess.run([*command, *flags, *platforms, *requirements], capture_output=True, text=True, check=False)
    if ended.returncode:
        raise KitError(f"pip can't download {' '.join(requirements)}: {last_error(ended.stderr)}")
    return sorted(folder.glob("*.whl"))


def refuse_missing(wheels: Iterable[Path], machine: Iterable[str]) -> None:
    """Raise an error unless each dependency of a wheel is another wheel or a package of the machine.

    Raises:
        KitError: a dependency is missing; the message names it and the wheel.
    """
    needs = {_name(wheel): list(_dependencies(wheel)) for wheel in wheels}
    there = {canonicalize_name(name) for name in (*needs, *machine)}
    for name, dependencies in needs.items():
        if missing := [each for each in dependencies if canonicalize_name(each) not in there]:
            raise KitError(f"{name} needs {', '.join(missing)}: add it to {LIST.name}, as a wheel or under `machine`")


def _name(wheel: Path) -> str:
    return wheel.name.partition("-")[0]


def _dependencies(wheel: Path) -> Iterator[str]:
    """Yield the dependencies in a wheel's metadata that apply to the GPU machine, without extras."""
    with zipfile.ZipFile(wheel) as members:
        (path,) = (name for name in members.namelist() if name.endswith(".dist-info/METADATA"))
        metadata = message_from_bytes(members.read(path))
    for line in metadata.get_all("Requires-Dist", []):
        requirement = Requirement(line)
        if requirement.marker is None or requirement.marker.evaluate({"python_version": "3.12", "extra": ""}):
            yield requirement.name


def trim(wheel: Path, capability: int) -> Path:
    """Copy a wheel without headers and without kernels for other GPUs, and return the path of the copy.

    If the wheel has nothing to remove, the wheel itself is returned. Trimming more than halves the wheels of ONNX
    Runtime and FAISS.
    """
    trimmed = wheel.parent / "trimmed" / wheel.name
    trimmed.parent.mkdir(exist_ok=True)
    emptied, record = 0, []
    with zipfile.ZipFile(wheel) as before, zipfile.ZipFile(trimmed, "w", zipfile.ZIP_DEFLATED) as after:
        for name in before.namelist():
            if "/include/" in name or name.endswith(("/", "/RECORD")):
                continue
            content = bytearray(before.read(name))
            if ".so" in Path(name).suffixes:
                emptied += kernels.empty_others(content, capability)
            after.writestr(name, content)
            digest = urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
            record.append(f"{name},sha256={digest},{len(content)}\n")
        (path,) = (name for name in before.namelist() if name.endswith(".dist-info/RECORD"))
        after.writestr(path, "".join((*record, f"{path},,\n")))
    return trimmed if emptied else wheel


def _material(work: Path, corpus: Sequence[Path], data: Path | None) -> Iterator[Source]:
    """Yield all files of the kit except packages.

    The tokenizer comes first, because random encoders need it, and the weights come last.
    """
    print("packing weights, sentences and data …", file=sys.stderr)
    encoder = minilm()
    beside = sorted(path for path in encoder.rglob("*") if path.is_file() and path.name not in UNNEEDED)
    archive = _archive(work / "minilm.tar.xz", "minilm", encoder, beside)
    yield Source(archive, archive.name, ["serving", "training", "studies", "pretraining"])
    if corpus:
        yield Source(_sentences(work, corpus), "corpus.txt.xz", ["training", "studies", "pretraining"])
    if data:
        files = sorted(path for path in data.rglob("*") if path.is_file())
        if not files:
            raise KitError(f"{data}: contains no files")
        yield Source(
            _archive(work / "evaluation.tar.xz", "evaluation", data, files),
            "evaluation.tar.xz",
            ["studies", "pretraining"],
        )
    yield Source(_half(work, encoder / WEIGHTS), f"minilm/{WEIGHTS}", ["studies"])


def _archive(path: Path, name: str, root: Path, files: Sequence[Path]) -> Path:
    with tarfile.open(path, "w:xz") as archive:
        for file in files:
            archive.add(file, f"{name}/{file.relative_to(root)}")
    return path


def _sentences(work: Path, corpus: Sequence[Path]) -> Path:
    path = work / "corpus.txt.xz"
    with lzma.open(path, "wt", encoding="utf-8") as packed:
        packed.writelines(islice(lines(corpus), SENTENCES))
    return path


def _half(work: Path, weights: Path) -> Path:
    """Write weights in float16 to an uncompressed file, because most of their bits are noise."""
    path = work / WEIGHTS
    tensors = load_file(weights)
    halves = {name: each.astype(np.float16) if each.dtype == np.float32 else each for name, each in tensors.items()}
    save_file(halves, path, metadata={"format": "pt"})
    return path
