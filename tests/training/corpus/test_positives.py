from __future__ import annotations

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from training.data.positives import MIN_SPAN_WORDS, POSITIVES, are_passages, cloze, crop, title

WORDS = st.lists(st.sampled_from("river stone market guitar paper winter night bread".split()), min_size=1, max_size=9)
SENTENCES = st.lists(WORDS.map(lambda words: " ".join(words).capitalize() + "."), min_size=1, max_size=6)
TITLES = st.sampled_from(["", "Of rivers\n"])


@given(sentences=SENTENCES, seed=st.integers(0, 99))
def test_a_cloze_takes_one_sentence_out_of_the_passage(sentences: list[str], seed: int) -> None:
    taken, rest = cloze(" ".join(sentences), Random(seed))
    if len(sentences) > 1:
        places = [place for place, sentence in enumerate(sentences) if sentence == taken]
        assert rest in [" ".join(sentences[:place] + sentences[place + 1 :]) for place in places]
    else:
        assert sorted(f"{taken} {rest}".split()) == sorted(sentences[0].split()) or taken == rest == sentences[0]


@given(sentences=SENTENCES, seed=st.integers(0, 99))
def test_crops_are_spans_of_whole_words(sentences: list[str], seed: int) -> None:
    passage = " ".join(sentences)
    words = passage.split()
    for text in crop(passage, Random(seed)):
        spans = [words[first : first + len(text.split())] for first in range(len(words))]
        assert text.split() in spans and len(text.split()) >= min(MIN_SPAN_WORDS, len(words))


@pytest.mark.parametrize("kind", POSITIVES)
@given(head=TITLES, sentences=SENTENCES, seed=st.integers(0, 99))
def test_a_pair_is_two_texts_of_one_line_and_the_same_from_the_same_seed(
    kind: str, head: str, sentences: list[str], seed: int
) -> None:
    passage = head + " ".join(sentences)
    pair = POSITIVES[kind](passage, Random(seed))
    assert pair == POSITIVES[kind](passage, Random(seed))
    assert all(text.strip() and "\n" not in text for text in pair)


def test_a_title_stands_against_the_text_and_where_there_is_none_a_sentence_does() -> None:
    assert title("Of rivers\nA river is long. It ends in the sea.", Random(0)) == (
        "Of rivers",
        "A river is long. It ends in the sea.",
    )
    assert set(title("A river is long. It ends in the sea.", Random(0))) == {"A river is long.", "It ends in the sea."}


def test_a_passage_without_spaces_gives_up_a_span() -> None:
    text = "今日は天気がいいので散歩に行きました"
    taken, rest = cloze(text, Random(0))
    assert taken in text and len(taken) + len(rest) == len(text)


@pytest.mark.parametrize(
    ("texts", "expected"),
    [
        (["A river is long. It ends in the sea."] * 3, True),
        (["Of rivers\nA river is long.", "A stone is hard."], False),
        (["A stone is hard.", "A river is long. It ends in the sea."], True),
        (["река " * 80], True),
        (["", " "], False),
        ([], False),
    ],
)
def test_what_passages_are(texts: list[str], expected: bool) -> None:
    assert are_passages(texts) is expected
