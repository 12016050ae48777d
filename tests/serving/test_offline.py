"""Test that a server downloads nothing and contacts nobody."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.serving.processes import asked_itself

NO_ROUTE = ("unshare", "--map-root-user", "--net")
"""Command that runs another command in a network namespace with a loopback and no other route."""

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def found(tiny_bundle: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Return the result of a server of a real bundle that sends requests to itself."""
    return asked_itself(tiny_bundle, tmp_path_factory.mktemp("data"))


def test_a_server_with_a_real_bundle_reaches_for_nothing(found: dict[str, Any]) -> None:
    assert (found["statuses"], found["attempts"]) == ([200] * 5, [])


def test_no_torch_in_the_server_process(found: dict[str, Any]) -> None:
    assert (found["width"], found["heavy"]) == (32, [])


def test_a_server_collects_garbage_although_its_start_does_not(found: dict[str, Any]) -> None:
    assert found["collects"]


def test_a_server_serves_where_there_is_no_way_out(tiny_bundle: Path, tmp_path: Path) -> None:
    if (
        not shutil.which(NO_ROUTE[0])
        or subprocess.run([*NO_ROUTE, "true"], check=False, capture_output=True).returncode
    ):
        pytest.skip("this kernel lets this user make no network namespace (unshare --map-root-user --net)")
    found = asked_itself(tiny_bundle, tmp_path, before=NO_ROUTE)
    assert not found["route"]
    assert (found["statuses"], found["width"], found["attempts"]) == ([200] * 5, 32, [])
