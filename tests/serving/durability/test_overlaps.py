"""What may be found of a document that jobs and other writers change at once, and what each other thing is called."""

from __future__ import annotations

import pytest

from tests.serving.durability.history import Verdict
from tests.serving.durability.overlaps import Change, Overlaps

OLD, JOB, LATER = 1, 2, 3


@pytest.fixture
def documents() -> Overlaps:
    """Document a is there in a first version."""
    documents = Overlaps()
    documents.finish(documents.send("a", documents.next_version()))
    return documents


def uploaded(documents: Overlaps) -> Change:
    """A job that brings another version was accepted."""
    job = documents.send("a", documents.next_version())
    documents.accept(job)
    return job


def possible(documents: Overlaps) -> set[int | None]:
    return documents.possible("a", documents.now())


def test_until_a_job_ends_its_rows_may_be_there_or_not(documents: Overlaps) -> None:
    job = uploaded(documents)
    assert possible(documents) == {OLD, JOB}
    documents.finish(job)
    assert possible(documents) == {JOB}


@pytest.mark.parametrize("version", [LATER, None])
def test_what_is_acknowledged_after_a_job_was_accepted_outlives_its_end(
    documents: Overlaps, version: int | None
) -> None:
    job = uploaded(documents)
    later = documents.send("a", version)
    assert possible(documents) == {OLD, JOB, version}
    documents.finish(later)
    assert possible(documents) == {version}
    documents.finish(job)
    assert possible(documents) == {version}


def test_what_was_acknowledged_before_a_job_was_accepted_is_replaced_by_its_end(documents: Overlaps) -> None:
    documents.finish(documents.send("a", None))
    job = uploaded(documents)
    assert possible(documents) == {None, JOB}
    documents.finish(job)
    assert possible(documents) == {JOB}


def test_what_is_written_while_a_job_is_accepted_comes_before_or_after_it(documents: Overlaps) -> None:
    job = documents.send("a", JOB)
    beside = documents.send("a", LATER)
    documents.accept(job)
    documents.finish(beside)
    documents.finish(job)
    assert possible(documents) == {JOB, LATER}


def test_jobs_count_in_the_order_in_which_they_were_accepted(documents: Overlaps) -> None:
    first, between = uploaded(documents), documents.send("a", LATER)
    documents.finish(between)
    second = documents.send("a", LATER + 1)
    documents.accept(second)
    documents.finish(first)
    assert possible(documents) == {LATER, LATER + 1}
    documents.finish(second)
    assert possible(documents) == {LATER + 1}


def test_what_a_killed_server_left_unanswered_counts_before_all_that_is_sent_later(documents: Overlaps) -> None:
    documents.send("a", JOB)
    documents.cut()
    assert possible(documents) == {OLD, JOB}
    documents.finish(documents.send("a", LATER))
    assert possible(documents) == {LATER}


def test_what_was_refused_was_never_there(documents: Overlaps) -> None:
    documents.refuse("a", documents.send("a", None))
    assert possible(documents) == {OLD}


def test_a_read_that_began_before_may_see_what_was_there_then(documents: Overlaps) -> None:
    began = documents.now()
    documents.finish(documents.send("a", None))
    assert documents.possible("a", began) == {OLD, None}


def test_what_may_not_be_there_is_named(documents: Overlaps) -> None:
    documents.finish(documents.send("a", None))
    documents.finish(documents.send("b", documents.next_version()))
    verdict = Verdict()
    documents.judge({"a": OLD, "b": OLD, "c": 9}, documents.now(), verdict, "here")
    assert verdict.wrong == {"back": 1, "lost": 1, "phantom": 1}


def test_after_a_restart_what_was_found_is_what_is_there(documents: Overlaps) -> None:
    uploaded(documents)
    documents.settle({"b": JOB})
    assert possible(documents) == {None}
    assert documents.possible("b", documents.now()) == {JOB}
