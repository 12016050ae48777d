"""Test of `make serve` for a new user: default bundle, demo corpus, and the three printed commands."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import PATIENCE

ROOT = Path(__file__).resolve().parents[2]


def answer(command: str) -> Any:
    return json.loads(subprocess.run(command, shell=True, capture_output=True, check=True).stdout)


@pytest.mark.slow
def test_make_serve_ends_with_three_commands_that_work(tmp_path: Path) -> None:
    process = subprocess.Popen(
        ["make", "serve", f"ARGS=--port 0 --data {tmp_path}"],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        start_new_session=True,
    )
    try:
        assert process.stdout is not None
        printed: list[str] = []
        while sum(line.startswith("curl") for line in printed) < 3:
            line = process.stdout.readline()
            assert line, f"the server ended after printing {printed}"
            printed.append(line)
        commands = [line for line in printed if line.startswith("curl")]
        embedded, similar, found = map(answer, commands)
        assert len(embedded[0]) == 384
        assert similar[0] > similar[1]
        # The server is ready before the demo corpus is complete. The modules of the example are embedded first.
        deadline = time.monotonic() + PATIENCE
        while not any("asyncio" in hit["metadata"]["module"] for hit in found["hits"]):
            assert time.monotonic() < deadline, found
            time.sleep(0.5)
            found = answer(commands[2])
        assert all({"module", "name"} <= hit["metadata"].keys() for hit in found["hits"])
    finally:
        os.killpg(process.pid, signal.SIGTERM)
        process.communicate(timeout=PATIENCE)
