"""Tests of the shared queue: each key has its own number of waiting jobs, and does not delay another's first job."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from serving.errors import Overloaded
from serving.jobs import Job, Jobs, Running
from serving.operations.keys import Key, digest
from serving.operations.limits import Caller, Limits, charged_to
from tests.serving.jobs.counting import KINDS, ended, run, state


def caller(name: str, jobs: int | None = None) -> Caller:
    return Caller(Key(name=name, sha256=digest(name), scopes=("write",), jobs=jobs), Limits())


async def asked(jobs: Jobs, by: Caller | None, corpus: str, n: int = 0) -> Job:
    with charged_to(by):
        return await jobs.submit("work", corpus, {"n": n})


def test_one_key_s_jobs_leave_room_for_those_of_others(tmp_path: Path) -> None:
    async def work() -> None:
        jobs = Jobs(tmp_path, KINDS, waiting=3)
        greedy, small = caller("greedy"), caller("small", jobs=1)
        for n in range(3):
            await asked(jobs, greedy, "c", n)
        with pytest.raises(Overloaded, match="3 jobs of the key 'greedy' are waiting or running") as full:
            await asked(jobs, greedy, "d")
        assert full.value.retry_after
        await asked(jobs, small, "e")
        with pytest.raises(Overloaded, match="1 jobs of the key 'small'"):
            await asked(jobs, small, "f")
        await asked(jobs, None, "g")
        jobs.close()
        jobs = Jobs(tmp_path, KINDS, waiting=3)
        with pytest.raises(Overloaded, match="3 jobs"):  # The next server knows this job.
            await asked(jobs, greedy, "d")
        jobs.close()

    run(work)


def test_what_is_on_its_way_counts_at_once(tmp_path: Path) -> None:
    async def work() -> None:
        jobs = Jobs(tmp_path, KINDS, waiting=3)
        taken = await asyncio.gather(*(asked(jobs, caller("a"), f"c{n}", n) for n in range(10)), return_exceptions=True)
        assert sum(isinstance(one, Job) for one in taken) == 3
        jobs.close()

    run(work)


def test_keys_take_turns(tmp_path: Path) -> None:
    begun: list[str] = []

    async def working(job: Running) -> None:
        begun.append(f"{job.job.caller}{job.job.options['n']}")

    async def work() -> None:
        jobs = Jobs(tmp_path, {"work": working}, at_once=1)
        submitted = [await asked(jobs, caller("a"), f"a{n}", n) for n in range(4)]
        submitted += [await asked(jobs, caller(name), f"{name}{n}", n) for n in range(2) for name in "bc"]
        jobs.start()
        for job in submitted:
            await ended(jobs, job.id)
        await jobs.stop()
        jobs.close()

    run(work)
    assert begun == ["a0", "b0", "c0", "a1", "b1", "c1", "a2", "a3"]


def test_one_key_never_has_all_places(tmp_path: Path) -> None:
    async def waiting(_: Running) -> None:
        await asyncio.Event().wait()

    async def work() -> None:
        jobs = Jobs(tmp_path, {"work": waiting}, at_once=3)
        jobs.start()
        many = [await asked(jobs, caller("a"), f"a{n}", n) for n in range(5)]
        first = await asked(jobs, caller("b"), "b")
        assert (await state(jobs, first.id, lambda job: job.state == "running")).caller == "b"
        assert [(await jobs.job(job.id)).state for job in many] == ["running"] * 2 + ["queued"] * 3
        await jobs.stop()
        jobs.close()

    run(work)


def test_jobs_of_one_corpus_stay_in_their_order_whoever_s_turn_it_is(tmp_path: Path) -> None:
    begun: list[int] = []

    async def working(job: Running) -> None:
        begun.append(job.job.options["n"])

    async def work() -> None:
        jobs = Jobs(tmp_path, {"work": working}, at_once=1)
        order = [caller("a"), caller("a"), caller("a"), caller("b"), caller("a"), caller("b")]
        submitted = [await asked(jobs, by, "shared", n) for n, by in enumerate(order)]
        jobs.start()
        for job in submitted:
            await ended(jobs, job.id)
        await jobs.stop()
        jobs.close()

    run(work)
    assert begun == list(range(6))


def test_each_key_s_ended_jobs_are_kept_whatever_others_have_done(tmp_path: Path) -> None:
    async def done(_: Running) -> None:
        pass

    async def work() -> None:
        jobs = Jobs(tmp_path, {"work": done}, kept=2)
        jobs.start()
        quiet = await ended(jobs, (await asked(jobs, caller("quiet"), "q")).id)
        loud = [await ended(jobs, (await asked(jobs, caller("loud"), "l", n)).id) for n in range(4)]
        assert [job.id for job in await jobs.listing()] == [loud[3].id, loud[2].id, quiet.id]
        await jobs.stop()
        jobs.close()

    run(work)


def test_a_kind_that_runs_alone_leaves_the_other_places_free(tmp_path: Path) -> None:
    begun: list[str] = []

    async def long(job: Running) -> None:
        begun.append(job.job.caller)
        await asyncio.Event().wait()

    async def work() -> None:
        jobs = Jobs(tmp_path, {**KINDS, "long": long}, beside=("long",), alone=("long",))
        jobs.start()
        submitted: list[Job] = []
        for name in "aab":
            with charged_to(caller(name)):
                submitted.append(await jobs.submit("long", f"c{len(submitted)}", {}))
        await ended(jobs, (await jobs.submit("count", "d", {})).id)
        assert [(await jobs.job(job.id)).state for job in submitted] == ["running", "queued", "queued"]
        await jobs.cancel(submitted[0].id)
        await state(jobs, submitted[2].id, lambda job: job.state == "running")
        assert (await jobs.job(submitted[1].id)).state == "queued", "keys take turns"
        await jobs.stop()
        jobs.close()

    run(work)
    assert begun == ["a", "b"]
