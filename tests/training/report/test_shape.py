"""Tests of damaged evaluations: they give a page, or an error that names the problem."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.training.report.conftest import evaluation
from training.evaluation.report.evaluated import EVALUATION, ReportError, display_errors, shape_errors
from training.evaluation.report.page import render

Place = tuple[Any, ...]

WHOLE = evaluation(width=12)
JUNK = st.one_of(
    st.none(), st.booleans(), st.text(st.characters(), max_size=3), st.sampled_from(["\ud800", 10**400, 1e308, 1e-320]),
    st.integers(-3, 10**6), st.floats(), st.builds(list), st.builds(dict), st.lists(st.integers(-2, 2), max_size=3),
    st.dictionaries(st.sampled_from(["0", "-1", "32", "c", "step", "edges"]), st.none() | st.integers(), max_size=2),
)  # fmt: skip
DROP = object()


def places(value: object, path: Place = ()) -> Iterator[Place]:
    """Yield the path of every value."""
    parts = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for name, each in parts:
        yield (*path, name)
        yield from places(each, (*path, name))


PLACES = list(places(WHOLE))
SECTIONS = sorted({place[0] for place in PLACES})


@st.composite
def damages(draw: st.DrawFn) -> list[tuple[Place, Any]]:
    """Draw a path in some section, so that long lists do not dominate, and a damage."""
    chosen = [
        draw(st.sampled_from([place for place in PLACES if place[0] == section]))
        for section in draw(st.lists(st.sampled_from(SECTIONS), min_size=1, max_size=3))
    ]
    return [(place, draw(JUNK | st.just(DROP))) for place in chosen]


def damaged(changes: list[tuple[Place, Any]]) -> dict[str, Any]:
    result = copy.deepcopy(WHOLE)
    for (*path, last), junk in changes:
        part: Any = result
        try:
            for name in path:
                part = part[name]
            if junk is DROP:
                del part[last]
            else:
                part[last] = junk
        except (KeyError, IndexError, TypeError):
            continue  # An earlier change removed this part.
    return result


@given(changes=damages())
def test_a_damaged_evaluation_is_a_page_or_is_refused(changes: list[tuple[Place, Any]]) -> None:
    try:
        page = render([WHOLE, damaged(changes)])
    except ReportError as error:
        assert str(error).startswith("evaluation 2")
    else:
        assert page.encode().endswith(b"</html>\n")


@given(junk=JUNK)
def test_whatever_stands_in_its_place_is_a_page_or_is_refused(junk: Any) -> None:
    with pytest.raises(ReportError, match="evaluation 1: "):
        render([junk])


@pytest.mark.slow
def test_every_part_that_the_page_reads_is_checked() -> None:
    """Replace a value by a list, and a list or object by a text."""
    for place in PLACES:
        if place[0] in ("format", "environment") or place[:3] == ("geometry", "spectrum", "values"):
            continue
        value: Any = WHOLE
        for name in place:
            value = value[name]
        wrong: Any = "text" if isinstance(value, dict | list) else [[]]
        (complaint,) = shape_errors(damaged([(place, wrong)]), EVALUATION, "it")
        assert complaint.startswith(f"it {place[0]}")


def nested(depth: int) -> Any:
    value: Any = 0
    for _ in range(depth):
        value = {"a": [value]}
    return value


@pytest.mark.parametrize(
    ("value", "said"), [(nested(8), []), (nested(5000), ["deeper"]), (True, []), ([-1e15], ["it[0] is -1"])]
)
def test_what_cannot_be_shown_is_found_at_any_depth(value: Any, said: list[str]) -> None:
    found = list(display_errors(value, "it"))
    assert len(found) == len(said)
    assert all(word in complaint for word, complaint in zip(said, found, strict=True))


def test_the_whole_evaluation_has_its_shape(evaluate: Callable[..., dict[str, Any]]) -> None:
    assert not [*shape_errors(evaluate(), EVALUATION, "it"), *display_errors(evaluate(), "it")]
