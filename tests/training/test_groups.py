"""Groups: what stands in a line, who is near, and what is refused."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from training.cli import main
from training.corpus import CorpusError, open_corpus
from training.groups import KEPT, REACH, shortened, write

COUNT = 30
SENTENCES = [f"sentence {i} is of six words" for i in range(COUNT)]
PARAPHRASES = [f"six words has sentence {i}" for i in range(COUNT)]


def on_a_line(texts: Sequence[str]) -> NDArray[np.float32]:
    """Vectors by which sentence i is the nearer to j the less |i - j| is."""
    angles = np.array([int(text.split()[1]) for text in texts]) * np.pi / (2 * COUNT)
    return np.stack([np.cos(angles), np.sin(angles)], axis=1).astype(np.float32)


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    file = tmp_path / "corpus.txt"
    file.write_text("\n".join([*SENTENCES, SENTENCES[3], ""]) + "\n")
    return file


@pytest.fixture
def paraphrases(tmp_path: Path) -> Path:
    file = tmp_path / "paraphrases.txt"
    file.write_text("\n".join([*PARAPHRASES[:7], "", *PARAPHRASES[8:], "another", "one of nothing"]) + "\n")
    return file


def made(corpus: Path, paraphrases: Path | None = None, *, seed: int = 0) -> list[list[str]]:
    groups = corpus.with_name("groups.tsv")
    count = write(corpus, groups, on_a_line, paraphrases=paraphrases, seed=seed)
    lines = [line.split("\t") for line in groups.read_text().splitlines()]
    assert len(lines) == count
    return lines


def test_a_group_is_a_sentence_and_a_neighbour_each_with_its_own(corpus: Path, paraphrases: Path) -> None:
    groups = made(corpus, paraphrases)
    assert [group[0] for group in groups] == SENTENCES, "each once, in their order"
    ends = [next(at for at in range(1, len(group)) if group[at] in SENTENCES) for group in groups]
    variants = {group[0]: group[1:end] for group, end in zip(groups, ends, strict=True)}
    for i, group in enumerate(groups):
        neighbour = group[ends[i]]
        assert group == [group[0], *variants[group[0]], neighbour, *variants[neighbour]]
        assert variants[group[0]][:-1] == ([] if i == 7 else [PARAPHRASES[i]]), "an empty line is no paraphrase"
        words = variants[group[0]][-1].split()
        assert words == [word for word in group[0].split() if word in words], "in their order"
        nearest = sorted((other for other in range(COUNT) if other != i), key=lambda other: abs(other - i))
        farthest = abs(nearest[REACH - 1] - i)
        assert 0 < abs(SENTENCES.index(neighbour) - i) <= farthest


def test_without_paraphrases_there_are_the_shortened_alone(corpus: Path) -> None:
    assert {len(group) for group in made(corpus)} == {4}


def test_the_seed_decides(corpus: Path) -> None:
    assert made(corpus) == made(corpus) != made(corpus, seed=1)


@given(st.lists(st.text("abc", min_size=1), min_size=1), st.integers(0, 99))
def test_a_shortened_sentence_has_words_of_its_own_in_their_order(words: list[str], seed: int) -> None:
    left = iter(words)
    short = shortened(" ".join(words), random.Random(seed)).split()
    assert all(word in left for word in short) and (0 < len(short) < len(words) or short == words[:1] == words)


def test_a_quarter_of_the_words_goes() -> None:
    kept = len(shortened(" ".join(["word"] * 10_000), random.Random(0)).split())
    assert kept / 10_000 == pytest.approx(KEPT, abs=0.02)


@pytest.mark.parametrize("more", ["corpus", "paraphrases"])
def test_files_that_do_not_match_are_refused(corpus: Path, paraphrases: Path, more: str) -> None:
    longer = {"corpus": corpus, "paraphrases": paraphrases}[more]
    longer.write_text(longer.read_text() + "one line too many\n")
    with pytest.raises(CorpusError, match=rf"{more}\.txt has more lines than .*: a paraphrase stands in the line"):
        made(corpus, paraphrases)
    assert not corpus.with_name("groups.tsv").exists()


def test_too_few_sentences_and_other_names_are_refused(corpus: Path) -> None:
    corpus.write_text("\n".join(SENTENCES[:8]))
    with pytest.raises(CorpusError, match=r"corpus\.txt: 8 different sentences, and more than 8 are needed"):
        made(corpus)
    with pytest.raises(CorpusError, match=r"groups\.txt: groups are kept in a file whose name ends with \.tsv"):
        write(corpus, corpus.with_name("groups.txt"), on_a_line)


def test_the_command_writes_what_training_reads(
    tiny_backbone: Path, corpus: Path, paraphrases: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    groups = corpus.with_name("groups.tsv")
    command = ["data", "groups", str(corpus), "--out", str(groups), "--encoder", str(tiny_backbone)]
    assert main([*command, "--paraphrases", str(paraphrases)]) == 0
    assert capsys.readouterr().out == f"{groups}: {COUNT} groups\n"
    batch = next(open_corpus([str(groups)], held_out=0).batches(2, seed=0))
    assert len(batch) == 12 and sum(text in SENTENCES for text in batch) == 4
