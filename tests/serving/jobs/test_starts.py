"""Tests of jobs that may cause repeated kills of the server: such a job is started twice, and then no more."""

from __future__ import annotations

import asyncio
import shutil
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from serving.jobs import Job, Jobs, Running
from serving.jobs.kinds import reporting_progress
from serving.operations.failpoints import VARIABLE
from tests.conftest import PATIENCE
from tests.serving.conftest import Launcher
from tests.serving.jobs.counting import ended, run, state

Step = Callable[[Running], Awaitable[object]]


async def killed(folder: Path, work: Step, *submitted: dict[str, Any]) -> Path:
    """Return the data folder of a server that is killed while its jobs, whose work is `work`, are running."""
    begun, left_to_begin = asyncio.Event(), {one.get("corpus", "c") for one in submitted}

    async def until(job: Running) -> None:
        await work(job)
        left_to_begin.discard(job.job.corpus)
        if not left_to_begin:
            begun.set()
        await asyncio.Event().wait()

    jobs = Jobs(folder, {"work": until, "look": until}, beside=["look"])
    for one in submitted:
        await jobs.submit(**{"kind": "work", "corpus": "c", "options": {}, **one})
    jobs.start()
    await begun.wait()
    left = folder.with_name(folder.name + "+")
    shutil.copytree(folder, left)
    await jobs.stop()
    jobs.close()
    return left


async def after(folder: Path) -> list[Job]:
    """Return the jobs of the next server after all of them have ended, oldest first."""

    async def work(job: Running) -> None:
        pass

    jobs = Jobs(folder, {"work": work, "look": work})
    jobs.start()
    found = [await ended(jobs, job.id) for job in reversed(await jobs.listing())]
    await jobs.stop()
    jobs.close()
    return found


async def nothing(_: Running) -> None:
    pass


async def shows(job: Running) -> None:
    """Report progress of work that starts again after a kill, so that its progress does not count."""
    async with reporting_progress(job) as progress:
        progress.expect(10, 10)
        progress.add(5 + job.job.starts)


async def gets_further(job: Running) -> None:
    await job.checkpoint((job.job.position or 0) + 1, job.job.done + 1)


async def begins_anew(job: Running) -> None:
    await job.checkpoint(0, 0)


@pytest.mark.parametrize(
    ("work", "kills", "state"),
    [
        (nothing, 1, "succeeded"),
        (nothing, 2, "failed"),
        (shows, 2, "failed"),
        (begins_anew, 2, "succeeded"),  # Having checked all rows counts as progress, once.
        (begins_anew, 3, "failed"),
        (gets_further, 5, "succeeded"),
    ],
)
def test_starts_that_come_to_nothing_are_counted(tmp_path: Path, work: Step, kills: int, state: str) -> None:
    async def main() -> None:
        folder = await killed(tmp_path / "jobs", work, {})
        for _ in range(kills - 1):
            folder = await killed(folder, work)
        (job,) = await after(folder)
        assert job.state == state
        if state == "failed":
            assert job.errors[-1]["error"] == (
                "the server was killed 2 times in a row while this job was running, so the job is not started again"
            )

    run(main)


def test_a_server_that_ends_by_itself_counts_for_nothing(tmp_path: Path) -> None:
    async def main() -> None:
        jobs = Jobs(tmp_path, {})
        job = await jobs.submit("work", "c", {})
        jobs.close()
        for _ in range(5):
            begun = asyncio.Event()

            async def until(_: Running, begun: asyncio.Event = begun) -> None:
                begun.set()
                await asyncio.Event().wait()

            jobs = Jobs(tmp_path, {"work": until})
            assert (await jobs.job(job.id)).state == "queued"
            jobs.start()
            await begun.wait()
            await jobs.stop()
            jobs.close()
        assert [one.state for one in await after(tmp_path)] == ["succeeded"]

    run(main)


def test_a_server_that_ends_by_itself_takes_back_no_start_of_another(tmp_path: Path) -> None:
    """Stop a server between two kills. One interrupted job has started again, and the other is in the queue."""

    async def main() -> None:
        folder = await killed(tmp_path / "jobs", nothing, {"corpus": "a"}, {"corpus": "b"})
        begun = asyncio.Event()

        async def until(_: Running) -> None:
            begun.set()
            await asyncio.Event().wait()

        jobs = Jobs(folder, {"work": until})
        jobs.start()
        await begun.wait()
        await jobs.stop()
        jobs.close()
        jobs = Jobs(folder, {})
        left = {job.corpus: (job.state, job.starts) for job in await jobs.listing()}
        jobs.close()
        assert left == {"a": ("queued", 1), "b": ("running", 1)}

    run(main)


def test_what_ran_beside_the_cause_is_done(tmp_path: Path) -> None:
    """Run interrupted jobs one at a time, so that the next kill is caused by one of them."""

    async def main() -> None:
        folder = await killed(tmp_path / "jobs", nothing, {"corpus": "guilty"}, {"corpus": "a"}, {"corpus": "b"})
        at_once: list[int] = []
        running: set[str] = set()

        async def work(job: Running) -> None:
            running.add(job.job.corpus)
            at_once.append(len(running & {"guilty", "a", "b"}))
            await asyncio.sleep(0.01)
            running.discard(job.job.corpus)

        jobs = Jobs(folder, {"work": work})
        later = await jobs.submit("work", "later", {})
        jobs.start()
        await state(jobs, later.id, lambda job: job.state != "queued")
        assert all([(await ended(jobs, job.id)).state == "succeeded" for job in await jobs.listing()])
        assert max(at_once) == 1
        await jobs.stop()
        jobs.close()

    run(main)


@pytest.mark.slow
def test_a_restore_that_kills_the_server_does_so_twice(launch: Launcher, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "snapshots.before-restore=kill")
    server = launch()
    server.client.put("/corpora/c")
    made = server.client.post("/corpora/c/snapshots").json()["id"]
    while (job := server.client.get(f"/jobs/{made}").json())["state"] != "succeeded":
        time.sleep(0.01)
    restoring = server.client.put("/corpora/c/restore", json={"snapshot": job["result"]["id"]}).json()["id"]
    server.process.wait(PATIENCE)
    launch(ready=False).process.wait(PATIENCE)
    server = launch()
    while (job := server.client.get(f"/jobs/{restoring}").json())["state"] != "failed":
        time.sleep(0.01)
    assert "killed 2 times in a row" in job["errors"][0]["error"]
    assert server.client.get("/corpora/c").status_code == 200
