"""Tests of CPython's documentation as a collection, and of collections as files."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from models.python_docs import Section
from training import cli
from training.evaluation import beir
from training.evaluation.beir import Collection
from training.evaluation.known_item import collection_of

SUMMARY = "Return the sum of all the numbers given."
BEHIND = "Whatever is no number is an error that names the place of it in the list."


def section(*paragraphs: str) -> Section:
    return Section("module", "name", "\n\n".join(paragraphs))


def test_a_summary_asks_for_what_stands_behind_it() -> None:
    found = collection_of(
        [section(SUMMARY, BEHIND), section(f"{SUMMARY} {BEHIND} {BEHIND}"), section("no summary", BEHIND)]
    )
    assert found == Collection(
        {"0": BEHIND, "1": f"{BEHIND} {BEHIND}", "2": f"no summary\n\n{BEHIND}"},
        {"q0": SUMMARY},
        {"q0": {"0": 1, "1": 1}},
    )


def test_a_summary_alone_is_a_document_that_nobody_asks_for() -> None:
    assert collection_of([section(SUMMARY), section(SUMMARY, "See there.")]).queries == {}


TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
IDS = st.text("abc0", min_size=1, max_size=3)


@given(
    documents=st.dictionaries(IDS, TEXTS.map(str.strip), min_size=1),
    queries=st.dictionaries(IDS, TEXTS, min_size=1),
    grade=st.integers(0, 3),
)
def test_what_is_saved_is_loaded(
    documents: dict[str, str], queries: dict[str, str], grade: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    judgements = {query: dict.fromkeys(documents, grade) for query in queries}
    folder = tmp_path_factory.mktemp("collection")
    beir.save(Collection(documents, queries, judgements), folder)
    assert beir.load(folder) == Collection(documents, queries, judgements)


def test_the_command_writes_what_evaluate_reads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("training.cli.data.sections", lambda: iter([section(SUMMARY, BEHIND)]))
    assert cli.main(["data", "documentation", "--to", str(tmp_path)]) == 0
    assert capsys.readouterr().out == f"{tmp_path / 'retrieval' / 'python-docs'}: 1 documents, 1 queries\n"
    assert beir.find(tmp_path, "python-docs") == collection_of([section(SUMMARY, BEHIND)])
