"""Tests that kill drivers, actors and nodes of `isosphere embed --on ray`: each row is written exactly once."""

from __future__ import annotations

import io
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pyarrow.parquet as pq
import pytest

from isosphere.embed.embedding import Model, Options
from isosphere.embed.on_ray.bulk import embed
from isosphere.encoder import load
from tests.clusters import CALM, nodes, start_node
from tests.conftest import PATIENCE

pytestmark = [pytest.mark.nightly, pytest.mark.filterwarnings("ignore")]
TIMES = int(os.environ.get("ISOSPHERE_KILLS", "3"))
"""Number of drivers, actors and nodes that are killed."""
ROWS_OF_A_PART = 5
PARTS = 80 * (TIMES + 1)
TEXTS = ["a cat can sleep", "the dog", "the man can play", "a book", "rain"] * (PARTS * ROWS_OF_A_PART // 5)


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """Start a cluster with two nodes of one CPU each, and a head without CPUs."""
    with nodes(2) as cluster:
        yield cluster


@pytest.fixture
def file(tmp_path: Path) -> Path:
    file = tmp_path / "a.txt"
    file.write_text("".join(f"{text}\n" for text in TEXTS))
    return file


def check(out: Path, file: Path, bundle: Path) -> None:
    found = pq.read_table(out)
    assert found["id"].to_pylist() == [f"{file}:{i}" for i in range(1, len(TEXTS) + 1)]
    expected = load(bundle, engine="onnxruntime", precision="fp32", threads=1).encode(TEXTS[:5])
    np.testing.assert_allclose(
        np.stack(found["vector"].to_numpy()).reshape(-1, *expected.shape),
        expected[None].repeat(len(TEXTS) // 5, 0),
        atol=2e-6,
    )


def parts(out: Path) -> int:
    return len(list(out.glob("part-*")))


def wait(reached: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 5 * PATIENCE
    while not reached() and time.monotonic() < deadline:
        time.sleep(0.02)


def fill_while_killing(cluster: Any, bundle: Path, file: Path, out: Path, kill: Callable[[], None]) -> None:
    """Embed the file, and kill something `TIMES` times, each time after some more parts exist.

    The command runs in a thread, because Ray starts nodes only in the main thread.
    """
    model, options = Model(str(bundle), "onnxruntime", "fp32", "cpu", 1), Options(rows_of_a_part=ROWS_OF_A_PART)
    killed: list[int] = []
    with ThreadPoolExecutor(1) as pool:
        filling = pool.submit(
            embed, model, [str(file)], str(out), options, address=cluster.address, force=False, stream=io.StringIO()
        )
        for goal in range(20, PARTS - 80, (PARTS - 100) // TIMES):
            wait(lambda goal=goal: parts(out) >= goal or filling.done())  # type: ignore[misc]
            if filling.done():
                break
            kill()
            killed.append(parts(out))
        filling.result()
    assert len(killed) >= TIMES and max(killed) < PARTS, killed
    check(out, file, bundle)


def test_a_killed_driver_goes_on_where_it_stopped(cluster: Any, tiny_bundle: Path, file: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    code = (
        "import sys; from isosphere.command import main; from isosphere.embed import embedding; "
        f"embedding.ROWS = {ROWS_OF_A_PART}; sys.exit(main(sys.argv[1:]))"
    )
    command = [sys.executable, "-c", code, "embed", str(file), "--out", str(out), "--model", str(tiny_bundle)]
    command += ["--on", "ray", "--engine", "onnxruntime", "--precision", "fp32", "--threads", "1"]
    command += ["--ray-address", cluster.address]
    for _ in range(TIMES):
        goal = parts(out) + random.randrange(20)
        with subprocess.Popen(command, env={**os.environ, **CALM}) as driver:
            wait(lambda goal=goal, driver=driver: parts(out) > goal or driver.poll() is not None)  # type: ignore[misc]
            assert driver.poll() is None
            driver.send_signal(signal.SIGKILL)
    before = {part: part.stat().st_mtime_ns for part in out.glob("part-*")}
    assert TIMES <= len(before) < PARTS
    subprocess.run(command, env={**os.environ, **CALM}, check=True)
    assert {part: part.stat().st_mtime_ns for part in before} == before
    check(out, file, tiny_bundle)


def test_killed_actors_are_replaced(cluster: Any, tiny_bundle: Path, file: Path, tmp_path: Path) -> None:
    def actors() -> list[psutil.Process]:
        ours = psutil.Process().children(recursive=True)
        return [one for one in ours if "MapWorker" in "".join(one.cmdline())]

    def kill() -> None:
        wait(lambda: bool(actors()))
        random.choice(actors()).kill()

    fill_while_killing(cluster, tiny_bundle, file, tmp_path / "out", kill)


def test_a_killed_node_loses_nothing(cluster: Any, tiny_bundle: Path, file: Path, tmp_path: Path) -> None:
    def kill() -> None:
        cluster.remove_node(random.choice(list(cluster.worker_nodes)), allow_graceful=False)
        start_node(cluster, 1)

    fill_while_killing(cluster, tiny_bundle, file, tmp_path / "out", kill)
