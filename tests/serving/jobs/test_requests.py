"""Tests of requests with an Idempotency-Key: they are done once, and the answer is repeated."""

from __future__ import annotations

import sqlite3
import time
from contextlib import closing
from pathlib import Path

import pytest

from serving.errors import Conflict, Invalid, Overloaded
from serving.jobs import Answer, Job, Jobs, Keyed, Running
from tests.serving.jobs.counting import KINDS, ended, run

FIRST, OTHER = Keyed("me", "k", "digest"), Keyed("me", "k", "another")
ANSWER = Answer(200, {"x": "y"}, b"{}")


def test_a_clock_that_jumps_keeps_no_answer_for_ever(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    day, now = 24 * 3600, time.time()

    def at(moment: float) -> None:
        monkeypatch.setattr("serving.jobs.ledger.time.time", lambda: moment)

    def kept() -> int:
        with closing(sqlite3.connect(tmp_path / "ledger.sqlite")) as connection:
            return int(connection.execute("SELECT count(*) FROM answers").fetchone()[0])

    async def work() -> None:
        jobs = Jobs(tmp_path, KINDS)
        at(now + 3600)
        await jobs.requests.note(FIRST, ANSWER)
        at(now)  # The clock goes back an hour.
        async with jobs.requests.once(FIRST) as before:
            assert before == ANSWER
        at(now + 3000 * day)  # The clock is wrong by years.
        await jobs.requests.note(FIRST._replace(key="ahead"), ANSWER)
        at(now)
        await jobs.requests.note(FIRST._replace(key="right"), ANSWER)
        assert kept() == 1, "what was noted in the future would stay until then"
        jobs.close()

    run(work)


def test_requests_are_answered_once(tmp_path: Path) -> None:
    async def work() -> None:
        jobs = Jobs(tmp_path, KINDS)
        async with jobs.requests.once(FIRST) as before:
            assert before is None
            with pytest.raises(Conflict, match="is not answered yet"):
                async with jobs.requests.once(FIRST):
                    pass
            await jobs.requests.note(FIRST, ANSWER)
        jobs.close()
        jobs = Jobs(tmp_path, KINDS)
        async with jobs.requests.once(FIRST) as before:
            assert before == ANSWER
        with pytest.raises(Invalid, match="Idempotency-Key: another request"):
            async with jobs.requests.once(OTHER):
                pass
        async with jobs.requests.once(FIRST._replace(caller="you")) as before:
            assert before is None, "another caller's key"
        async with jobs.requests.once(None) as before:
            assert before is None
        jobs.close()

    run(work)


def test_an_answer_that_was_never_given_is_not_kept(tmp_path: Path) -> None:
    async def work() -> None:
        jobs = Jobs(tmp_path, KINDS)
        with pytest.raises(Overloaded):
            async with jobs.requests.once(FIRST):
                raise Overloaded("later")
        async with jobs.requests.once(OTHER) as before:
            assert before is None
        jobs.close()

    run(work)


def test_answers_are_kept_for_a_day(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def work() -> None:
        jobs = Jobs(tmp_path, KINDS)
        await jobs.requests.note(FIRST, ANSWER)
        now = time.time()
        monkeypatch.setattr(time, "time", lambda: now + 24 * 3600 + 60)
        async with jobs.requests.once(OTHER) as before:
            assert before is None
        jobs.close()

    run(work)


def test_a_job_and_the_answer_to_its_request_are_noted_together(tmp_path: Path) -> None:
    async def work() -> None:
        jobs = Jobs(tmp_path, KINDS)
        job = await jobs.submit("count", "c", {}, answered=(FIRST, lambda job: Answer(202, {}, job.id.encode())))
        jobs.close()
        jobs = Jobs(tmp_path, KINDS)
        async with jobs.requests.once(FIRST) as before:
            assert before == Answer(202, {}, job.id.encode())
        jobs.close()

    run(work)


def test_the_ids_of_a_key_are_its_own() -> None:
    assert FIRST.space == Keyed("me", "k", "digest").space
    assert len({FIRST.space, OTHER.space, FIRST._replace(caller="you").space}) == 3


def test_a_corpus_that_was_made_anew_has_nothing_of_what_was_done_to_the_one_before(tmp_path: Path) -> None:
    async def work() -> None:
        jobs = Jobs(tmp_path, KINDS)
        before, now = FIRST._replace(generation="before"), FIRST._replace(generation="now")
        await jobs.requests.note(before, ANSWER)
        async with jobs.requests.once(before) as answer:
            assert answer == ANSWER
        async with jobs.requests.once(now) as answer:
            assert answer is None
            await jobs.requests.note(now, ANSWER)
        async with jobs.requests.once(now) as answer:
            assert answer == ANSWER
        assert before.space == now.space, "the same ids where it is done twice after all"
        jobs.close()

    run(work)


def test_a_job_that_came_to_nothing_is_begun_again_by_its_key(tmp_path: Path) -> None:
    """Start a failed job again by its key, but not a running or successful job."""

    async def work() -> None:
        async def failing(_: Running) -> None:
            raise Overloaded("not now")

        jobs = Jobs(tmp_path, {**KINDS, "fail": failing})

        async def asked(kind: str, key: str, **options: int) -> tuple[Job, Answer]:
            keyed = FIRST._replace(key=key)
            job = await jobs.submit(kind, key, options, answered=(keyed, lambda job: Answer(202, {}, job.id.encode())))
            async with jobs.requests.once(keyed) as answer:
                assert answer == Answer(202, {}, job.id.encode()), "queued"
            return job, answer

        async def kept(key: str) -> Answer | None:
            async with jobs.requests.once(FIRST._replace(key=key)) as answer:
                return answer

        good, answer = await asked("count", "good")
        bad, _ = await asked("fail", "bad")
        cancelled, _ = await asked("count", "cancelled", wait=3)
        jobs.start()
        assert (await ended(jobs, good.id)).state == "succeeded"
        assert (await ended(jobs, bad.id)).state == "failed"
        assert (await jobs.cancel(cancelled.id)).state == "cancelled"
        assert [await kept(key) for key in ("good", "bad", "cancelled")] == [answer, None, None]
        await jobs.stop()
        jobs.close()

    run(work)


def test_the_oldest_answers_of_a_key_go_when_they_take_too_much(tmp_path: Path) -> None:
    async def work() -> None:
        jobs = Jobs(tmp_path, KINDS, answer_bytes=10_000)
        large = Answer(200, {}, b"x" * 2000)
        await jobs.requests.note(FIRST._replace(caller="you"), large)
        keys = [FIRST._replace(key=f"k{n}") for n in range(20)]
        for key in keys:
            await jobs.requests.note(key, large)
            assert jobs.requests.bytes("me") <= 10_000
        await jobs.requests.note(FIRST._replace(key="too large"), Answer(200, {}, b"x" * 10_000))
        answers = []
        for key in [*keys, FIRST._replace(key="too large"), FIRST._replace(caller="you")]:
            async with jobs.requests.once(key) as answer:
                answers.append(answer)
        assert answers == [None] * 17 + [large] * 3 + [None, large]
        jobs.close()

    run(work)


def test_an_answer_stays_though_the_clock_was_set_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def work() -> None:
        jobs = Jobs(tmp_path, KINDS, answer_bytes=10_000)
        large, now = Answer(200, {}, b"x" * 2000), time.time()
        for n in range(5):
            monkeypatch.setattr("serving.jobs.ledger.time.time", lambda n=n: now - 60 * n)
            key = FIRST._replace(key=f"k{n}")
            await jobs.requests.note(key, large)
            async with jobs.requests.once(key) as answer:
                assert answer == large
        assert jobs.requests.bytes("me") <= 10_000
        jobs.close()

    run(work)


def test_what_an_answer_costs_the_ledger(tmp_path: Path) -> None:
    """Count SQLite's instructions: neither other keys nor many evictions increase the cost of one."""
    jobs = Jobs(tmp_path, KINDS, answer_bytes=1_500_000)
    with jobs.requests._ledger.transaction() as connection:

        def cost(keyed: Keyed, answer: Answer) -> int:
            spent = list[None]()
            connection.set_progress_handler(lambda: spent.append(None), 100)
            jobs.requests.keep(connection, keyed, answer)
            connection.set_progress_handler(None, 0)
            return 100 * len(spent)

        for n in range(1000):
            jobs.requests.keep(connection, FIRST._replace(key=f"k{n}"), ANSWER)
        assert cost(FIRST._replace(caller="you"), ANSWER) < 1000
        assert cost(FIRST, Answer(200, {}, b"x" * 1_490_000)) < 200_000
    jobs.close()
