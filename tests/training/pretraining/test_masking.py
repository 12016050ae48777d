from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays
from numpy.typing import NDArray
from tokenizers import Tokenizer, models
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from models.bundle.sources import minilm
from training.pretraining.model import Vocabulary, mask_words, words

SIZE, SPECIAL, INSIDE = 30, 4, 10
"""Size of the vocabulary. Tokens 0 to 3 are special, and 4 to 9 continue a word."""
VOCABULARY = Vocabulary(
    special=np.arange(SIZE) < SPECIAL,
    inside=(np.arange(SIZE) >= SPECIAL) & (np.arange(SIZE) < INSIDE),
    mask=3,
    cls=1,
    unknown=0,
)
IDS = arrays(np.int64, array_shapes(min_dims=2, max_dims=2, max_side=12), elements=st.integers(0, SIZE - 1))


def slow_words(ids: NDArray[np.int64]) -> list[list[int]]:
    """Return the indices of each word's tokens, token by token."""
    found: list[list[int]] = []
    for row, tokens in enumerate(ids.tolist()):
        before = None
        for column, token in enumerate(tokens):
            place = row * ids.shape[1] + column
            if token >= SPECIAL:
                if SPECIAL <= token < INSIDE and before is not None and before >= SPECIAL:
                    found[-1].append(place)
                else:
                    found.append([place])
            before = token
    return found


@given(IDS)
def test_words(ids: NDArray[np.int64]) -> None:
    found = words(ids, VOCABULARY).ravel()
    slow = slow_words(ids)
    assert [np.flatnonzero(found == number).tolist() for number in range(len(slow))] == slow
    assert found.max(initial=-1) == len(slow) - 1


@given(IDS, st.floats(0.01, 0.99), st.integers(0, 2**32))
def test_whole_words_are_hidden_to_the_share_and_nothing_else_changes(
    ids: NDArray[np.int64], share: float, seed: int
) -> None:
    found = mask_words(ids, VOCABULARY, share=share, rng=np.random.default_rng(seed))
    places = set(found.places.tolist())
    of_words = slow_words(ids)
    assert all(places.issuperset(word) or places.isdisjoint(word) for word in of_words)
    assert places <= {place for word in of_words for place in word}, "special tokens are never hidden"
    assert (np.diff(found.places) > 0).all()
    np.testing.assert_array_equal(found.labels, ids.ravel()[found.places])
    others = np.delete(np.arange(ids.size), found.places)
    np.testing.assert_array_equal(found.ids.ravel()[others], ids.ravel()[others])
    instead = found.ids.ravel()[found.places]
    assert ((instead == VOCABULARY.mask) | ~VOCABULARY.special[instead]).all(), "no special token is drawn but [MASK]"
    if of_words:
        wanted = max(1, round(share * sum(map(len, of_words))))
        assert wanted <= len(places) < wanted + max(map(len, of_words))
    else:
        assert not places


def test_of_the_hidden_tokens_eight_in_ten_are_masks_one_is_any_and_one_stays() -> None:
    size = 5000
    vocabulary = Vocabulary(np.arange(size) < SPECIAL, np.zeros(size, dtype=bool), mask=3, cls=1, unknown=0)
    ids = np.random.default_rng(0).integers(SPECIAL, size, (400, 400))
    found = mask_words(ids, vocabulary, share=0.15, rng=np.random.default_rng(1))
    instead, count = found.ids.ravel()[found.places], len(found.places)
    assert count == 24_000
    shares = [(instead == 3).mean(), ((instead != 3) & (instead != found.labels)).mean()]
    np.testing.assert_allclose(shares, [0.8, 0.1], atol=4 * (0.8 * 0.2 / count) ** 0.5)
    drawn = instead[(instead != 3) & (instead != found.labels)]
    assert abs(drawn.mean() - (size + SPECIAL) / 2) < 4 * size / (12 * len(drawn)) ** 0.5, "all are as likely"


def test_every_word_is_hidden_as_often_whatever_its_length() -> None:
    ids = np.tile([20, 21, 4, 22, 5, 6, 7, 8], (8, 25))  # Words of 1, 2 and 5 tokens.
    counts = np.zeros(ids.size)
    for seed in range(100):
        counts[mask_words(ids, VOCABULARY, share=0.3, rng=np.random.default_rng(seed)).places] += 1
    often = counts.reshape(-1, 8)[:, [0, 1, 3]].mean(axis=0) / 100
    np.testing.assert_allclose(often, 0.3, atol=4 * (0.3 * 0.7 / 20_000) ** 0.5)


def test_the_same_seed_hides_the_same() -> None:
    ids = np.random.default_rng(0).integers(0, SIZE, (8, 64))
    first, again, other = (
        mask_words(ids, VOCABULARY, share=0.15, rng=np.random.default_rng(seed)) for seed in (1, 1, 2)
    )
    np.testing.assert_array_equal(first.ids, again.ids)
    assert not np.array_equal(first.ids, other.ids)


def test_the_vocabulary_of_bert() -> None:
    tokenizer = AutoTokenizer.from_pretrained(minilm())
    vocabulary = Vocabulary.of(tokenizer)
    ids = np.array([tokenizer("Tokenization of the unaffordable ☃")["input_ids"]])
    pieces = tokenizer.convert_ids_to_tokens(ids[0])
    assert pieces[:3] == ["[CLS]", "token", "##ization"] and pieces[-2:] == ["[UNK]", "[SEP]"]
    spelt = [int(word) for word in words(ids, vocabulary)[0]]
    assert spelt[:5] == [-1, 0, 0, 1, 2] and spelt[-2:] == [-1, -1] and max(spelt) == 3
    assert vocabulary.special.sum() == 5 and (vocabulary.mask, vocabulary.cls, vocabulary.unknown) == (103, 101, 100)


@given(st.lists(st.integers(1, 9), min_size=7, max_size=7))
def test_ids_that_no_token_has_are_never_hidden_and_never_drawn(steps: list[int]) -> None:
    ids = np.cumsum(steps).tolist()
    names = ("[UNK]", "[CLS]", "[MASK]", "a", "##b", "c", "##d")
    pieces = models.WordPiece(dict(zip(names, ids, strict=True)), unk_token="[UNK]")
    tokenizer = PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
        tokenizer_object=Tokenizer(pieces), unk_token="[UNK]", cls_token="[CLS]", mask_token="[MASK]"
    )
    vocabulary = Vocabulary.of(tokenizer)
    assert len(vocabulary) == ids[-1] + 1, "the model has a row for the highest"
    assert np.flatnonzero(~vocabulary.special).tolist() == ids[3:]
    assert np.flatnonzero(vocabulary.inside).tolist() == [ids[4], ids[6]]
    assert (vocabulary.unknown, vocabulary.cls, vocabulary.mask) == tuple(ids[:3])


def test_a_tokenizer_without_word_pieces_is_refused() -> None:
    other = PreTrainedTokenizerFast(tokenizer_object=Tokenizer(models.WordLevel({"a": 0}, unk_token="a")))  # type: ignore[no-untyped-call]
    with pytest.raises(ValueError, match="not a WordPiece tokenizer"):
        Vocabulary.of(other)
    bare = PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
        tokenizer_object=Tokenizer(models.WordPiece({"a": 0}, unk_token="a"))
    )
    with pytest.raises(ValueError, match=r"lacks \[MASK\], \[CLS\] or \[UNK\]"):
        Vocabulary.of(bare)
