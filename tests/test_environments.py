"""Tests of the packages in each environment, which must suffice for its commands."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.environments import EXTRAS, ROOT, WEIGHTS, brought, environment, ran

MOST = 45
"""Maximum number of packages that `make serve` installs, without pip, setuptools and isosphere itself."""
IMPORT_ALL = """
import importlib, pkgutil
for room in ("models", "training"):
    for module in pkgutil.walk_packages([room], prefix=f"{room}."):
        if not module.name.endswith("__main__") and module.name != "training.machine.memory":
            importlib.import_module(module.name)
"""


@pytest.fixture(scope="module")
def servings(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return environment(tmp_path_factory.mktemp("serving"), brought("serve", "cpu") | {WEIGHTS, "isosphere"})


def test_serving_takes_few_packages_and_no_torch() -> None:
    names = brought("serve", "cpu") | {WEIGHTS}
    assert len(names) <= MOST, sorted(names)
    assert names.isdisjoint({"torch", "transformers", "sentence-transformers", "peft", "opentelemetry-sdk", "pytest"})
    assert {"onnxruntime", "faiss-cpu", "fastapi", "tokenizers", "onnx", "safetensors"} <= names


def locked(name: str) -> dict[str, Requirement]:
    """Return the packages that a lock file installs on Linux. Each must have hashes."""
    entries = (ROOT / "requirements" / f"{name}.lock").read_text().replace("\\\n", " ")
    found: dict[str, Requirement] = {}
    for entry in (line for line in entries.splitlines() if not line.startswith("#")):
        pin, *hashes = entry.split("--hash=sha256:")
        assert hashes and all(re.fullmatch("[0-9a-f]{64}", one.strip()) for one in hashes), pin
        requirement = Requirement(pin)
        linux = {"sys_platform": "linux", "platform_machine": "x86_64", "python_full_version": "3.11.14"}
        if requirement.marker is None or requirement.marker.evaluate(linux):
            found[str(canonicalize_name(requirement.name))] = requirement
    return found


@pytest.mark.parametrize("name", ["serving-cpu", "serving-gpu", "build", "weights"])
def test_a_lock_file_has_the_versions_of_the_constraints(name: str) -> None:
    """Compare the versions. After a change of either file, `make locks` writes the lock file again."""
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pins = {str(canonicalize_name(one.name)): str(one.specifier) for one in map(Requirement, lines[2:])}
    wrong = {one: str(pin) for one, pin in locked(name).items() if pins.get(one) != str(pin.specifier)}
    assert not wrong, "run `make locks`"


def test_the_lock_files_have_all_that_an_image_installs_and_no_torch() -> None:
    needed = brought("serve", "otel", "cpu")
    assert locked("serving-cpu").keys() == needed, "run `make locks`"
    of_cpu, of_gpu = ({canonicalize_name(Requirement(line).name) for line in EXTRAS[one]} for one in ("cpu", "gpu"))
    assert (brought("serve", "otel") - of_cpu) | of_gpu <= locked("serving-gpu").keys(), "run `make locks`"
    for name in ("serving-cpu", "serving-gpu"):
        assert locked(name).keys().isdisjoint({"torch", "transformers", "sentence-transformers"})
    assert locked("weights").keys() == {WEIGHTS}


def test_an_image_installs_nothing_from_an_index_without_its_hash() -> None:
    dockerfile = (ROOT / "Dockerfile").read_text()
    installs = re.findall(r"pip (?:install|wheel) ([^&\n\\]*)", dockerfile)
    assert len(installs) == 7
    for options in installs:
        own = "/wheels/isosphere-" in options or options.rstrip().endswith(" .")
        assert ("--no-deps" if own else "--require-hashes") in options, options


def test_no_extra_asks_for_the_weights_which_would_bring_torch() -> None:
    asked = [Requirement(line).name for lines in EXTRAS.values() for line in lines]
    assert WEIGHTS not in asked
    assert any("torch" in name for name in brought("dev")), "what the package of the weights asks for brings torch"


@pytest.mark.slow
def test_the_server_can_be_imported_without_the_rest(servings: Path) -> None:
    code = "import importlib.util as u, serving.app, serving.commands.serve; print(u.find_spec('torch'))"
    imported = ran(servings, "-c", code)
    assert (imported.returncode, imported.stdout) == (0, "None\n"), imported.stderr


@pytest.mark.slow
def test_bundles_are_read_and_moved_without_the_rest(servings: Path, tiny_bundle: Path, tmp_path: Path) -> None:
    for arguments in (
        ("verify", tiny_bundle),
        ("inspect", tiny_bundle),
        ("publish", tiny_bundle, tmp_path / "there"),
        ("pull", tmp_path / "there", "--out", tmp_path / "here"),
    ):
        done = ran(servings, "-m", "models", *arguments)
        assert done.returncode == 0, done.stderr
    moved = ran(servings, "-m", "models", "publish", tiny_bundle, "org/name")
    assert moved.returncode == 1 and len(moved.stderr.splitlines()) == 1, "the hub's client is there"


@pytest.mark.slow
def test_an_encoder_of_the_repository_is_assembled_without_the_rest(servings: Path, tmp_path: Path) -> None:
    made = ran(servings, "-m", "models", "export", "minilm+default", "--out", tmp_path / "made", "--no-measure")
    assert made.returncode == 0, made.stderr
    assert ran(servings, "-m", "models", "verify", tmp_path / "made").returncode == 0


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("serving", "--engine", "fake", "--otlp-endpoint", "http://127.0.0.1:4318"), "pip install 'isosphere[otel]'"),
        (("isosphere", "mcp"), "pip install 'isosphere[mcp]'"),
        (("serving", "--engine", "fake", "--store", "milvus://127.0.0.1"), "pip install 'isosphere[milvus]'"),
        (("training", "list"), "is not installed: `make setup`"),
        (("models", "export", "{bundle}", "--out", "{out}"), "the package torch is not installed: `make setup`"),
    ],
)
def test_what_is_not_there_is_named_in_one_line(
    arguments: tuple[str, ...], said: str, servings: Path, tiny_bundle: Path, tmp_path: Path
) -> None:
    given = [one.format(bundle=tiny_bundle, out=tmp_path / "out") for one in arguments]
    data = ["--data", str(tmp_path)] if given[0] == "serving" else []
    refused = ran(servings, "-m", *given, *data)
    assert refused.returncode == 2 and said in refused.stderr.splitlines()[-1], refused.stderr
    assert "Traceback" not in refused.stderr


@pytest.mark.slow
def test_training_needs_no_package_of_the_tests(tmp_path: Path) -> None:
    imported = ran(environment(tmp_path, brought("serve", "train", "cpu") | {"isosphere"}), "-c", IMPORT_ALL)
    assert imported.returncode == 0, imported.stderr


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """Return a clone in which no command was ever run."""
    for name in ("Makefile", "pyproject.toml", "constraints.txt"):
        (tmp_path / name).write_text((ROOT / name).read_text())
    return tmp_path


def installs(clone: Path, *goals: str) -> list[str]:
    """Return the extras that this `make` would install."""
    outer = ("MAKEFLAGS", "MAKELEVEL", "MFLAGS", "EXTRAS")  # Variables of the `make` that runs these tests.
    shell = {name: value for name, value in os.environ.items() if name not in outer}
    shown = subprocess.run(["make", "-n", *goals], cwd=clone, env=shell, capture_output=True, text=True, check=True)
    return re.findall(r"-e '\.\[([\w,]+)\]'", shown.stdout)


def installed(clone: Path, kind: str, *, before: bool = False) -> None:
    """Simulate an installation by `make`, or one from before the last change of pyproject.toml."""
    for file in (clone / ".venv" / "bin" / "pip", clone / ".venv" / f"installed-{kind}-cpu"):
        file.parent.mkdir(parents=True, exist_ok=True)
        file.touch()
        if before:
            os.utime(file, (0, 0))


SERVE, TRAIN = "serve,cpu", "serve,train,cpu"
ALL = "serve,train,data,documents,map,otel,ray,completion,mcp,dev,docs,milvus,cpu"


@pytest.mark.parametrize(
    ("goals", "extras"),
    [
        (["serve"], SERVE),
        (["train", "MODEL=simcse"], TRAIN),
        (["evaluate", "DATA=x"], TRAIN),
        (["setup"], ALL),
        (["test"], ALL),
        (["serve", "test"], ALL),
        (["serve", "EXTRAS=gpu"], "serve,gpu"),
    ],
    ids=" ".join,
)
def test_a_verb_installs_what_it_needs(clone: Path, goals: list[str], extras: str) -> None:
    assert installs(clone, *goals) == [extras]


@pytest.mark.parametrize(
    ("there", "goal", "stale", "extras"),
    [
        ("serve", "serve", False, []),
        ("serve", "test", False, [ALL]),
        ("train", "serve", False, []),
        ("train", "test", False, [ALL]),
        ("all", "serve", False, []),
        ("all", "rollback", False, []),
        ("serve", "serve", True, [SERVE]),
        ("train", "serve", True, [TRAIN]),
        ("all", "serve", True, [ALL]),
    ],
)
def test_what_is_installed_stays_and_is_brought_up_to_date(
    clone: Path, there: str, goal: str, stale: bool, extras: list[str]
) -> None:
    installed(clone, there, before=stale)
    assert installs(clone, goal) == extras


@pytest.mark.parametrize(
    ("pip", "status", "printed", "errors"),
    [
        ("echo Collecting a; echo Installing collected packages: a", 0, "has 1 packages", ""),
        ("echo Collecting a; echo 'ERROR: No matching distribution found for a' >&2; exit 1", 1, "", "No matching"),
        ("echo crashed ; exit 139", 139, "", "crashed"),
    ],
)
def test_an_installation_says_little_and_shows_why_it_fails(
    tmp_path: Path, pip: str, status: int, printed: str, errors: str
) -> None:
    python = tmp_path / "bin" / "python"
    python.parent.mkdir()
    python.write_text(f"#!/bin/sh\n{pip}\n")
    python.chmod(0o755)
    (tmp_path / "lib" / "python3" / "site-packages" / "a-1.dist-info").mkdir(parents=True)
    done = subprocess.run([ROOT / ".ci" / "install", tmp_path, "a"], capture_output=True, text=True, check=False)
    assert done.returncode == status
    assert printed in done.stdout and done.stdout.count("\n") == bool(printed)
    assert errors in done.stderr and "install.log" in done.stdout + done.stderr
    assert pip.split()[1] in (tmp_path / "install.log").read_text()
