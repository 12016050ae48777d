"""What a read may show of a writer's writes, and what each thing that it may not is called."""

from __future__ import annotations

from typing import Any

import pytest

from tests.serving.durability.history import Verdict, Writes, body, judge, sort_out


@pytest.fixture
def writes() -> Writes:
    """a and b in versions 1 and 2 are stored; that a is removed and b changed, in one write, is on its way."""
    writes = Writes("w")
    for changes in ({"a": writes.next_version()}, {"b": writes.next_version()}):
        writes.send(changes)
        writes.acknowledge()
    writes.send({"a": None, "b": writes.next_version()})
    return writes


def kinds(writes: Writes, found: dict[str, int], since: int | None = None) -> set[str]:
    verdict = Verdict()
    judge(writes, found, writes.acknowledged if since is None else since, verdict, "here")
    return set(verdict.wrong)


def test_a_write_without_an_answer_may_or_may_not_be_there(writes: Writes) -> None:
    assert not kinds(writes, {"a": 1, "b": 2})
    assert not kinds(writes, {"b": 3})


def test_it_is_there_as_a_whole_or_not_at_all(writes: Writes) -> None:
    assert kinds(writes, {"a": 1, "b": 3}) == {"in part"}


def test_what_was_acknowledged_is_there(writes: Writes) -> None:
    assert kinds(writes, {"a": 1}) == {"lost"}
    assert kinds(writes, {}) == {"lost"}


def test_a_read_that_began_before_may_see_what_was_there_then(writes: Writes) -> None:
    assert not kinds(writes, {"a": 1}, since=1)
    assert not kinds(writes, {}, since=0)


def test_what_was_removed_stays_away(writes: Writes) -> None:
    writes.acknowledge()
    assert kinds(writes, {"a": 1, "b": 3}) == {"back"}


def test_what_was_refused_is_not_there(writes: Writes) -> None:
    writes.refuse()
    assert kinds(writes, {"b": 3}) == {"lost"}
    assert not kinds(writes, {"a": 1, "b": 2})


def test_what_was_never_sent_is_a_phantom(writes: Writes) -> None:
    assert kinds(writes, {"a": 1, "b": 9}) == {"phantom"}
    assert kinds(writes, {"a": 1, "b": 2, "c": 9}) == {"phantom"}


def test_after_a_restart_what_was_found_is_what_is_there(writes: Writes) -> None:
    writes.settle({"b": 3})
    assert not kinds(writes, {"b": 3})
    assert kinds(writes, {"a": 1, "b": 2})


@pytest.mark.parametrize(
    "change", [{"text": "another"}, {"metadata": {"writer": "w", "version": 4, "odd": False}}, {"id": "b"}]
)
def test_text_and_metadata_belong_together(change: dict[str, Any]) -> None:
    whole, verdict = body("a", 3, "w"), Verdict()
    assert sort_out([whole], verdict, "here") == {"w": {"a": 3}}
    assert not verdict.wrong
    sort_out([{**whole, **change}], verdict, "here")
    assert set(verdict.wrong) == {"torn"}


def test_a_document_twice_is_a_phantom() -> None:
    verdict = Verdict()
    sort_out([body("a", 3, "w")] * 2, verdict, "here")
    assert set(verdict.wrong) == {"phantom"}
