"""Tests of the temporary files of uploads that become jobs."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from serving.errors import ServiceError
from serving.jobs import Duplicate, Job, Jobs, Running, Spool
from serving.jobs.spool import IN_MEMORY
from tests.serving.jobs.counting import KINDS, ended, run
from tests.serving.syncing import noted


def test_uploads_are_kept_with_their_jobs_and_go_with_them(tmp_path: Path) -> None:
    read: list[bytes] = []

    async def reading(job: Running) -> None:
        assert job.spool is not None
        read.append(job.spool.read_bytes())
        if len(read) == 1:
            await asyncio.Event().wait()

    async def work() -> None:
        folder = tmp_path / "spool"
        jobs = Jobs(tmp_path, {"read": reading})
        for body in (b"small", bytes(range(256)) * 10_000):
            async with jobs.spool() as spool:
                for at in range(0, len(body), 100_000):
                    await spool.write(body[at : at + 100_000])
                assert spool.size == len(body)
                with spool.open() as file:
                    assert file.read() == body
                await jobs.submit("read", "c", {}, spool=spool)
        assert len(list(folder.iterdir())) == 2
        async with jobs.spool() as spool:
            await spool.write(b"x" * (IN_MEMORY + 1))
            assert len(list(folder.iterdir())) == 3
        assert len(list(folder.iterdir())) == 2, "nobody asked for it"
        (folder / "left.part").write_bytes(b"of a server that was killed")
        jobs.start()
        while not read:
            await asyncio.sleep(0.005)
        await jobs.stop()
        jobs.close()
        jobs = Jobs(tmp_path, {"read": reading})
        assert len(list(folder.iterdir())) == 2
        jobs.start()
        for job in await jobs.listing():
            assert (await ended(jobs, job.id)).state == "succeeded"
        assert read == [b"small", b"small", bytes(range(256)) * 10_000]
        assert not list(folder.iterdir())
        await jobs.stop()
        jobs.close()

    run(work)


@pytest.mark.parametrize("content", [b"an uplOad", b"an uploa", b"", None])
def test_an_upload_that_was_damaged_since_is_not_worked_on(tmp_path: Path, content: bytes | None) -> None:
    worked: list[str] = []

    async def take(job: Running) -> None:
        worked.append(job.job.id)

    async def work() -> None:
        jobs = Jobs(tmp_path, {"take": take})
        async with jobs.spool() as spool:
            await spool.write(b"an upload")
            job = await jobs.submit("take", "c", {"on_error": "skip"}, spool=spool)
        kept = tmp_path / "spool" / job.id
        kept.unlink() if content is None else kept.write_bytes(content)
        jobs.close()
        jobs = Jobs(tmp_path, {"take": take})
        jobs.start()
        failed = await ended(jobs, job.id)
        assert (failed.state, worked) == ("failed", [])
        says = f"spool/{job.id} has changed since the upload: upload the documents again"
        assert [error["error"] for error in failed.errors] == [says]
        await jobs.stop()
        jobs.close()

    run(work)


def test_uploads_that_differ_are_different_work(tmp_path: Path) -> None:
    async def submit(jobs: Jobs, body: bytes) -> Job:
        async with jobs.spool() as spool:
            await spool.write(body)
            return await jobs.submit("count", "c", {}, spool=spool)

    async def work() -> None:
        jobs = Jobs(tmp_path, KINDS)
        first = await submit(jobs, b"a" * 2_000_000)
        await submit(jobs, b"b" * 2_000_000)
        with pytest.raises(Duplicate, match=first.id):
            await submit(jobs, b"a" * 2_000_000)
        jobs.close()

    run(work)


def test_what_is_kept_survives_power_loss(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def work() -> None:
        async with Spool(tmp_path) as spool:
            await spool.write(b"x" * IN_MEMORY)
            (part,) = tmp_path.iterdir()
            steps = noted(monkeypatch)
            spool.keep(tmp_path / "kept")
            assert steps == [("synced", part), ("moved", part), ("synced", tmp_path)]

    run(work)


def test_a_full_disk_is_told(tmp_path: Path) -> None:
    async def work() -> None:
        spool = Spool(tmp_path / "gone")
        with pytest.raises(ServiceError) as told:
            await spool.write(b"x" * (IN_MEMORY + 1))
        assert told.value.status in (503, 507)

    run(work)
