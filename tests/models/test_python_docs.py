from __future__ import annotations

from itertools import islice

import pytest

from models.python_docs import Section, prose, sections


@pytest.fixture(scope="module")
def all_sections() -> list[Section]:
    return list(sections())


@pytest.mark.slow
def test_there_is_enough_of_it_and_nothing_twice(all_sections: list[Section]) -> None:
    assert len(all_sections) > 4000
    assert len({section.text for section in all_sections}) == len(all_sections)
    assert sum(len(section.text) for section in all_sections) > 1_000_000


@pytest.mark.slow
def test_known_places_are_found(all_sections: list[Section]) -> None:
    places = {(section.module, section.name): section.text for section in all_sections}
    assert places["textwrap", "dedent"].startswith("Remove any common leading whitespace")
    assert "context manager" in places["topics", 'The "with" statement']
    assert ("math", "sqrt") in places


@pytest.mark.slow
def test_no_code_and_no_markup_in_all_of_it(all_sections: list[Section]) -> None:
    assert_prose(all_sections)


def assert_prose(found: list[Section]) -> None:
    text = "\n".join(section.text for section in found)
    assert ">>>" not in text
    assert "`" not in text
    assert ":func:" not in text
    assert ":class:" not in text


@pytest.mark.slow
def test_the_beginning_of_it_is_prose_in_a_fixed_order_and_nothing_twice() -> None:
    once, again = (list(islice(sections(), 300)) for _ in range(2))
    assert once == again
    assert len({section.text for section in once}) == 300
    assert_prose(once)


def test_prose_unwraps_and_leaves_code_out() -> None:
    raw = """Return the *first* item of
    ``things``, see :func:`next <builtins.next>`.

    >>> first([1])
    1

        x = [1, 2, 3]
        y = x[0]

    * one bullet that says something,
      over two lines.
    * another one which says more.

    ===== =====
    a     b
    ===== =====
    """
    assert list(prose(raw)) == [
        "Return the first item of things, see next.",
        "one bullet that says something, over two lines.",
        "another one which says more.",
    ]
