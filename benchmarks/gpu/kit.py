"""A kit of everything that a GPU machine without network lacks for training, serving and search.

    python -m benchmarks.gpu.kit gather [DIR] [--corpus FILE ...] [--data DIR]

This command runs where a package index is available. It downloads the wheels that `kit.toml` lists. It adds the weights
of `minilm` in float16, the first sentences of a corpus and the evaluation data. It writes everything to DIR as numbered
parts of at most 45 MB, with `manifest.json`. The parts are in the order in which the benchmarks need them.

    python benchmarks/gpu/kit.py unpack PARTS ... --to DIR

This command runs on the GPU machine with only Python's standard library and pip. The first call needs `manifest.json`
beside the parts. Each call may add further parts. Complete files are checked and installed below DIR. The command
reports which benchmarks can run and which parts the others need. Standard output has the commands for the shell that
runs the benchmarks, so that `eval "$(python benchmarks/gpu/kit.py unpack ...)"` unpacks the parts and prepares the
shell. Wheels are installed to DIR/site, everything else to DIR/data.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import shlex
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import distributions
from pathlib import Path

FOLDER = Path(".gpu-kit")
MANIFEST = "manifest.json"
PART_BYTES = 45_000_000
CHUNK = 1 << 20
FAMILIES = ("faiss", "onnxruntime")
"""Packages that have several builds. The server accepts only one build of each (docs/adr/0006)."""


class KitError(Exception):
    """A file is missing, damaged, or made for another Python. The message is one line."""


@dataclass(frozen=True)
class Source:
    """A file to pack."""

    path: Path
    name: str
    needed_by: Sequence[str]
    """Names of the benchmarks that need the file."""


@dataclass(frozen=True)
class Part:
    """A numbered part of a kit."""

    name: str
    size: int
    sha256: str


@dataclass(frozen=True)
class File:
    """A packed file. Its content is in one or several parts."""

    name: str
    size: int
    sha256: str
    parts: Sequence[str]
    start: int
    """Offset of the content in the first of these parts."""
    needed_by: Sequence[str]


@dataclass(frozen=True)
class Manifest:
    """The contents of a kit, in the order of its parts."""

    python: str
    """Version of CPython for which the wheels were built."""
    parts: Sequence[Part]
    files: Sequence[File]

    def write(self, path: Path) -> None:
        path.write_text(json.dumps(asdict(self), indent=1) + "\n", encoding="utf-8")

    @classmethod
    def read(cls, path: Path) -> Manifest:
        """Read a manifest that `write` wrote.

        Raises:
            KitError: the file is missing or is no manifest.
        """
        try:
            read = json.loads(path.read_text(encoding="utf-8"))
            parts, files = [Part(**each) for each in read["parts"]], [File(**each) for each in read["files"]]
            return cls(read["python"], parts, files)
        except FileNotFoundError as error:
            raise KitError(f"{path}: missing; copy it together with the first parts") from error
        except (ValueError, TypeError, KeyError) as error:
            raise KitError(f"{path}: damaged, or not the manifest of a kit") from error

    def benchmarks(self) -> list[str]:
        """Return the names of the benchmarks, in the order in which they can start."""
        names = dict.fromkeys(name for file in self.files for name in file.needed_by)
        return sorted(names, key=self.parts_before)

    def parts_before(self, benchmark: str) -> int:
        """Return the number of parts that must arrive before a benchmark can start."""
        needed = {name for file in self.needed(benchmark) for name in file.parts}
        return max((number for number, part in enumerate(self.parts, start=1) if part.name in needed), default=0)

    def needed(self, benchmark: str) -> list[File]:
        return [file for file in self.files if benchmark in file.needed_by]


def split(sources: Sequence[Source], folder: Path, python: str, most: int = PART_BYTES) -> Manifest:
    """Write the files one after another to numbered parts of at most `most` bytes.

    The manifest is written too, and returned.
    """
    files, start = [], 0
    for source in sources:
        size = source.path.stat().st_size
        parts = [_part_name(number) for number in range(start // most, -(-(start + size) // most))]
        files.append(File(source.name, size, _sha256(source.path), parts, start % most, source.needed_by))
        start += size
    stream = (chunk for source in sources for chunk in _chunks(source.path))
    manifest = Manifest(python, list(_cut(stream, folder, most)), files)
    manifest.write(folder / MANIFEST)
    return manifest


def join(file: File, parts: Path) -> Iterator[bytes]:
    """Yield the bytes of a file, part by part."""
    start, left = file.start, file.size
    for name in file.parts:
        with (parts / name).open("rb") as part:
            part.seek(start)
            found = part.read(left)
        yield found
        start, left = 0, left - len(found)


def _cut(stream: Iterable[bytes], folder: Path, most: int) -> Iterator[Part]:
    waiting, number = bytearray(), 0
    for chunk in stream:
        waiting += chunk
        while len(waiting) >= most:
            yield _written(folder / _part_name(number), waiting[:most])
            del waiting[:most]
            number += 1
    if waiting:
        yield _written(folder / _part_name(number), waiting)


def _written(path: Path, content: bytes | bytearray) -> Part:
    path.write_bytes(content)
    return Part(path.name, len(content), hashlib.sha256(content).hexdigest())


def _part_name(number: int) -> str:
    return f"part-{number + 1:02}"


def _chunks(path: Path) -> Iterator[bytes]:
    with path.open("rb") as file:
        while chunk := file.read(CHUNK):
            yield chunk


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


class Unpacked:
    """The folder on the GPU machine, with the parts that have arrived and the files that are installed from them."""

    def __init__(self, folder: Path, manifest: Manifest) -> None:
        self.manifest = manifest
        self.parts, self.wheels = folder / "parts", folder / "wheels"
        self.site, self.data = folder / "site", folder / "data"
        self._record = folder / "installed.txt"
        for each in (self.parts, self.wheels, self.site, self.data):
            each.mkdir(parents=True, exist_ok=True)

    def keep(self, path: Path) -> None:
        """Copy a part into the folder, so that later calls find it.

        Raises:
            KitError: the part is missing, damaged, or belongs to another kit.
        """
        part = next((part for part in self.manifest.parts if part.name == path.name), None)
        if part is None:
            last = self.manifest.parts[-1].name if self.manifest.parts else "none"
            raise KitError(f"{path}: not a part of this kit; the parts are {_part_name(0)} to {last}")
        if not path.is_file():
            raise KitError(f"{path}: missing")
        if path.stat().st_size != part.size or _sha256(path) != part.sha256:
            raise KitError(f"{path}: damaged; copy it again")
        copy = shutil.copyfile(path, self.parts / f"{part.name}.copying")
        copy.rename(self.parts / part.name)  # The copy gets the part's name only when it is complete.

    def install(self) -> None:
        """Install the files whose parts have all arrived and that are not installed yet.

        Raises:
            KitError: a file is damaged, or pip refuses a wheel.
        """
        installed = self.installed()
        complete = [file for file in self.manifest.files if file.name not in installed and not self.missing(file)]
        wheels = [self._whole(file, self.wheels) for file in complete if file.name.endswith(".whl")]
        if wheels:
            _pip_install(wheels, self.site)
        for file in complete:
            if not file.name.endswith(".whl"):
                path = self._whole(file, self.data)
                if path.name.endswith(".tar.xz"):
                    with tarfile.open(path) as archive:
                        archive.extractall(path.parent, filter="data")
                    path.unlink()
        with self._record.open("a", encoding="utf-8") as record:
            record.writelines(f"{file.name}\n" for file in complete)

    def installed(self) -> set[str]:
        return set(self._record.read_text(encoding="utf-8").splitlines()) if self._record.is_file() else set()

    def missing(self, file: File) -> list[str]:
        return [name for name in file.parts if not (self.parts / name).is_file()]

    def report(self) -> Iterator[str]:
        """Yield a line for each benchmark, which says that it can start or lists the parts that it needs."""
        for benchmark in self.manifest.benchmarks():
            waiting = [file for file in self.manifest.needed(benchmark) if self.missing(file)]
            parts = sorted({name for file in waiting for name in self.missing(file)})
            names = ", ".join(file.name.partition("-")[0] for file in waiting)
            yield f"{benchmark}: needs {', '.join(parts)} ({names})" if parts else f"{benchmark}: can start"

    def _whole(self, file: File, folder: Path) -> Path:
        path = folder / file.name
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("wb") as whole:
            whole.writelines(join(file, self.parts))
        if _sha256(path) != file.sha256:
            raise KitError(f"{file.name}: damaged, although its parts are not; gather the kit again")
        return path


def _pip_install(wheels: Sequence[Path], site: Path) -> None:
    # `--upgrade` replaces files of an interrupted call. It also replaces the folder `bin`, which is not needed.
    flags = ["--no-index", "--no-deps", "--no-compile", "--no-cache-dir", "--disable-pip-version-check", "--upgrade"]
    command = [sys.executable, "-m", "pip", "install", "--quiet", *flags, "--target", str(site), *map(str, wheels)]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    if ended.returncode:
        raise KitError(f"pip refuses the wheels: {last_error(ended.stderr)}")


def last_error(said: str) -> str:
    """Return the line of pip's output that contains the reason for a failure."""
    lines = [line for line in said.splitlines() if line.strip()]
    errors = [line for line in lines if line.startswith("ERROR")]
    return (errors or lines or ["it gives no reason"])[-1]


def unpack(parts: Sequence[Path], to: Path) -> Unpacked:
    """Check the parts, copy them into a folder, and install the files that are complete.

    Raises:
        KitError: a part is missing, damaged, belongs to another kit, or is made for another Python.
    """
    manifest = _manifest_for(parts, to)
    here = f"{sys.version_info.major}.{sys.version_info.minor}"
    if manifest.python != here:
        raise KitError(f"the kit is for Python {manifest.python}, and {sys.executable} is Python {here}")
    unpacked = Unpacked(to, manifest)
    manifest.write(to / MANIFEST)
    for part in parts:
        unpacked.keep(part)
    unpacked.install()
    return unpacked


def _manifest_for(parts: Sequence[Path], to: Path) -> Manifest:
    """Return the manifest beside the parts, or the manifest of an earlier call if there is none."""
    before = Manifest.read(to / MANIFEST) if (to / MANIFEST).is_file() else None
    beside = parts[0].parent / MANIFEST
    if before and not beside.is_file():
        return before
    manifest = Manifest.read(beside)
    if before not in (None, manifest):
        raise KitError(f"{to}: contains another kit; unpack this one into an empty folder")
    return manifest


def shell_commands(unpacked: Unpacked) -> Iterator[str]:
    """Yield the shell commands that must run before a benchmark."""
    yield f"export PYTHONPATH={_before('PYTHONPATH', [unpacked.site])}"
    # The installed ONNX Runtime and FAISS do not find the CUDA libraries that were installed together with torch.
    if libraries := [folder for entry in sys.path for folder in sorted(Path(entry).glob("nvidia/*/lib"))]:
        yield f"export LD_LIBRARY_PATH={_before('LD_LIBRARY_PATH', libraries)}"
    if others := sorted(_other_builds(unpacked.site)):
        yield f"{shlex.quote(sys.executable)} -m pip uninstall --quiet --yes {' '.join(others)}"


def _before(variable: str, folders: Iterable[Path]) -> str:
    return shlex.quote(":".join(str(folder.resolve()) for folder in folders)) + f"${{{variable}:+:${variable}}}"


def _other_builds(site: Path) -> set[str]:
    """Return the installed packages that are other builds of the kit's packages.

    They must be removed, because the server refuses to start with two builds.
    """
    ours = {_family(name) for name in _names(str(site))} - {None}
    elsewhere = [entry for entry in sys.path if Path(entry).resolve() != site.resolve()]
    return {name for name in _names(*elsewhere) if _family(name) in ours}


def _names(*folders: str) -> set[str]:
    return {found.metadata["Name"].lower().replace("_", "-") for found in distributions(path=list(folders))}


def _family(name: str) -> str | None:
    return next((family for family in FAMILIES if name == family or name.startswith(f"{family}-")), None)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command `gather` or `unpack`, and return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    verbs = parser.add_subparsers(dest="verb", required=True)
    gathering = verbs.add_parser("gather", help="download the files and write the parts of the kit")
    gathering.add_argument(
        "folder", nargs="?", type=Path, default=FOLDER, metavar="DIR", help="folder (default: %(default)s)"
    )
    gathering.add_argument(
        "--corpus", nargs="+", type=Path, default=[], metavar="FILE", help="corpus files: plain text, .gz or .xz"
    )
    gathering.add_argument("--data", type=Path, metavar="DIR", help="evaluation data, in SentEval's layout")
    gathering.add_argument(
        "--all-kernels", action="store_true", help="keep the wheels as published, with the kernels of all GPUs"
    )
    unpacking = verbs.add_parser("unpack", help="check and install the received parts")
    unpacking.add_argument("parts", nargs="+", type=Path, metavar="PARTS")
    unpacking.add_argument("--to", type=Path, required=True, metavar="DIR")
    asked = parser.parse_args(arguments)
    try:
        if asked.verb == "gather":
            _gather(asked)
        else:
            unpacked = unpack(asked.parts, asked.to)
            print(*unpacked.report(), sep="\n", file=sys.stderr)
            print(*shell_commands(unpacked), sep="\n")
    except KitError as error:
        print(f"kit: {error}", file=sys.stderr)
        return 1
    return 0


def _gather(asked: argparse.Namespace) -> None:
    try:
        from benchmarks.gpu.gathering import gather
    except ImportError as error:
        raise KitError(f"`python -m benchmarks.gpu.kit gather` runs in the project's environment ({error})") from error
    manifest = gather(asked.folder, asked.corpus, asked.data, all_kernels=asked.all_kernels)
    for file in manifest.files:
        print(f"{file.size / 1e6:8.1f} MB  {file.name}  ({', '.join(file.needed_by)})")
    print(f"{sum(part.size for part in manifest.parts) / 1e6:8.1f} MB  in {len(manifest.parts)} parts")
    for benchmark in manifest.benchmarks():
        print(f"{benchmark} can start after part {manifest.parts_before(benchmark)}")


if __name__ == "__main__":
    sys.exit(main())
