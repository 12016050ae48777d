from __future__ import annotations

from itertools import islice

import pytest

from models.python_docs import Section, prose, sections


@pytest.fixture(scope="module")
def all_sections() -> list[Section]:
    return list(sections())


def test_there_is_enough_of_it_and_nothing_twice(all_sections: list[Section]) -> None:
    assert len(all_sections) > 4000
    assert len({section.text for section in all_sections}) == len(all_sections)
    assert sum(len(section.text) for section in all_sections) > 1_000_000


def test_known_places_are_found(all_sections: list[Section]) -> None:
    places = {(section.module, section.name): section.text for section in all_sections}
    assert places["textwrap", "dedent"].startswith("Remove any common leading whitespace")
    assert "context manager" in places["topics", 'The "with" statement']
    assert ("math", "sqrt") in places


def test_no_code_and_no_markup(all_sections: list[Section]) -> None:
    text = "\n".join(section.text for section in all_sections)
    assert ">>>" not in text
    assert "`" not in text
    assert ":func:" not in text
    assert ":class:" not in text


def test_the_order_is_fixed(all_sections: list[Section]) -> None:
    assert list(islice(sections(), 500)) == all_sections[:500]


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
