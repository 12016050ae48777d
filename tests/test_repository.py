"""Tests of the documents' and the packaging's statements about the repository."""

from __future__ import annotations

import importlib
import pkgutil
import re
import runpy
import subprocess
import sys
import tomllib
import warnings
from contextlib import closing
from itertools import chain
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from serving.app import create_app
from serving.commands.starting import local_corpora
from serving.corpora.stores import STORES
from serving.inference.engines import ENGINES
from serving.service import Service
from serving.settings import Settings

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
ROOMS = ("isosphere", "models", "training", "serving")


EXTRAS = PROJECT["project"]["optional-dependencies"]
ENVIRONMENTS = {
    "constraints.txt": [group for extra, group in EXTRAS.items() if extra not in ("optimum", "clients")],
    "constraints-optimum.txt": [EXTRAS["optimum"]],
    "constraints-clients.txt": [EXTRAS["clients"]],
}


def test_packages_have_few_files_and_files_are_short() -> None:
    """Limits of ADR 0050: files of a package, lines of a file, and entries at the top of each part of the product."""
    for room in (*ROOMS, "benchmarks"):
        for package in (ROOT / room).rglob("__init__.py"):
            files = [file for file in package.parent.glob("*.py") if file != package]
            assert len(files) <= 15, package.parent
            for file in files:
                assert len(file.read_text().splitlines()) <= 500, file
    for room, limit in (("serving", 12), ("training", 16), ("models", 14)):
        entries = [*(ROOT / room).glob("*.py"), *(package.parent for package in (ROOT / room).glob("*/__init__.py"))]
        assert len([entry for entry in entries if entry.name != "__init__.py"]) <= limit, room


def _pins(file: str) -> dict[str, str]:
    lines = [line for line in (ROOT / file).read_text().splitlines() if not line.startswith("#")]
    return {canonicalize_name(pin.name): str(pin.specifier) for pin in map(Requirement, lines)}


@pytest.mark.parametrize("file", ENVIRONMENTS)
def test_every_requirement_is_pinned_to_one_version_it_admits(file: str) -> None:
    pins = _pins(file)
    assert all(re.fullmatch(r"==[\w.+]+", pin) for pin in pins.values())
    for requirement in map(Requirement, chain(PROJECT["project"]["dependencies"], *ENVIRONMENTS[file])):
        assert requirement.specifier.contains(pins[canonicalize_name(requirement.name)][2:]), requirement


def test_the_two_environments_differ_in_transformers_alone_and_what_moves_with_it() -> None:
    ours, optimums = _pins("constraints.txt"), _pins("constraints-optimum.txt")
    differing = {name for name in ours.keys() & optimums.keys() if ours[name] != optimums[name]}
    assert differing == {"huggingface-hub", "tokenizers", "transformers"}


def test_every_package_is_listed() -> None:
    found = {
        p.parent.relative_to(ROOT).as_posix().replace("/", ".") for r in ROOMS for p in (ROOT / r).rglob("__init__.py")
    }
    assert set(PROJECT["tool"]["setuptools"]["packages"]) == found


def test_what_mutants_changes_and_the_tests_that_it_runs_exist() -> None:
    settings = PROJECT["tool"]["mutmut"]
    for place in (*settings["only_mutate"], *settings["pytest_add_cli_args_test_selection"]):
        assert [*ROOT.glob(place)], place


def test_a_wheel_has_every_file_that_is_no_module() -> None:
    patterns = PROJECT["tool"]["setuptools"]["package-data"]
    carried = {
        file
        for package, globs in patterns.items()
        for one in globs
        for file in ROOT.glob(f"{package.replace('.', '/')}/{one}")
    }
    files = {
        file
        for room in ROOMS
        for file in (ROOT / room).rglob("*")
        if file.is_file() and file.suffix not in (".py", ".pyc")
    }
    assert files <= carried and files


@pytest.mark.filterwarnings("ignore:Using extra keyword arguments on `Field`:DeprecationWarning")  # Ray's own models.
def test_every_module_can_be_imported() -> None:
    for room in ROOMS:
        for module in pkgutil.walk_packages([str(ROOT / room)], prefix=f"{room}."):
            if not module.name.endswith("__main__"):
                importlib.import_module(module.name)


def test_readme_names_only_verbs_and_places_that_exist() -> None:
    readme = (ROOT / "README.md").read_text()
    verbs = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert set(re.findall(r"(?:^|`)make ([a-z]+)", readme, re.MULTILINE)) <= verbs
    (places,) = re.findall(r"## The code\n\n```\n(.*?)```", readme, re.DOTALL)
    room = ""
    for line in places.splitlines():
        name = line.split()[0]
        room = name if not line.startswith(" ") else room
        assert (ROOT / (name if name == room else room + name)).is_dir(), line
    for link in re.findall(r"\]\((?!http)([^)#]+)\)", readme):
        assert (ROOT / link).exists(), link


def test_readme_names_the_versions_of_python_that_are_tested() -> None:
    tested = [one.rpartition(" ")[2] for one in PROJECT["project"]["classifiers"] if "Language :: Python" in one]
    assert f"Python {', '.join(tested[:-1])} or {tested[-1]} and `make`" in (ROOT / "README.md").read_text()
    assert PROJECT["project"]["requires-python"] == f">={tested[0]}"


@pytest.mark.filterwarnings("ignore")
def test_a_deprecated_use_is_an_error_in_our_own_code_alone() -> None:
    for module in (*ROOMS, "serving.corpora.stores.migrations"):
        with pytest.raises(DeprecationWarning):
            warnings.warn_explicit("deprecated", DeprecationWarning, "file.py", 1, module=module)
    warnings.warn_explicit("deprecated", DeprecationWarning, "file.py", 1, module="peft.tuners")


def test_make_alone_lists_every_verb() -> None:
    listed = subprocess.run(["make", "-s"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    for verb in ("serve", "test", "setup", "check", "train", "evaluate", "export", "benchmark", "help"):
        assert f"make {verb} " in listed


@pytest.mark.parametrize("command", ["models", "training", "serving"])
def test_every_command_explains_itself(
    command: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", [command, "--help"])
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(str(ROOT / command / "__main__.py"), run_name="__main__")
    assert not ended.value.code
    assert "usage" in capsys.readouterr().out.lower()


def test_every_route_and_option_is_documented(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "api.md").read_text()
    with closing(STORES["memory"](tmp_path)) as store:
        service = Service(
            Settings(data=tmp_path), ENGINES["fake"](tmp_path), local_corpora(Settings(data=tmp_path), store)
        )
        paths = create_app(service).openapi()["paths"]
        service.jobs.close()
    for path, methods in paths.items():
        for method in methods:
            # The second command follows the path of the first.
            forms = (f"`{method.upper()} {path}`", f"`{method.upper()} …`")
            assert any(form in page for form in forms), f"{method.upper()} {path}"
    for name in Settings.model_fields:
        assert f"`--{name.replace('_', '-')}`" in page, name


def test_every_image_that_serves_keeps_what_it_measures_in_its_volume() -> None:
    dockerfile = (ROOT / "Dockerfile").read_text()
    serving = [stage for stage in re.split(r"^FROM ", dockerfile, flags=re.MULTILINE) if "ENTRYPOINT" in stage]
    assert len(serving) == 2
    for stage in serving:
        assert re.findall(r"XDG_CACHE_HOME=(\S+)", stage) == ["/data/.cache"] and "VOLUME /data" in stage
    assert all("--no-measure" in line for line in dockerfile.splitlines() if "models export" in line)


def test_what_goes_into_an_image_is_let_into_its_context() -> None:
    """Check that all files of the image are in its context, including LICENSE, which the wheel contains."""
    let_in = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    lines = [line.split()[1:-1] for line in (ROOT / "Dockerfile").read_text().splitlines() if line.startswith("COPY ")]
    copied = {name for names in lines if not names[0].startswith("--from") for name in names}
    packages = {name.partition(".")[0] for name in PROJECT["tool"]["setuptools"]["packages"]}
    assert copied == let_in and copied >= {"LICENSE", *packages}
    assert all((ROOT / name).exists() for name in copied)
