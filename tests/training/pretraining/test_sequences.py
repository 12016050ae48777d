from __future__ import annotations

from itertools import chain, islice
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from models.bundle.tokenizer import Tokens
from training.data.corpus import open_corpus
from training.pretraining.batches import BLOCK, START, Position, concatenate, cut, sentence_lengths

LENGTHS = st.lists(st.integers(0, 12), max_size=6)


@given(LENGTHS, st.integers(1, 4), st.integers(1, 9))
def test_no_token_is_lost_and_the_order_is_kept(lengths: list[int], rows: int, length: int) -> None:
    tokens = np.arange(sum(lengths))
    blocks = np.split(tokens, np.cumsum(lengths)[:-1]) if lengths else []
    batches = [batch for batch, _ in cut(blocks, rows=rows, length=length, start=START)]
    assert all(batch.shape == (rows, length) for batch in batches)
    given_out = np.concatenate([np.array([], dtype=np.int64), *(batch.ravel() for batch in batches)])
    np.testing.assert_array_equal(given_out, tokens[: len(given_out)])
    assert 0 <= len(tokens) - len(given_out) < rows * length, "what is left is less than a batch"


@pytest.mark.slow
@given(LENGTHS, st.integers(1, 4), st.integers(1, 9))
def test_from_wherever_a_batch_ended_the_rest_is_the_same(lengths: list[int], rows: int, length: int) -> None:
    blocks = np.split(np.arange(sum(lengths)), np.cumsum(lengths)[:-1]) if lengths else []
    batches = list(cut(blocks, rows=rows, length=length, start=START))
    for number, (_, position) in enumerate(batches, start=1):
        again = cut(blocks[position.block :], rows=rows, length=length, start=position)
        for (batch, end), (other, same) in zip(batches[number:], again, strict=True):
            np.testing.assert_array_equal(batch, other)
            assert end == same


def test_epochs_follow_each_other_without_a_gap(tmp_path: Path) -> None:
    file = tmp_path / "corpus.txt"
    file.write_text("".join(f"{i}\n" for i in range(BLOCK + 500)))
    corpus = open_corpus([str(file)], held_out=0)

    def encode(sentences: list[str]) -> list[Tokens]:
        """Return tokens of sentences. The number in a sentence is its number of tokens, four at most."""
        return [Tokens(np.full(int(each) % 4 + 1, int(each)), int(each) % 4 + 1) for each in sentences]

    def read(start: Position, batches: int) -> list[tuple[list[int], Position]]:
        blocks = (concatenate(encode(each)) for each in corpus.batches(BLOCK, seed=3, start=start.block))
        found = cut(blocks, rows=8, length=16, start=start)
        return [(ids.ravel().tolist(), end) for ids, end in islice(found, batches)]

    order = chain.from_iterable(islice(corpus.batches(BLOCK, seed=3), 4))
    wanted = list(chain.from_iterable([int(each)] * (int(each) % 4 + 1) for each in order))
    batches = read(START, len(wanted) // 128)
    assert list(chain.from_iterable(ids for ids, _ in batches)) == wanted[: len(batches) * 128]
    assert batches[-1][1].block >= 3, "two epochs of two blocks each"
    assert read(batches[40][1], len(batches) - 41) == batches[41:]


def test_parts() -> None:
    ids = np.array([[1, 7, 7, 1, 7], [7, 7, 7, 7, 7], [1, 1, 7, 7, 1]])
    assert sentence_lengths(ids, cls=1) == [3, 2, 5, 1, 3, 1]
