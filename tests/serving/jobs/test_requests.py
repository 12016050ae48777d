"""Requests with an Idempotency-Key: done once, answered alike."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from serving.errors import Conflict, Invalid, Overloaded
from serving.jobs import Answer, Jobs, Keyed
from tests.serving.jobs.counting import KINDS, run

FIRST, OTHER = Keyed("me", "k", "digest"), Keyed("me", "k", "another")
ANSWER = Answer(200, {"x": "y"}, b"{}")


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
