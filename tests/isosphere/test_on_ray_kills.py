"""`isosphere embed --on ray` while drivers, actors and nodes are killed: each row is written once."""

from __future__ import annotations

import io
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pyarrow.parquet as pq
import pytest

from isosphere.embed.embedding import Options
from isosphere.embed.on_ray.bulk import embed
from isosphere.embed.on_ray.tasks import Model
from isosphere.encoder import load
from tests.clusters import CALM, nodes, small_ray
from tests.conftest import PATIENCE

pytestmark = [pytest.mark.nightly, pytest.mark.filterwarnings("ignore")]
TEXTS = ["a cat can sleep", "the dog", "the man can play", "a book", "rain"] * 400
OPTIONS = Options(rows_of_a_part=50)
PARTS = len(TEXTS) // 50
TIMES = int(os.environ.get("ISOSPHERE_KILLS", "3"))


@pytest.fixture
def file(tmp_path: Path) -> Path:
    file = tmp_path / "a.txt"
    file.write_text("".join(f"{text}\n" for text in TEXTS))
    return file


def model(bundle: Path) -> Model:
    return Model(str(bundle), "onnxruntime", "fp32", "cpu", 1)


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


@contextmanager
def killer(out: Path, kill: Callable[[], None], times: int) -> Iterator[list[int]]:
    """Kill something each time that some parts more are there; yield at how many parts."""
    killed: list[int] = []
    ended = threading.Event()

    def watch() -> None:
        for goal in sorted(random.sample(range(1, PARTS - 5), times)):
            while parts(out) < goal and not ended.is_set():
                time.sleep(0.02)
            if ended.is_set():
                return
            kill()
            killed.append(parts(out))

    watching = threading.Thread(target=watch)
    watching.start()
    try:
        yield killed
    finally:
        ended.set()
        watching.join()


def test_a_killed_driver_goes_on_where_it_stopped(tiny_bundle: Path, file: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    code = (
        "import sys; from isosphere.command import main; from isosphere.embed import embedding; "
        "embedding.ROWS = 50; sys.exit(main(sys.argv[1:]))"
    )
    command = [sys.executable, "-c", code, "embed", str(file), "--out", str(out), "--model", str(tiny_bundle)]
    command += ["--on", "ray", "--engine", "onnxruntime", "--precision", "fp32", "--threads", "1"]
    with nodes(1, cpus=2) as cluster:
        command += ["--ray-address", cluster.address]
        for i in range(TIMES):
            goal = PARTS * (i + 1) // (TIMES + 2)
            with subprocess.Popen(command, env={**os.environ, **CALM}) as driver:
                deadline = time.monotonic() + PATIENCE
                while parts(out) < goal and driver.poll() is None and time.monotonic() < deadline:
                    time.sleep(0.02)
                assert driver.poll() is None
                driver.send_signal(signal.SIGKILL)
            before = {part: part.stat().st_mtime_ns for part in out.glob("part-*")}
            assert goal <= len(before) < PARTS
        subprocess.run(command, env={**os.environ, **CALM}, check=True)
    assert {part: part.stat().st_mtime_ns for part in before} == before
    check(out, file, tiny_bundle)


def test_killed_actors_are_replaced(tiny_bundle: Path, file: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"

    def kill() -> None:
        ours = psutil.Process().children(recursive=True)
        actors = [one for one in ours if one.name().startswith("ray::Map") or "MapWorker" in "".join(one.cmdline())]
        if actors:
            random.choice(actors).kill()

    with small_ray(), killer(out, kill, TIMES) as killed:
        embed(model(tiny_bundle), [str(file)], str(out), OPTIONS, address=None, force=False, stream=io.StringIO())
    assert len(killed) == TIMES
    check(out, file, tiny_bundle)


def test_a_killed_node_loses_nothing(tiny_bundle: Path, file: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    with nodes(2) as cluster:
        added: list[Any] = list(cluster.worker_nodes)

        def kill() -> None:
            cluster.remove_node(added.pop(), allow_graceful=False)
            added.append(cluster.add_node(num_cpus=1, object_store_memory=80_000_000))

        with killer(out, kill, TIMES) as killed:
            embed(
                model(tiny_bundle),
                [str(file)],
                str(out),
                OPTIONS,
                address=cluster.address,
                force=False,
                stream=io.StringIO(),
            )
        assert len(killed) == TIMES
    check(out, file, tiny_bundle)
