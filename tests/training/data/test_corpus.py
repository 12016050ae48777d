from __future__ import annotations

import gzip
import lzma
import os
from collections import Counter
from itertools import islice, pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from models import python_docs
from training.data.corpus import HELD_OUT, MONITORED, Corpus, open_corpus
from training.data.files import CorpusError

LINES = [f"sentence number {i}" for i in range(50)]


def corpus_of(lines: list[str], *, held_out: int = 0, buffer: int = 16) -> Corpus:
    return Corpus(lambda: lines, name="lines", held_out=held_out, buffer=buffer)


def epochs(corpus: Corpus, size: int, count: int, *, seed: int = 0) -> list[list[str]]:
    per_epoch = corpus.batches_per_epoch(size)
    batches = corpus.batches(size, seed=seed)
    return [[s for batch in islice(batches, per_epoch) for s in batch] for _ in range(count)]


@given(
    lines=st.lists(st.sampled_from([*LINES, "", "  "]), min_size=1).filter(lambda found: any(map(str.strip, found))),
    size=st.integers(1, 7),
    buffer=st.integers(1, 20),
    seed=st.integers(0, 5),
)
def test_every_epoch_is_every_sentence_once(lines: list[str], size: int, buffer: int, seed: int) -> None:
    corpus = corpus_of(lines, buffer=buffer)
    different = {line.strip() for line in lines} - {""}
    first, second = epochs(corpus, size, 2, seed=seed)
    assert sorted(first) == sorted(second) == sorted(different)
    census = corpus.census
    assert census.sentences == len(different)
    assert census.sentences + census.duplicates + census.blank == len(lines)


@given(start=st.integers(0, 30), size=st.integers(1, 9), buffer=st.integers(1, 60))
def test_a_stream_is_taken_up_exactly_where_it_was_left(start: int, size: int, buffer: int) -> None:
    corpus = corpus_of(LINES, buffer=buffer)
    whole = list(islice(corpus.batches(size, seed=1), start + 5))
    assert list(islice(corpus.batches(size, seed=1, start=start), 5)) == whole[start:]


def test_the_seed_decides_the_order_and_epochs_differ() -> None:
    corpus = corpus_of(LINES, buffer=100)
    first, second = epochs(corpus, 8, 2)
    assert first != second != LINES
    assert [first] == epochs(corpus, 8, 1)
    assert [first] != epochs(corpus, 8, 1, seed=1)


def test_a_small_buffer_shuffles_within_its_reach() -> None:
    [order] = epochs(corpus_of(LINES, buffer=10), 8, 1)
    assert order != LINES
    earlier = [LINES.index(sentence) - position for position, sentence in enumerate(order)]
    assert max(earlier) <= 10


def test_beyond_the_buffer_neighbours_are_parted() -> None:
    [order] = epochs(corpus_of(LINES, buffer=10), 8, 1)
    together = sum(LINES.index(b) == LINES.index(a) + 1 for a, b in pairwise(order))
    assert together < len(LINES) / 5


def test_a_buffer_larger_than_the_corpus_gives_every_sentence_every_place() -> None:
    corpus = corpus_of(LINES[:4], buffer=100)
    firsts = Counter(epochs(corpus, 4, 1, seed=seed)[0][0] for seed in range(400))
    assert set(firsts) == set(LINES[:4])
    assert min(firsts.values()) > 60


def test_held_out_sentences_are_never_trained_on() -> None:
    lines = [f"sentence number {i}" for i in range(400)]
    corpus = corpus_of(lines, held_out=10)
    [order] = epochs(corpus, 32, 1)
    assert len(corpus.census.held_out) == 10
    assert corpus.census.sentences == len(order) == 390
    assert not set(order) & set(corpus.census.held_out)
    assert corpus_of(list(reversed(lines)), held_out=10).census.held_out == corpus.census.held_out


def test_at_most_a_twentieth_is_held_out() -> None:
    assert len(corpus_of(LINES, held_out=512).census.held_out) == 2


def test_what_watches_a_run_is_an_even_choice_of_what_is_held_out() -> None:
    """Check that the monitored sentences are the same, however many sentences are held out."""
    lines = [f"sentence number {i}" for i in range(60_000)]
    census = corpus_of(lines, held_out=HELD_OUT).census
    assert (len(census.held_out), len(census.monitored)) == (HELD_OUT, MONITORED)
    assert census.monitored == corpus_of(lines, held_out=MONITORED).census.held_out
    few = corpus_of(lines[:400], held_out=HELD_OUT).census
    assert few.monitored == few.held_out and len(few.held_out) == 20


def test_another_corpus_has_another_digest() -> None:
    digests = {corpus_of(lines).census.digest for lines in (LINES, LINES[1:], LINES[::-1], [*LINES, ""])}
    assert len(digests) == 4


def test_batches_have_the_size_and_the_last_one_is_kept() -> None:
    corpus = corpus_of(LINES[:9])
    assert corpus.batches_per_epoch(4) == 3
    assert [len(batch) for batch in islice(corpus.batches(4, seed=0), 3)] == [4, 4, 1]


@pytest.mark.parametrize("names", [("a.txt", "b.txt.gz", "c.xz"), ("A.TXT", "B.TXT.GZ", "C.XZ")])
def test_plain_gz_and_xz_files_are_one_corpus(names: tuple[str, str, str], tmp_path: Path) -> None:
    plain, gz, xz = names
    parts = [LINES[:20], LINES[20:35], LINES[35:]]
    texts = ["\n".join(part).encode() for part in parts]
    (tmp_path / plain).write_bytes(b"\xef\xbb\xbf" + texts[0].replace(b"\n", b"\r\n"))
    (tmp_path / gz).write_bytes(gzip.compress(texts[1]))
    (tmp_path / xz).write_bytes(lzma.compress(texts[2] + b"\n\n"))
    corpus = open_corpus([str(tmp_path / name) for name in names], held_out=0)
    [order] = epochs(corpus, 8, 1)
    assert sorted(order) == sorted(LINES)
    assert corpus.census.blank == 1


def test_only_newlines_end_a_line(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("one\u2028part\x0bof it\nanother", encoding="utf-8")
    assert open_corpus([str(tmp_path / "a.txt")], held_out=0).census.sentences == 2


def bent(content: bytes) -> bytes:
    """Damage the first byte after gzip's header of ten bytes, so that no compressor could have written it."""
    return content[:10] + b"\xff" + content[11:]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("bad.txt", b"fine\nb\xffd\n", r"bad\.txt:2: not UTF-8: byte 0xff in column 2"),
        ("bad.txt.gz", gzip.compress(b"\xff", mtime=0), r"bad\.txt\.gz:1: not UTF-8"),
        ("cut.gz", gzip.compress(b"line\n" * 1000, mtime=0)[:-10], r"cut\.gz: "),
        (
            "bent.gz",
            bent(gzip.compress(b"a line of many letters\n" * 99, mtime=0)),
            r"bent\.gz: Error -3 while decompressing",
        ),
        ("no.gz", b"plain text", r"no\.gz: Not a gzipped file"),
        ("cut.xz", lzma.compress(b"line\n" * 1000)[:-10], r"cut\.xz: "),
        ("no.xz", b"plain text", r"no\.xz: "),
        ("some.txt.bz2", b"BZh9", r"some\.txt\.bz2: \.bz2 is not supported: unpack it"),
        ("some.ZST", b"(", r"some\.ZST: \.zst is not supported"),
        ("some.zip", b"PK", r"some\.zip: \.zip is not supported"),
        ("some.tar.gz", gzip.compress(b"some.txt", mtime=0), r"some\.tar\.gz: \.tar is not supported"),
        ("empty.txt", b"", r"empty\.txt: 0 different sentences"),
        ("blank.txt", b"\n \n", r"blank\.txt: 0 different sentences"),
        (
            "few.txt",
            b"one\ntwo\n",
            r"few\.txt: 2 different sentences; at least 20 are needed, or 40 for `train` without evaluation data",
        ),
    ],
)
def test_an_unusable_file_is_named(tmp_path: Path, name: str, content: bytes, message: str) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(CorpusError, match=message):
        open_corpus([str(tmp_path / name)])


def test_a_missing_file_and_a_folder_are_named(tmp_path: Path) -> None:
    with pytest.raises(CorpusError, match=r"nowhere\.txt: No such file"):
        open_corpus([str(tmp_path / "nowhere.txt")])
    with pytest.raises(CorpusError, match=r"a directory without a file of \.txt, \.csv"):
        open_corpus([str(tmp_path)])


def test_what_can_be_read_only_once_is_refused(tmp_path: Path) -> None:
    """Refuse such a file, because its second epoch would have no sentences, and reading would never end."""
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(CorpusError, match="pipe: must be a file"):
        open_corpus([str(tmp_path / "pipe")])


@pytest.mark.parametrize("now", [[], LINES[:49], [*LINES, "another"]])
def test_a_corpus_that_changes_while_it_is_trained_on_is_named(tmp_path: Path, now: list[str]) -> None:
    file = tmp_path / "lines.txt"
    file.write_text("\n".join(LINES))
    batches = open_corpus([str(file)], held_out=0).batches(25, seed=0)
    for _ in range(3):  # The second epoch has begun.
        next(batches)
    file.write_text("\n".join(now))
    next(batches)
    with pytest.raises(CorpusError, match=rf"lines\.txt: has changed .* {len(now)} different .* before 50"):
        next(batches)


def test_where_processes_would_have_no_sentence_there_is_no_batch() -> None:
    corpus = corpus_of(LINES[:3])
    assert next(corpus.batches(8, seed=0, least=3))
    for asks in (lambda: corpus.batches_per_epoch(8, least=4), lambda: next(corpus.batches(8, seed=0, least=4))):
        with pytest.raises(CorpusError, match="3 different sentences to train on, and 4 are needed"):
            asks()


@pytest.mark.parametrize(
    ("read", "sentences"), [(500, 500), pytest.param(None, 5000, marks=pytest.mark.slow)], ids=["a part", "whole"]
)
def test_the_default_corpus_is_thousands_of_clean_sentences(
    read: int | None, sentences: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    every = python_docs.sections
    monkeypatch.setattr(python_docs, "sections", lambda: islice(every(), read))
    corpus = open_corpus([])
    assert corpus.census.sentences > sentences
    assert len(corpus.census.held_out) > sentences / 25
    batch = next(corpus.batches(64, seed=0))
    assert all(sentence[0] in "(\"'“" or sentence[0].isupper() for sentence in batch)
    assert not any(">>>" in sentence for sentence in batch)


def test_lines_of_characters_without_width_are_blank(tmp_path: Path) -> None:
    unseen = ["\u200b" * n for n in range(1, 20)] + ["\ufeff", " \u200d\u00ad\u3000", "\u2060\u200e"]
    seen = [f"sentence {n}" for n in range(40)]
    (tmp_path / "c.txt").write_text("\n".join([*unseen, *seen, "\u200bsentence 7\ufeff"]), encoding="utf-8")
    census = open_corpus([str(tmp_path / "c.txt")]).census
    assert (census.blank, census.duplicates, len(census.held_out)) == (len(unseen), 1, 2)
    assert not {*census.held_out} - {*seen}


def test_too_few_sentences_say_how_many_are_needed(tmp_path: Path) -> None:
    (tmp_path / "c.txt").write_text("".join(f"sentence {n}\n" for n in range(19)))
    with pytest.raises(
        CorpusError, match="19 different sentences; at least 20 are needed, or 40 for `train` without evaluation data"
    ):
        open_corpus([str(tmp_path / "c.txt")])
