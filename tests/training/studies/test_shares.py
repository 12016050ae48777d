from __future__ import annotations

import random
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.conftest import PATIENCE
from training.data.files import CorpusError
from training.machine.interrupt import locked
from training.studies.work import corpus_share


def lines(file: str) -> list[str]:
    return Path(file).read_text().splitlines()


def test_a_share_has_its_size_and_is_part_of_a_larger_one(
    corpus_file: Path, sentences: list[str], tmp_path: Path
) -> None:
    tenth, half = (lines(corpus_share([str(corpus_file)], fraction, tmp_path)) for fraction in (0.1, 0.5))
    assert (len(tenth), len(half)) == (24, 120)
    assert tenth == half[:24] and len(set(half)) == 120 and set(half) < set(sentences)
    assert half not in ([sentence for sentence in sentences if sentence in set(half)], sorted(half)), "shuffled"
    assert len(lines(corpus_share([str(corpus_file)], 1e-6, tmp_path))) == 1


def test_shares_that_are_close_are_two(corpus_file: Path, tmp_path: Path) -> None:
    files = {corpus_share([str(corpus_file)], fraction, tmp_path) for fraction in (0.1, 0.10000001)}
    assert len(files) == 2


def test_it_is_of_the_sentences_in_whatever_order(sentences: list[str], tmp_path: Path) -> None:
    orders = [sentences, random.Random(1).sample(sentences, len(sentences)), [*sentences, *sentences[:50], "", " "]]
    shares = []
    for number, order in enumerate(orders):
        file = tmp_path / f"{number}.txt"
        file.write_text("\n".join(order) + "\n")
        shares.append(lines(corpus_share([str(file)], 0.25, tmp_path / "shares")))
    assert len(shares[0]) == 60 and shares[0] == shares[1] == shares[2]


def test_it_is_written_once_and_anew_for_another_corpus(
    corpus_file: Path, sentences: list[str], tmp_path: Path
) -> None:
    first = corpus_share([str(corpus_file)], 0.1, tmp_path)
    Path(first).write_text("kept\n")
    assert corpus_share([str(corpus_file)], 0.1, tmp_path) == first and lines(first) == ["kept"]
    other = tmp_path / "other.txt"
    other.write_text("\n".join(sentences[:100]) + "\n")
    assert len(lines(corpus_share([str(other)], 0.1, tmp_path))) == 10


@pytest.mark.slow
def test_it_waits_for_who_writes_there(corpus_file: Path, tmp_path: Path) -> None:
    with ThreadPoolExecutor() as pool:
        with locked(tmp_path):
            written = pool.submit(corpus_share, [str(corpus_file)], 0.1, tmp_path)
            with pytest.raises(TimeoutError):
                written.result(timeout=0.5)
        assert len(lines(written.result(PATIENCE))) == 24


def test_a_broken_corpus_is_named(tmp_path: Path) -> None:
    with pytest.raises(CorpusError, match=r"nowhere\.txt"):
        corpus_share([str(tmp_path / "nowhere.txt")], 0.1, tmp_path)
