"""Command `python -m benchmarks.peers [NAME …]`, which creates an environment in .peers/ for each peer.

The file NAME.txt pins the versions of a peer's packages.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tarfile
import venv
from itertools import chain
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.peers import CONVERTED, ENVIRONMENTS, EXPORTED, FLAT, GGUF, environment, python
from models.bundle.sources import resolve
from models.cli.command_line import Parser

HERE = Path(__file__).parent
LLAMA = "llama-cpp-python"
CONVERTER = "sentence-transformers"
"""Peer whose environment has torch and transformers, which the converter of llama.cpp needs."""


def main() -> int:
    """Create the named environments, or all. Return the exit status of the first failure, or 0."""
    parser = Parser(prog="python -m benchmarks.peers", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"{', '.join(ENVIRONMENTS)} (default: all)")
    names = parser.parse_args().names or ENVIRONMENTS
    if unknown := set(names) - set(ENVIRONMENTS):
        parser.error(f"no peer {', '.join(sorted(unknown))}; available: {', '.join(ENVIRONMENTS)}")
    if "llama-cpp" in names and CONVERTER not in names and not python(CONVERTER).exists():
        parser.error(f"llama-cpp is converted in the environment {CONVERTER}: name it, too")
    try:
        for name in names:
            _create(name)
    except subprocess.CalledProcessError as failure:
        return failure.returncode
    return 0


def _create(name: str) -> None:
    print(f"{name}: installing into {environment(name)} …", flush=True)
    venv.create(environment(name), with_pip=True, clear=True, symlinks=True)
    _run(python(name), "-m", "pip", "install", "--quiet", "-r", HERE / f"{name}.txt")
    if name == "sentence-transformers":
        for backend, folder in EXPORTED.items():
            print(f"{name}: exporting for {backend} …", flush=True)
            _run(python(name), HERE / "export.py", backend, resolve("minilm"), folder)
        _flatten()
        print(f"{name}: converting for CTranslate2 …", flush=True)
        converter = environment(name) / "bin" / "ct2-transformers-converter"
        place = "--model", resolve("minilm"), "--output_dir", CONVERTED
        _run(converter, "--force", *place, "--copy_files", "tokenizer.json")
    if name == "llama-cpp":
        print(f"{name}: converting to GGUF …", flush=True)
        _to_gguf(name)


def _flatten() -> None:
    """Link the files of the ONNX export into the folder `FLAT`."""
    shutil.rmtree(FLAT, ignore_errors=True)
    FLAT.mkdir()
    for file in chain(EXPORTED["onnx"].glob("*.*"), EXPORTED["onnx"].glob("onnx/*")):
        (FLAT / file.name).symlink_to(file)
    # infinity's optimum truncates at the number of positions, and the other contestants at model_max_length.
    config = json.loads((EXPORTED["onnx"] / "config.json").read_text())
    most = json.loads((EXPORTED["onnx"] / "tokenizer_config.json").read_text())["model_max_length"]
    (FLAT / "config.json").unlink()
    (FLAT / "config.json").write_text(json.dumps(config | {"max_position_embeddings": most}))


def _to_gguf(name: str) -> None:
    """Convert minilm with llama.cpp's own converter.

    The converter is only in the source of the package. It runs in the environment `CONVERTER`.
    """
    with TemporaryDirectory() as folder:
        fetching = python(name), "-m", "pip", "download", "--quiet", "--no-deps", "--dest", folder
        _run(*fetching, "--no-binary", LLAMA, "--constraint", HERE / f"{name}.txt", LLAMA)
        (source,) = Path(folder).glob("*.tar.gz")
        with tarfile.open(source) as packed:
            packed.extractall(folder, filter="data")
        (converter,) = Path(folder).glob("*/vendor/llama.cpp/convert_hf_to_gguf.py")
        GGUF.parent.mkdir(parents=True, exist_ok=True)
        variables = {"PYTHONPATH": str(converter.with_name("gguf-py"))}
        _run(python(CONVERTER), converter, resolve("minilm"), "--outfile", GGUF, "--outtype", "f16", **variables)


def _run(*command: str | Path, **variables: str) -> None:
    subprocess.run(command, env=os.environ | variables, check=True)


if __name__ == "__main__":
    sys.exit(main())
