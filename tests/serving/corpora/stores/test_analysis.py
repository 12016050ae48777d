"""What is one word: characters that look the same, and scripts that put no spaces between words."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serving.corpora.stores import analysis, words
from serving.corpora.values import Stemming
from tests.serving.corpora.stores.test_words import indexed, keys, marked, searched


def found(text: str, query: str, stemming: Stemming = "none") -> bool:
    with indexed("some other words", text, stemming=stemming) as connection:
        return keys(searched(connection, query, 5, stemming=stemming)) == [2]


def marks(text: str, query: str, stemming: Stemming = "none") -> list[str]:
    return [text[span.start : span.end] for span in marked(text, query, stemming)]


@pytest.mark.parametrize(
    ("text", "query", "marks_in_text"),
    [
        ("a ﬁnancial ofﬁce", "financial", ["ﬁnancial"]),
        ("a financial office", "ﬁnancial oﬃce", ["financial", "office"]),
        ("soft\u00adhyphen", "softhyphen", ["soft\u00adhyphen"]),
        ("a data\u200bbase\ufeff", "database", ["data\u200bbase\ufeff"]),
        ("no １２３ or ＡＢＣ", "123 abc", ["１２３", "ＡＢＣ"]),
        ("die Straße", "STRASSE", ["Straße"]),
        ("die STRASSE", "straße", ["STRASSE"]),
        ("ὈΔΥΣΣΕΎΣ", "ὀδυσσεύς", ["ὈΔΥΣΣΕΎΣ"]),
        ("ISTANBUL İstanbul", "istanbul", ["ISTANBUL", "İstanbul"]),
        ("re\u0301sume\u0301 🐋", "resume", ["re\u0301sume\u0301"]),
        ("ｶﾞｿﾘﾝの", "ガソリン", ["ｶﾞｿﾘﾝ"]),
        ("ガソリンの", "ｶﾞｿﾘﾝ", ["ガソリン"]),
        ("か\u3099く", "がく", ["か\u3099く"]),
        ("⽇本", "日本", ["⽇本"]),
        ("한국", "\u1112\u1161\u11ab국", ["한국"]),
        ("\u1112\u1161\u11ab국", "한국", ["\u1112\u1161\u11ab국"]),
        ("H₂O m²", "h2o M2", ["H₂O", "m²"]),
        ("2½ cups", "2", ["2", "½"]),
        ("Foo™ Bar®", "foo bar", ["Foo", "Bar"]),
        ("20㎏ ㈱", "kg 株", ["㎏", "㈱"]),
        ("の㍿と", "株式 会社", ["㍿"]),
        ("שָׁלוֹם كَتَبَ", "שלום كتب", ["שָׁלוֹם", "كَتَبَ"]),
        ("ﷲ", "الله", ["ﷲ"]),
        ("می\u200cخواهم", "میخواهم", ["می\u200cخواهم"]),
        ("हिन्दी में", "हिन्दी", ["हिन्दी"]),
        ("fun 😀!", "😀", ["😀"]),
        ("👍🏽👩‍💻", "👍 💻", ["👍🏽", "💻"]),
        ("♥️", "♥", ["♥️"]),
        ("1️⃣", "1", ["1️⃣"]),
        ("🇩🇪🇫🇷", "🇫🇷", ["🇫🇷"]),
    ],
)
def test_characters_that_look_the_same_are_the_same(text: str, query: str, marks_in_text: Sequence[str]) -> None:
    assert found(text, query)
    assert marks(text, query) == marks_in_text


@pytest.mark.parametrize(
    ("text", "query"),
    [
        ("हिन्दी", "हानि"),
        ("①②", "12"),
        ("🇩🇪", "🇩🇰"),
        ("😀", "🎉"),
        ("機械", '"械機"'),
        ("機械の学習", '"機械学習"'),
        ("機械、学習", "械学"),
        ("機械学習", '"機械 学習"'),
        ("天気", "元"),
        ("―─―", "─"),
    ],
)
def test_others_are_not(text: str, query: str) -> None:
    assert not found(text, query)
    assert marks(text, query) == []


@pytest.mark.parametrize("stemming", ["none", "porter"])
@pytest.mark.parametrize(
    ("text", "query", "marks_in_text"),
    [
        ("機械学習の入門書", "機械学習", ["機械学習"]),
        ("今日は天気がいい", "天気", ["天気"]),
        ("今日は天気がいい", "天気予報", ["天気"]),
        ("今日は天気がいい", '"天気がいい"', ["天気がいい"]),
        ("我喜欢学习汉语。", "汉语 学习", ["学习", "汉语"]),
        ("猫が好き", "猫", ["猫"]),
        ("白い猫", "猫", ["猫"]),
        ("猫", '"猫"', ["猫"]),
        ("第3章では", '"第3章"', ["第3章"]),
        ("Python入門", '"python入門"', ["Python入門"]),
        ("Pythonの本、入門", '"本 入門"', ["本、入門"]),
        ("本と山、山と川", "山", ["山", "山"]),
        ("コーヒー人々", "コーヒー 人々", ["コーヒー", "人々"]),
        ("학교에서 공부", "학교는", ["학교"]),
        ("สวัสดีครับ", "ครับ", ["ครับ"]),
        ("น้ำ", "น้ํา", ["น้ำ"]),
        ("ພາສາລາວ", "ລາວ", ["ລາວ"]),
        ("ភាសា\u200bខ្មែរ", "ខ្មែរ", ["ខ្មែរ"]),
        ("မြန်မာဘာသာ", "ဘာသာ", ["ဘာသာ"]),
        ("機械 connecting", "connected 機械", ["機械"]),
    ],
)
def test_scripts_without_spaces(text: str, query: str, marks_in_text: Sequence[str], stemming: Stemming) -> None:
    assert found(text, query, stemming)
    stemmed = ["connecting"] if stemming == "porter" and "connecting" in text else []
    assert marks(text, query, stemming) == [*marks_in_text, *stemmed]


unspaced = st.text("木林本、 ", max_size=8)


@given(rows=st.lists(unspaced, max_size=5), query=st.text("木林本", min_size=1, max_size=5))
def test_a_run_is_found_by_each_pair_and_a_phrase_where_it_stands(rows: list[str], query: str) -> None:
    with indexed(*rows) as connection:
        pairs = [query[i : i + 2] for i in range(len(query) - 1)] or [query]
        expected = [key for key, text in enumerate(rows, start=1) if any(pair in text for pair in pairs)]
        assert sorted(keys(searched(connection, query, 10))) == expected
        expected = [key for key, text in enumerate(rows, start=1) if query in text]
        assert sorted(keys(searched(connection, f'"{query}"', 10))) == expected
    for text in rows:
        spans = marked(text, f'"{query}"')
        marked_places = {place for span in spans for place in range(span.start, span.end)}
        assert marked_places == {
            place + i for place in range(len(text)) if text.startswith(query, place) for i in range(len(query))
        }


mixed = st.text("ab1 é木林、本のﾞｶ각\u1112\u1161ㅏ่ำก\u200bß😀👍🏽🇩🇪™½\u0301\u093cक", max_size=8)


@given(text=mixed, query=mixed, phrase=st.booleans())
def test_what_is_found_is_marked_and_nothing_else(text: str, query: str, phrase: bool) -> None:
    asked = f'"{query}"' if phrase else query
    with indexed(text) as connection:
        assert bool(keys(searched(connection, asked, 1))) == bool(marked(text, asked))


@given(st.text() | st.text("aé\u0301\u0327ﬁ\u200bß木ｶﾞ\u3099각\u1100\u1161\u11a8ㅏ\uffc2่ำ😀™\u0345α½ "))
def test_a_text_is_the_same_whether_it_is_indexed_or_marked(text: str) -> None:
    tokens = analysis.indexed(text).split()
    spread = analysis.spread(text)
    if tokens and not text.isascii():
        assert " ".join(analysis.split_phrase(tokens)) in " ".join(spread.text.split())
    assert len(spread.text) == len(spread.starts) == len(spread.ends)


@given(st.characters(categories=["L", "M", "Nd", "Nl"]))
def test_all_letters_marks_and_digits_are_parts_of_words(character: str) -> None:
    """Also to FTS5, whose Unicode may be older or younger than Python's."""
    text = f"a{character}b"
    assert "".join(marks(text, text)) == text


def test_ascii_is_indexed_as_it_is() -> None:
    text = "".join(map(chr, range(128)))
    assert analysis.indexed(text) is text
    assert analysis.spread(text).text is text


def test_marks_without_end_take_no_time_without_end() -> None:
    text = "a" + "\u0301\u0327" * 100_000 + "b" + ("\u093c\u094d" * 15 + "\u200b") * 5_000
    assert analysis.indexed(text)


def test_of_many_places_the_first_are_marked() -> None:
    text = "- " * 9_000 + "木" * 500
    assert marks(text, "木") == ["木"] * words.MAX_SPANS
    assert marked(text, "木")[0].start == 18_000
