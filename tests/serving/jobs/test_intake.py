"""Tests of the acceptance of jobs: corpora are independent, and the requesting key pays."""

from __future__ import annotations

import asyncio
import threading
from contextvars import ContextVar
from pathlib import Path
from typing import Any

import pytest

from serving.errors import Overloaded
from serving.jobs import Job, Jobs, Running
from serving.operations.keys import Key, digest
from serving.operations.limits import Caller, Limits, charged_to, current_caller
from tests.conftest import PATIENCE
from tests.serving.jobs.counting import KINDS, ended, run


def test_what_keeps_one_corpus_waiting_keeps_no_other(tmp_path: Path) -> None:
    """Block one corpus, for example by a long commit. Other corpora accept jobs."""
    waits, go_on = threading.Event(), threading.Event()

    def accepting(job: Job) -> None:
        if job.corpus == "busy":
            waits.set()
            assert go_on.wait(PATIENCE)

    async def work() -> None:
        jobs = Jobs(tmp_path, KINDS, accepting=accepting, waiting=2)
        jobs.start()
        submitting = asyncio.create_task(jobs.submit("count", "busy", {}))
        assert await asyncio.to_thread(waits.wait, PATIENCE)
        other = await jobs.submit("count", "c", {})
        assert (await ended(jobs, other.id)).state == "succeeded"
        async with jobs.deleting("c"):
            assert not submitting.done()
        go_on.set()
        assert (await ended(jobs, (await submitting).id)).state == "succeeded"
        await jobs.stop()
        jobs.close()

    run(work)


def test_what_is_on_its_way_counts_as_waiting(tmp_path: Path) -> None:
    waits, go_on = threading.Event(), threading.Event()

    def accepting(job: Job) -> None:
        if job.corpus == "a":
            waits.set()
            assert go_on.wait(PATIENCE)

    async def work() -> None:
        jobs = Jobs(tmp_path, KINDS, accepting=accepting, waiting=1)
        submitting = asyncio.create_task(jobs.submit("count", "a", {}))
        assert await asyncio.to_thread(waits.wait, PATIENCE)
        try:
            with pytest.raises(Overloaded, match="1 jobs"):
                await jobs.submit("count", "b", {})
        finally:
            go_on.set()
        job = await submitting
        assert jobs.unfinished("count", "a") == [job.id]
        jobs.close()

    run(work)


def test_a_job_is_paid_by_its_key_and_has_nothing_else_of_a_request(tmp_path: Path) -> None:
    """Check that a job is charged to its own key, whichever job ends before it and starts it."""
    request: ContextVar[str] = ContextVar("request", default="none")
    keys = [Key(name=name, sha256=digest(name), scopes=("write",)) for name in ("a", "b")]
    callers = {key.name: Caller(key, Limits()) for key in keys}
    seen: list[tuple[Any, str]] = []

    async def looking(_: Running) -> None:
        seen.append((current_caller(), request.get()))

    async def work() -> None:
        jobs = Jobs(tmp_path, {"look": looking})
        queued = []
        for name, caller in callers.items():
            request.set(name)
            with charged_to(caller):
                queued.append(await jobs.submit("look", "c", {"of": name}))
        jobs.start()
        for job in queued:
            await ended(jobs, job.id)
        await jobs.stop()
        jobs.close()
        jobs = Jobs(tmp_path, {})
        with charged_to(callers["a"]):
            left = await jobs.submit("look", "c", {"of": "a server that went"})
        jobs.close()
        jobs = Jobs(tmp_path, {"look": looking})
        jobs.start()
        await ended(jobs, left.id)
        await jobs.stop()
        jobs.close()

    run(work)
    assert seen == [(callers["a"], "none"), (callers["b"], "none"), (None, "none")]
