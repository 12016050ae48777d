from __future__ import annotations

import gzip
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from training.data.corpus import open_corpus
from training.data.documents import Excerpt
from training.data.files import CorpusError

LINES = ["a b c", "a b c d", "", "a  b\tc d e", "a b c d", "a b c d e f"]


def written(excerpt: Excerpt, folder: Path, lines: list[str] = LINES) -> list[str]:
    corpus = folder / "corpus.txt"
    corpus.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return Path(excerpt.write([str(corpus)], folder / "excerpts")).read_text(encoding="utf-8").splitlines()


def test_by_words_in_the_order_of_the_corpus(tmp_path: Path) -> None:
    assert written(Excerpt(words=(4, 5)), tmp_path) == ["a b c d", "a  b\tc d e", "a b c d"]
    assert written(Excerpt(words=(6, 6)), tmp_path) == ["a b c d e f"]


def test_by_place_and_then_by_words(tmp_path: Path) -> None:
    assert written(Excerpt(first=4), tmp_path) == [line for line in LINES[:4] if line]
    assert written(Excerpt(first=4, words=(4, 5)), tmp_path) == ["a b c d", "a  b\tc d e"]
    assert written(Excerpt(first=100), tmp_path) == [line for line in LINES if line]


@given(
    lines=st.lists(st.text(alphabet="ab  é\t", max_size=12), max_size=20),
    first=st.none() | st.integers(1, 25),
    words=st.none() | st.tuples(st.integers(1, 4), st.integers(4, 6)),
)
def test_it_holds_what_was_asked_for_and_nothing_else(
    lines: list[str], first: int | None, words: tuple[int, int] | None
) -> None:
    kept, rest = [*Excerpt(first=first, words=words).of(lines)], iter(lines[:first])
    assert all(line in rest for line in kept), "in order, each as often as it was there"
    least, most = words or (1, 100)
    fits = [least <= len(re.findall(r"\S+", line)) <= most for line in lines[:first]]
    assert len(kept) == sum(fits)


def test_of_several_files_packed_or_not(tmp_path: Path) -> None:
    (tmp_path / "one.txt").write_text("one line\nanother one\n", encoding="utf-8")
    with gzip.open(tmp_path / "two.txt.gz", "wt", encoding="utf-8") as file:
        file.write("the third line\nthe fourth\n")
    files = [str(tmp_path / name) for name in ("one.txt", "two.txt.gz")]
    kept = Excerpt(first=3, words=(2, 3)).write(files, tmp_path)
    assert Path(kept).read_text() == "one line\nanother one\nthe third line\n"
    assert open_corpus([kept], held_out=0).census.sentences == 3


def test_a_corpus_that_was_changed_and_another_part_are_other_files(tmp_path: Path) -> None:
    corpus = tmp_path / "corpus.txt"
    corpus.write_text("a b c\n")
    one, other = (Excerpt(first=n).write([str(corpus)], tmp_path) for n in (1, 2))
    corpus.write_text("d e f\n")
    third = Excerpt(first=1).write([str(corpus)], tmp_path)
    assert len({one, other, third}) == 3
    assert (Path(one).read_text(), Path(third).read_text()) == ("a b c\n", "d e f\n")


def test_what_is_there_is_not_written_again(tmp_path: Path) -> None:
    corpus = tmp_path / "corpus.txt"
    corpus.write_text("a b c\n")
    kept = Path(Excerpt(first=1).write([str(corpus)], tmp_path))
    before = kept.stat().st_ino
    Excerpt(first=1).write([str(corpus)], tmp_path)
    assert kept.stat().st_ino == before


def test_nothing_left_is_an_error_and_leaves_nothing(tmp_path: Path) -> None:
    corpus = tmp_path / "corpus.txt"
    corpus.write_text("a b c\n")
    excerpt = Excerpt(first=7, words=(4, 16))
    with pytest.raises(CorpusError, match=r"corpus\.txt: has no line of 4 to 16 words among the first 7"):
        excerpt.write([str(corpus)], tmp_path / "excerpts")
    assert not [*(tmp_path / "excerpts").iterdir()]


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(CorpusError, match=r"nowhere\.txt: is not a file"):
        Excerpt(first=1).write([str(tmp_path / "nowhere.txt")], tmp_path)


def test_blank_lines_are_nothing(tmp_path: Path) -> None:
    corpus = tmp_path / "corpus.txt"
    corpus.write_text("\n \n\na b c\n")
    with pytest.raises(CorpusError, match="has no line of the first 3"):
        Excerpt(first=3).write([str(corpus)], tmp_path)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"first": 0}, "first: 0 is less than one line"),
        ({"words": (4,)}, r"words: \[4\] is not a minimum and a maximum"),
        ({"words": (5, 4)}, r"words: \[5, 4\] is not"),
        ({"words": (0, 4)}, r"words: \[0, 4\] is not"),
    ],
)
def test_what_is_no_part(settings: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Excerpt(**settings)  # type: ignore[arg-type]
