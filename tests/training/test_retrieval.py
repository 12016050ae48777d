"""Tests of retrieval scores and of the files of BEIR's collections."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping, Sequence
from math import log2
from pathlib import Path
from statistics import fmean

import numpy as np
import pytest
import pytrec_eval
from hypothesis import assume, given
from hypothesis import strategies as st
from numpy.typing import NDArray

from training.evaluation import beir, retrieval
from training.evaluation.beir import Collection
from training.evaluation.pairs import DataError
from training.evaluation.suite import load_data, tables
from training.evaluation.vectors import EvaluationError
from training.studies.trial import retrieval_digest

Vectors = NDArray[np.float32]

CORPUS = [{"_id": "d1", "title": "Cats", "text": "purr"}, {"_id": "d2", "title": "", "text": "Dogs bark"}]
QUERIES = [{"_id": "q1", "text": "who purrs"}, {"_id": "q2", "text": "never judged"}]
JUDGED = "query-id\tcorpus-id\tscore\n"


def write(folder: Path, corpus: str | None = None, queries: str | None = None, judged: str = "q1\td1\t1\n") -> Path:
    (folder / "qrels").mkdir()
    (folder / "corpus.jsonl").write_text(corpus or "".join(json.dumps(row) + "\n" for row in CORPUS))
    (folder / "queries.jsonl").write_text(queries or "".join(json.dumps(row) + "\n" for row in QUERIES))
    (folder / "qrels" / "test.tsv").write_text(JUDGED + judged)
    return folder


def test_a_document_is_title_and_text_and_only_judged_queries_are_asked(tmp_path: Path) -> None:
    assert beir.load(write(tmp_path, judged="q1\td2\t2\r\nq1\td1\t0\r\n")) == Collection(
        {"d1": "Cats purr", "d2": "Dogs bark"}, {"q1": "who purrs"}, {"q1": {"d2": 2, "d1": 0}}
    )


def test_blank_lines_and_a_byte_order_mark_are_no_rows(tmp_path: Path) -> None:
    plain, odd = tmp_path / "plain", tmp_path / "odd"
    plain.mkdir()
    shutil.copytree(write(plain), odd)
    (odd / "corpus.jsonl").write_text("\ufeff" + "\n \n".join(json.dumps(row) for row in CORPUS) + "\n\n")
    (odd / "qrels" / "test.tsv").write_text("\ufeff" + (plain / "qrels" / "test.tsv").read_text())
    assert beir.load(odd) == beir.load(plain)


def test_a_judged_document_that_is_not_there_counts_as_one_that_is_never_found(tmp_path: Path) -> None:
    """Check that such a document is part of the ideal order, as in trec_eval."""
    found = beir.load(write(tmp_path, judged="q1\td2\t1\nq1\td9\t1\nq1\td8\t0\n"))
    assert found.missing == 1
    score = retrieval.score({"q1": ["d2", "d1"]}, found)
    assert (score.missing, score.to_json()["missing"]) == (1, 1)
    assert score.ndcg10 == pytest.approx(100 / (1 + 1 / log2(3)))
    assert (score.mrr10, score.recall100) == (100, 50)
    said = tables({"subject": {}, "retrieval": {"c": {**score.to_json(), "through": "exact search"}}}).splitlines()[-1]
    assert said == "c: 1 judgements name relevant documents that the collection lacks"


def test_the_folder_of_one_collection_is_data_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("arguana", "other"):
        (tmp_path / name).mkdir()
        write(tmp_path / name)
    folder = tmp_path / "arguana"
    assert list(beir.collections(folder)) == ["arguana"]
    assert beir.find(folder, "arguana") == beir.load(folder)
    monkeypatch.chdir(folder)
    assert list(load_data(Path(), ["retrieval"]).retrieval) == ["arguana"]
    moved = tmp_path / "data" / "retrieval"
    moved.mkdir(parents=True)
    shutil.copytree(folder, moved / "arguana")
    assert retrieval_digest(str(folder), ("arguana",)) == retrieval_digest(str(tmp_path / "data"), ("arguana",))


@pytest.mark.parametrize(
    ("broken", "message"),
    [
        ({"corpus": '{"_id": "d1", "text": "x"}\n{"_id":\n'}, r"corpus\.jsonl:2: not JSON: .* in column"),
        (
            {"corpus": r'{"_id": "d1", "text": "hello \ud83d there"}'},
            r"corpus\.jsonl:1: contains half a surrogate pair",
        ),
        ({"queries": "[" * 100_000}, r"queries\.jsonl:1: nested too deeply$"),
        (
            {"corpus": f'{{"_id": "d1", "text": "x", "n": {"1" * 5000}}}'},
            r"corpus\.jsonl:1: a number has too many digits",
        ),
        ({"corpus": "[1]\n"}, r"corpus\.jsonl:1: expected a JSON object"),
        ({"corpus": '{"text": "x"}\n'}, r"corpus\.jsonl:1: _id is missing or not a string"),
        ({"corpus": '{"_id": "", "text": "x"}\n'}, r"corpus\.jsonl:1: the _id is empty"),
        ({"corpus": '{"_id": "d1"}\n'}, r"corpus\.jsonl:1: text is missing or not a string"),
        ({"corpus": '{"_id": "d1", "title": 3, "text": "x"}\n'}, r"corpus\.jsonl:1: title is missing or not a string"),
        ({"corpus": '{"_id": "d1", "text": "x"}\n' * 2}, r"corpus\.jsonl:2: the _id 'd1' occurs twice"),
        ({"queries": '{"_id": 1, "text": "x"}\n'}, r"queries\.jsonl:1: _id is missing or not a string"),
        ({"judged": "q1\td1\t1\nq9\td1\t1\n"}, r"test\.tsv:3: no query has the id 'q9'"),
        (
            {"judged": "q1\td9\t1\n"},
            r"test\.tsv: none of the judged ids is a document of .*corpus\.jsonl, for example 'd9'",
        ),
        ({"judged": "q1\td1\tgood\n"}, r"test\.tsv:2: 'good' is not a score, expected a whole number"),
        ({"judged": f"q1\td1\t1{'0' * 400}\n"}, r"test\.tsv:2: a score of 401 digits, expected 9 at most"),
        ({"judged": "q1\td1\n"}, r"test\.tsv:2: 2 columns separated by tabs, expected 3"),
        ({"judged": "q1\td1\t1\nq1\td1\t2\n"}, r"test\.tsv:3: document 'd1' is judged twice for query 'q1'"),
        ({"judged": ""}, r"test\.tsv: no judgements below the header"),
    ],
)
def test_a_broken_row_is_named(tmp_path: Path, broken: dict[str, str], message: str) -> None:
    with pytest.raises(DataError, match=message):
        beir.load(write(tmp_path, **broken))


@pytest.mark.parametrize("title", ["", "null", '"Cats"'])
def test_no_title_is_one_left_out_or_null(title: str, tmp_path: Path) -> None:
    said = f', "title": {title}' if title else ""
    folder = write(tmp_path, corpus=f'{{"_id": "d1", "text": "purr"{said}}}\n{{"_id": "d2", "text": "bark"}}\n')
    assert beir.load(folder).documents["d1"] == ("Cats purr" if title == '"Cats"' else "purr")


def test_a_missing_header_and_a_missing_split_are_named(tmp_path: Path) -> None:
    folder = write(tmp_path)
    with pytest.raises(DataError, match=r"qrels/dev\.tsv: No such file"):
        beir.load(folder, "dev")
    (folder / "qrels" / "test.tsv").write_text("q1\td1\t1\n")
    with pytest.raises(DataError, match=r"test\.tsv:1: expected the header query-id corpus-id score"):
        beir.load(folder)


def collection(judgements: Mapping[str, Mapping[str, int]], documents: int = 130) -> Collection:
    return Collection({f"d{i}": f"document {i}" for i in range(documents)}, {q: q for q in judgements}, judgements)


def by_trec_eval(rankings: Mapping[str, list[str]], judgements: dict[str, dict[str, int]]) -> list[float]:
    """nDCG@10, MRR@10 and recall@100 as trec_eval computes them, times 100."""

    def mean(measure: str, depth: int) -> float:
        run = {query: {id: float(-rank) for rank, id in enumerate(ids[:depth])} for query, ids in rankings.items()}
        found = pytrec_eval.RelevanceEvaluator(judgements, {measure}).evaluate(run)
        return 100 * fmean(scores[measure.replace(".", "_")] for scores in found.values())

    return [mean("ndcg_cut.10", 100), mean("recip_rank", 10), mean("recall.100", 100)]


@st.composite
def judged_rankings(draw: st.DrawFn) -> tuple[dict[str, dict[str, int]], dict[str, list[str]]]:
    documents = [f"d{i}" for i in range(130)]
    judgements = draw(
        st.dictionaries(
            st.sampled_from(["q0", "q1", "q2"]),
            st.dictionaries(st.sampled_from(documents), st.integers(-1, 3), min_size=1, max_size=20),
            min_size=1,
        )
    )
    assume(all(any(grade > 0 for grade in grades.values()) for grades in judgements.values()))
    return judgements, {query: draw(st.permutations(documents)) for query in judgements}


@given(judged_rankings())
def test_scores_are_those_of_trec_eval(drawn: tuple[dict[str, dict[str, int]], dict[str, list[str]]]) -> None:
    judgements, rankings = drawn
    score = retrieval.score(rankings, collection(judgements))
    assert [score.ndcg10, score.mrr10, score.recall100] == pytest.approx(by_trec_eval(rankings, judgements))


@given(judged_rankings())
def test_the_best_order_scores_100_and_the_order_of_queries_does_not_matter(
    drawn: tuple[dict[str, dict[str, int]], dict[str, list[str]]],
) -> None:
    judgements, rankings = drawn
    best = {q: sorted(rankings[q], key=lambda d: -judgements[q].get(d, 0)) for q in judgements}
    score = retrieval.score(best, collection(judgements))
    assert [score.ndcg10, score.mrr10, score.recall100] == pytest.approx([100, 100, 100])
    assert (score.queries, score.documents) == (len(judgements), 130)
    turned = dict(reversed(judgements.items()))
    assert retrieval.score(rankings, collection(turned)).to_json() == pytest.approx(
        retrieval.score(rankings, collection(judgements)).to_json()
    )


def test_depths_and_short_rankings() -> None:
    asked = collection({"q": {"d0": 1, "d1": 2}})
    others = [f"d{i}" for i in range(2, 130)]
    assert retrieval.score({"q": []}, asked).to_json() == {
        **{"ndcg10": 0, "mrr10": 0, "recall100": 0},
        **{"queries": 1, "documents": 130},
    }
    eleventh = retrieval.score({"q": [*others[:10], "d0", *others[10:]]}, asked)
    assert (eleventh.ndcg10, eleventh.mrr10, eleventh.recall100) == (0, 0, 50)
    assert retrieval.score({"q": [*others[:100], "d0"]}, asked).recall100 == 0
    second = retrieval.score({"q": ["d5", "d1"]}, asked)
    assert second.ndcg10 == pytest.approx(100 * (2 / log2(3)) / (2 + 1 / log2(3)))
    assert second.mrr10 == 50
    many = {f"d{i}": 1 for i in range(12)}
    assert retrieval.score({"q": list(many)[:10]}, collection({"q": many})).ndcg10 == pytest.approx(100)


def test_a_query_without_a_relevant_document_scores_zero() -> None:
    score = retrieval.score({"q": ["d0"], "r": ["d0"]}, collection({"q": {"d0": 0}, "r": {"d0": 1}}))
    assert (score.ndcg10, score.mrr10, score.recall100) == (50, 50, 50)


@pytest.mark.parametrize(
    ("rankings", "message"),
    [
        ({}, "query 'q' has no ranking"),
        ({"q": ["d1", "x"]}, "the ranking for query 'q' contains 'x', which is not a document"),
        ({"q": ["d1", "d1"]}, "the ranking for query 'q' contains a document twice"),
    ],
)
def test_a_broken_ranking_is_an_error(rankings: dict[str, list[str]], message: str) -> None:
    with pytest.raises(EvaluationError, match=message):
        retrieval.score(rankings, collection({"q": {"d1": 1}}))


def test_no_queries_is_an_error() -> None:
    with pytest.raises(EvaluationError, match="no queries"):
        retrieval.score({}, collection({}))


def drawn_vectors(seed: int) -> Callable[[Sequence[str]], Vectors]:
    """Few different directions, so that many cosines are equal."""

    def encode(texts: Sequence[str]) -> Vectors:
        return np.random.default_rng(seed).integers(-1, 2, size=(len(texts), 4)).astype(np.float32)

    return encode


@given(st.integers(0, 50))
def test_rankings_are_exact_and_ties_keep_the_order_of_the_collection(seed: int) -> None:
    asked = collection({"q": {"d1": 1}, "d7": {"d7": 1, "d8": 1}}, documents=40)
    encode = drawn_vectors(seed)
    documents, queries = (encode(list(texts.values())) for texts in (asked.documents, asked.queries))
    for query, vector in zip(asked.queries, queries, strict=True):
        scored = []
        for position, (document, other) in enumerate(zip(asked.documents, documents, strict=True)):
            norm = float(np.linalg.norm(vector) * np.linalg.norm(other))
            if document != query:
                scored.append((-round(float(vector @ other) / norm, 5) if norm else 0.0, position, document))
        expected = [document for _, _, document in sorted(scored)]
        for depth in (3, 39, 100):
            assert retrieval.rankings(encode, asked, depth)[query] == expected[:depth]


def test_cosines_that_differ_in_the_last_bits_are_ties() -> None:
    def encode(texts: Sequence[str]) -> Vectors:
        angles = np.linspace(8e-4, 0, len(texts)) if len(texts) > 1 else np.zeros(1)
        return np.stack([np.cos(angles), np.sin(angles)], axis=1).astype(np.float32)

    found = retrieval.rankings(encode, collection({"q": {"d1": 1}}, documents=40), depth=3)
    assert found == {"q": ["d0", "d1", "d2"]}


def test_a_document_with_the_querys_own_id_is_left_out() -> None:
    asked = collection({"d7": {"d8": 1}}, documents=10)
    assert retrieval.score({"d7": ["d7", "d8"]}, asked).mrr10 == 100
    assert "d7" not in retrieval.rankings(drawn_vectors(0), asked)["d7"]


def test_queries_and_documents_stand_behind_the_prompts_for_them() -> None:
    asked = collection({"q": {"d1": 1}}, documents=3)
    seen: list[list[str]] = []

    def encode(texts: Sequence[str]) -> Vectors:
        seen.append(list(texts))
        return np.eye(len(texts), 3, dtype=np.float32)

    for prompts, before, of_query in (
        ({"query": "q: ", "passage": "p: ", "classification": "c: "}, "p: ", "q: "),
        ({"document": "d: ", "passage": "p: "}, "d: ", ""),
        ({}, "", ""),
    ):
        seen.clear()
        assert retrieval.evaluate(encode, asked, prompts=prompts).queries == 1
        documents, queries = ([*texts.values()] for texts in (asked.documents, asked.queries))
        assert seen == [[before + text for text in documents], [of_query + text for text in queries]]


def test_evaluate_finds_the_same_words() -> None:
    documents = {f"d{i}": " ".join("abcdefghij"[j] for j in range(10) if i >> j & 1) for i in range(1, 120)}
    asked = Collection(documents, {"q1": documents["d5"], "q2": documents["d9"]}, {"q1": {"d5": 1}, "q2": {"d9": 1}})

    def letters(texts: Sequence[str]) -> Vectors:
        return np.array([[text.count(c) for c in "abcdefghij"] for text in texts], dtype=np.float32)

    assert retrieval.evaluate(letters, asked).to_json() == {
        **{"ndcg10": 100, "mrr10": 100, "recall100": 100},
        **{"queries": 2, "documents": 119},
    }


def test_a_vector_that_is_no_number_is_an_error_and_never_a_score() -> None:
    def encode(texts: Sequence[str]) -> Vectors:
        return np.full((len(texts), 3), np.nan, dtype=np.float32)

    with pytest.raises(EvaluationError, match="NaN"):
        retrieval.evaluate(encode, collection({"q": {"d1": 1}}))


def test_scifact_has_the_published_counts(test_data: Path) -> None:
    found = beir.load(test_data / "retrieval" / "scifact")
    assert (len(found.documents), len(found.queries)) == (5183, 300)
    assert sum(map(len, found.judgements.values())) == 339
    assert len(beir.load(test_data / "retrieval" / "scifact", "train").queries) == 809
