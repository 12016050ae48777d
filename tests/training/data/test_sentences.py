from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from training.data.sentences import all_sentences, clean_sentences, is_clean


@pytest.mark.parametrize(
    "sentences",
    [
        ["The file is opened once.", "It is closed at the end!", "Is it closed twice?"],
        ["Use a mapping, e.g. The Python dictionary, i.e. Dict.", "It is fast."],
        ["Ask Dr. Smith or Mrs. Jones vs. Mr. Brown about it.", "They know."],
        ["The ratio is 3.14 or so, about 2.5 times more.", "That is all."],
        ["See J. R. Smith for an early proof.", "It is short."],
        ["See Fig. 3 and vol. 12, pp. 4 and no. 7 of it.", "All agree."],
        ["The answer is no.", "Then it stops."],
        ["It waited... and then it went on.", "It waited…", "Then it ended."],
        ['He said "stop."', "Then he left."],
        ["It is done (or so it seems.)", "Nobody knows."],
        ["It was sold in the U.S. and abroad for 1.5 million.", "That was much."],
        ["Lists, tuples, etc.", "Sets are different."],
        ["1. Open the file first.", "2. Close the file last."],
        ["That is what I.", "They went home."],
        ["Really?!", "Yes."],
        ["What ends without a mark"],
        ["Der Hund bellt.", "Über ihm steht der Mond.", "Ängstlich ist er nicht."],
        ["Собака лает на улице.", "Дождь идёт (с утра).", "«Пора», сказал он."],
        ["Ο σκύλος γαβγίζει.", "Η γάτα κοιμάται.", "Έξω βρέχει."],
        ["¿Qué hora es?", "¿Son las tres?", "Él no lo sabe."],
        ["הכלב נובח ברחוב.", "החתול ישן."],
        ["कुत्ता भौंकता है।", "बिल्ली सोती है।"],
        ["Он сказал и т. д. о том же.", "Потом ушёл."],
    ],
)
def test_where_sentences_end(sentences: list[str]) -> None:
    assert list(all_sentences(" ".join(sentences))) == sentences


def test_chinese_and_japanese_have_no_space_behind_the_mark() -> None:
    for single in ("「今日は良い天気です。」", "すごい！！", "他说：“好。”", "（終わり。）"):
        assert list(all_sentences(single)) == [single]
    assert list(all_sentences("狗在叫。猫在睡觉！他说：“下雨了。”真的吗？是。")) == [
        *("狗在叫。", "猫在睡觉！", "他说：“下雨了。”", "真的吗？", "是。")
    ]


@given(st.text(alphabet="abAB .!?\"'()[]1_-", max_size=60))
def test_ascii_text_is_cut_before_a_capital_or_a_digit_only(paragraph: str) -> None:
    for sentence in list(all_sentences(paragraph))[1:]:
        assert re.match(r"""["'(\[]*[A-Z0-9]""", sentence)


@given(st.text(alphabet="ab AB.!?…\"'()1 \n\t", max_size=80))
def test_nothing_is_lost_in_cutting(paragraph: str) -> None:
    assert " ".join(all_sentences(paragraph)) == " ".join(paragraph.split())


@pytest.mark.parametrize(
    "sentence",
    [
        "The file is opened once and closed at the end.",
        "If it fails, e.g. on a full disk, an error is raised!",
        'The "with" statement closes the file in the end.',
        "(This is only true of files that are open.)",
        "The open() function returns a file object that can be read.",
        "Since 1999 about 3.5 million people have lived in the city.",
        "Does it return the number of bytes that were read?",
    ],
)
def test_clean_english(sentence: str) -> None:
    assert is_clean(sentence)


@pytest.mark.parametrize(
    ("sentence", "why"),
    [
        ("Returns the length.", "too short"),
        ("Very " * 80 + "long.", "too long"),
        ("the file is opened once and closed.", "no capital"),
        ("The file is opened once and closed:", "no end"),
        ("The result of x = y + 1 is stored there.", "assignment"),
        (">>> The prompt of the interpreter is shown here.", "doctest"),
        ("Calling f(x, y) gives the sum of the two.", "call"),
        ("The items[0] of the list is the first one.", "subscript"),
        ("The {braces} of the template are replaced by it.", "braces"),
        ("Use --verbose to see what it does while running.", "option"),
        ("Set os.path and foo_bar and someName.thing before a call.", "more names than prose"),
        ("See https://example.org for all of the details.", "address"),
        ("The (unbalanced bracket of this sentence is odd.", "bracket"),
        ('The "unbalanced quote of this sentence is odd.', "quote"),
        ("The values 1 2 3 4 5 6 7 8 9 10 11 12 13.", "numbers"),
        ("Ein völlig über größere Flüsse führender Weg für Füße.", "not ASCII"),
        ("The terminal rings when it reads \x07 from here.", "control character"),
        ("The text holds a lone \ud800 surrogate in it.", "surrogate"),
    ],
)
def test_not_clean(sentence: str, why: str) -> None:
    assert not is_clean(sentence), why


def test_only_prose_of_a_text_is_taken() -> None:
    text = """Return the number of items in the container
    that is given. It never fails, whatever is in it.

    >>> len([1, 2])
    The doctest above and its paragraph are left out here.

    Example:

        value = len(items)

    The paragraph after the code is taken up again, too.
    """
    assert list(clean_sentences(text)) == [
        "Return the number of items in the container that is given.",
        "It never fails, whatever is in it.",
        "The paragraph after the code is taken up again, too.",
    ]
