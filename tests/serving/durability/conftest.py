"""A disk that loses what was not synced."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.serving.durability.shim import Disk, NoCompilerError, compiled


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    try:
        return compiled(tmp_path_factory.mktemp("shim"))
    except NoCompilerError as error:
        pytest.skip(str(error))


@pytest.fixture
def disk(tmp_path: Path, library: Path) -> Disk:
    (tmp_path / "data").mkdir()
    return Disk(library, tmp_path / "data", tmp_path / "shadow")
