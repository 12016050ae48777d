from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from models.encoder.encoder import Encoder
from tests.conftest import PATIENCE
from training.data.batches import Tokeniser, prefetch
from training.machine.devices import Devices


def test_items_come_in_their_order_and_all_of_them() -> None:
    for count in (0, 1, 3, 50):
        assert list(prefetch(iter(range(count)))) == list(range(count))


def test_they_are_made_on_another_thread_before_they_are_asked_for() -> None:
    made, fifth = [], threading.Event()

    def numbers() -> Iterator[int]:
        for number in range(100):
            made.append(threading.current_thread())
            if number == 4:
                fifth.set()
            yield number

    with closing(prefetch(numbers(), depth=4)) as items:
        assert next(items) == 0
        assert fifth.wait(PATIENCE), "four more are made without anyone asking"
    assert threading.current_thread() not in made and len(set(made)) == 1
    assert len(made) <= 6, "and no more than that"


def test_an_error_is_raised_where_the_item_was_due() -> None:
    def broken() -> Iterator[int]:
        yield 1
        raise ValueError("line 2")

    items = prefetch(broken())
    assert next(items) == 1
    with pytest.raises(ValueError, match="line 2"):
        next(items)


def test_each_encoder_has_tokens_of_its_own_vocabulary_and_length(tiny_backbone: Path) -> None:
    student = Encoder.load(tiny_backbone, max_length=6)
    teacher = Encoder.load("minilm")
    sentences = ["the man can see the river .", "a dog ."]
    batch = Tokeniser(student, teacher, max_length=8, own=Devices("cpu").rows)(sentences)
    assert list(batch.own) == [0, 1] and batch.sentences == sentences
    assert [len(tokens) for tokens in batch.tokens] == [6, 5] and batch.lengths(2) == [6, 5, 6, 5]
    assert batch.teacher_tokens is not None
    assert list(batch.teacher_tokens[0].ids) == list(teacher.tokenizer.encode(sentences, max_length=8)[0].ids)


def test_a_process_tokenises_its_own_rows_alone(tiny_backbone: Path) -> None:
    student = Encoder.load(tiny_backbone)
    batch = Tokeniser(student, None, max_length=32, own=lambda count: range(1, count))(["a", "a dog", "a dog ."])
    assert list(batch.own) == [1, 2] and len(batch.sentences) == 3
    assert [len(tokens) for tokens in batch.tokens] == [4, 5] and batch.teacher_tokens is None
