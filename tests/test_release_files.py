"""Tests of the files that the repository's host and users of a release read."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
FILES = {
    ".github/workflows/*.yml": "github-workflows",
    ".github/ISSUE_TEMPLATE/[!c]*.yml": "github-issue-forms",
    ".github/ISSUE_TEMPLATE/config.yml": "github-issue-config",
    "CITATION.cff": "citation-file-format",
}


@pytest.mark.parametrize(("pattern", "schema"), FILES.items())
def test_a_file_fits_its_schema(pattern: str, schema: str) -> None:
    files = [str(file) for file in ROOT.glob(pattern)]
    command = [str(Path(sys.executable).parent / "check-jsonschema"), "--builtin-schema", f"vendor.{schema}", *files]
    checked = subprocess.run(command, capture_output=True, text=True, check=False)
    assert files and checked.returncode == 0, checked.stdout + checked.stderr


def test_the_citation_names_the_version_of_the_project() -> None:
    assert yaml.safe_load((ROOT / "CITATION.cff").read_text())["version"] == PROJECT["version"]


def test_changes_are_checked_on_every_version_of_python_that_is_stated() -> None:
    stated = {found for one in PROJECT["classifiers"] for found in re.findall(r"Python :: (3\.\d+)$", one)}
    job = yaml.safe_load((ROOT / ".github/workflows/checks.yml").read_text())["jobs"]["check"]
    assert set(job["strategy"]["matrix"]["python"]) == stated


def test_workflows_run_only_verbs_of_the_makefile() -> None:
    verbs = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    runs = [
        line for file in ROOT.glob(".github/workflows/*") for line in re.findall(r"run: make (\w+)", file.read_text())
    ]
    assert runs and set(runs) <= verbs
