"""Tests of the limit on open files and connections, and of the message if it is too low."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from serving.corpora.ports import StoreError
from serving.jobs.ledger import Ledger
from tests.serving.conftest import ROOT

RAISED = """
import os, resource, sys
from pathlib import Path
from serving.settings import Settings
from serving.commands.starting import opened_corpora
_, most = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (64, most))
opened_corpora(Settings(data=Path(sys.argv[1]))).close()
print(resource.getrlimit(resource.RLIMIT_NOFILE) == (most, most))
"""
USED_UP = """
import os, resource, sys
import urllib.parse  # a server has it, and Python 3.13 loads it when a path first becomes a URL
from pathlib import Path
from serving.jobs.ledger import Ledger
open_now = len(os.listdir("/proc/self/fd")) - 1
resource.setrlimit(resource.RLIMIT_NOFILE, (open_now, open_now))
try:
    Ledger(Path(sys.argv[1]))
except Exception as error:
    print(type(error).__name__, error)
"""


def said(script: str, path: Path) -> str:
    return subprocess.run(
        [sys.executable, "-c", script, str(path)], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.strip()


@pytest.mark.slow
def test_the_soft_limit_is_raised_to_the_hard_one(tmp_path: Path) -> None:
    assert said(RAISED, tmp_path) == "True"


@pytest.mark.skipif(sys.platform != "linux", reason="counts in /proc")
def test_jobs_are_not_to_be_moved_away_for_want_of_descriptors(tmp_path: Path) -> None:
    ledger = tmp_path / "ledger.sqlite"
    Ledger(ledger).close()
    assert said(USED_UP, ledger) == f"StoreError {ledger}: unable to open database file"


def test_a_damaged_ledger_may_be_moved_away(tmp_path: Path) -> None:
    ledger = tmp_path / "ledger.sqlite"
    ledger.write_bytes(b"no database" * 100)
    with pytest.raises(StoreError, match="file is not a database; move the file away to start without its jobs"):
        Ledger(ledger)
