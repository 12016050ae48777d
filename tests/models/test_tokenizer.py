from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from models.bundle.tokenizer import Direction, Tokenizer

LONG = "the man sings and the river runs to the sea in the morning"


@pytest.fixture(scope="module")
def file(tiny_backbone: Path) -> Path:
    return tiny_backbone / "tokenizer.json"


def test_special_tokens_survive_the_cut_and_the_rest_is_counted(file: Path) -> None:
    (whole,) = Tokenizer(file, max_length=64).encode([LONG])
    tokenizer = Tokenizer(file, max_length=6)
    (right,) = tokenizer.encode([LONG])
    (left,) = tokenizer.encode([LONG], direction="left")
    assert not whole.truncated
    assert right.truncated
    assert right.length == left.length == len(whole)
    assert right.ids.tolist() == [*whole.ids[:5], whole.ids[-1]]
    assert left.ids.tolist() == [whole.ids[0], *whole.ids[-5:]]


def test_the_length_can_be_lowered_for_one_call(file: Path) -> None:
    tokenizer = Tokenizer(file, max_length=64)
    assert len(tokenizer.encode([LONG], max_length=5)[0]) == 5
    assert len(tokenizer.encode([LONG])[0]) > 5


@given(
    texts=st.lists(st.text(alphabet=st.characters(codec="utf-8"), max_size=80), max_size=5),
    limit=st.integers(3, 20),
    direction=st.sampled_from(["right", "left"]),
)
def test_any_text_fits_the_limit_and_keeps_its_true_length(
    tiny_backbone: Path, texts: list[str], limit: int, direction: Direction
) -> None:
    file = tiny_backbone / "tokenizer.json"
    cut = Tokenizer(file, max_length=limit).encode(texts, direction=direction)
    whole = Tokenizer(file, max_length=10_000).encode(texts)
    for short, full in zip(cut, whole, strict=True):
        assert len(short) == min(limit, len(full))
        assert short.length == len(full) == full.length
        assert short.ids[0] == full.ids[0]
        assert short.ids[-1] == full.ids[-1]


def test_a_lone_surrogate_is_named(file: Path) -> None:
    with pytest.raises(ValueError, match="text 1 is not valid Unicode"):
        Tokenizer(file, max_length=8).encode(["fine", "bad \ud800"])


def test_nul_and_control_characters_are_plain_input(file: Path) -> None:
    tokenizer = Tokenizer(file, max_length=8)
    with_nul, without = tokenizer.encode(["the\x00 man", "the man"])
    assert with_nul.ids.tolist() == without.ids.tolist()


def test_pad_fills_to_the_longest(file: Path) -> None:
    tokenizer = Tokenizer(file, max_length=64)
    batch = tokenizer.encode(["the man", LONG, ""])
    ids, mask = tokenizer.pad(batch)
    assert ids.shape == mask.shape == (3, len(batch[1]))
    assert ids.dtype == mask.dtype == np.int64
    assert mask.sum(axis=1).tolist() == [len(tokens) for tokens in batch]
    assert (ids[mask == 0] == 0).all()


def test_decode_inverts_encode_and_refuses_foreign_ids(file: Path) -> None:
    tokenizer = Tokenizer(file, max_length=64)
    (tokens,) = tokenizer.encode(["the man sing"])
    assert tokenizer.decode(tokens.ids.tolist()) == "the man sing"
    for foreign in (tokenizer.vocab_size, -1):
        with pytest.raises(ValueError, match=f"token id {foreign} is outside"):
            tokenizer.decode([2, foreign])


def test_the_highest_of_ids_with_gaps_is_decoded(file: Path, tmp_path: Path) -> None:
    described = json.loads(file.read_text())
    word = max(described["model"]["vocab"], key=described["model"]["vocab"].__getitem__)
    described["model"]["vocab"][word] += 10
    (tmp_path / "tokenizer.json").write_text(json.dumps(described))
    tokenizer = Tokenizer(tmp_path / "tokenizer.json", max_length=64)
    highest = described["model"]["vocab"][word]
    assert tokenizer.decode([highest]) == word.removeprefix("##")
    with pytest.raises(ValueError, match="outside the vocabulary"):
        tokenizer.decode([highest + 1])


def test_pieces_are_where_their_text_is_and_nothing_is_cut(file: Path) -> None:
    tokenizer = Tokenizer(file, max_length=5)
    (pieces,) = tokenizer.pieces([LONG])
    (tokens,) = Tokenizer(file, max_length=64).encode([LONG])
    assert [piece.id for piece in pieces] == tokens.ids.tolist()
    first, *between, last = pieces
    assert [(piece.special, piece.start, piece.stop) for piece in (first, last)] == [(True, None, None)] * 2
    assert all(piece.text == LONG[piece.start : piece.stop] and not piece.special for piece in between)
    (bare,) = tokenizer.pieces([LONG], special_tokens=False)
    assert bare == between


def test_special_tokens_are_shown_where_they_are_wanted(file: Path) -> None:
    tokenizer = Tokenizer(file, max_length=64)
    first, *_, last = tokenizer.pieces(["the man"])[0]
    whole = tokenizer.decode([first.id, last.id], skip_special_tokens=False)
    assert whole.split() == [first.text, last.text]
    assert tokenizer.decode([first.id, last.id]) == ""


def test_a_length_without_room_for_text_is_refused(file: Path) -> None:
    with pytest.raises(ValueError, match="leaves no room"):
        Tokenizer(file, max_length=2)
