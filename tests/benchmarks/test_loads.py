"""Tests of the loads of the serving benchmark: their lengths and sizes agree with their names."""

from __future__ import annotations

import json
from itertools import islice
from pathlib import Path
from statistics import mean, median

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.serving import loads
from benchmarks.serving.loads import CAPACITY, LOADS, Population, populations, prepared, requests, selected
from models.bundle.tokenizer import Tokenizer
from models.python_docs import Section

MAX_LENGTH = 256
PROSE = "The teacher can't read (yet); see `sys.exit`, e.g. zebra-crossings, and 3.14 or … the dog sings to a child."


@pytest.fixture(scope="module")
def tokenizer(tiny_backbone: Path) -> Tokenizer:
    return Tokenizer(tiny_backbone / "tokenizer.json", max_length=MAX_LENGTH)


@pytest.fixture(scope="module")
def texts(tokenizer: Tokenizer) -> dict[str, Population]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loads, "sections", lambda: [Section("module", "name", PROSE)])
        return populations(tokenizer)


@pytest.mark.parametrize(("name", "length"), [("short", 16), ("middle", 128), ("long", 512)])
def test_every_text_has_the_tokens_of_its_population(
    texts: dict[str, Population], tokenizer: Tokenizer, name: str, length: int
) -> None:
    assert {tokens.length for tokens in tokenizer.encode(texts[name].texts)} == {length}


def test_the_tokens_counted_are_those_that_the_model_reads(texts: dict[str, Population], tokenizer: Tokenizer) -> None:
    for population in texts.values():
        assert [len(tokens) for tokens in tokenizer.encode(population.texts)] == population.tokens


def test_mixed_lengths_are_log_normal_up_to_the_longest(texts: dict[str, Population]) -> None:
    lengths = texts["mixed"].tokens
    assert median(lengths) == pytest.approx(27, abs=2)
    assert mean(lengths) == pytest.approx(loads.MEAN, abs=3)
    assert max(lengths) == loads.LONGEST
    assert min(lengths) > loads.SPECIAL


@given(lengths=st.lists(st.integers(1, 9), max_size=20), size=st.integers(1, 6))
def test_requests_hold_every_text_in_order_but_those_left_over(lengths: list[int], size: int) -> None:
    population = Population([f"text {i}" for i in range(len(lengths))], lengths)
    made = requests(population, size, "some-model")
    assert {json.loads(request.body)["model"] for request in made} <= {"some-model"}
    whole = len(lengths) // size * size
    assert [text for request in made for text in json.loads(request.body)["input"]] == population.texts[:whole]
    assert [request.texts for request in made] == [size] * (whole // size)
    assert [request.tokens for request in made] == [sum(lengths[i : i + size]) for i in range(0, whole, size)]


def test_a_text_comes_again_only_after_all_others() -> None:
    population = {"short": Population(list("abc"), [3, 3, 3])}
    stream = prepared(population, {"singles_1": LOADS["singles_1"]})["singles_1"]
    asked = [json.loads(request.body)["input"] for request in islice(stream, 6)]
    assert asked == [["a"], ["b"], ["c"]] * 2


def test_loads_are_selected_by_name_or_beginning() -> None:
    assert list(selected(())) == list(LOADS)
    assert list(selected(["mixed", "bulk"])) == ["mixed_1", "mixed_4", "mixed_16", "bulk"]
    with pytest.raises(ValueError, match="no load sing; available: singles_1"):
        selected(["sing"])


def test_an_open_loop_comes_after_the_load_that_gives_its_rate() -> None:
    assert list(selected(["open_80"])) == [CAPACITY, "open_80"]
