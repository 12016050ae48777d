"""What a file from elsewhere may have SQLite do: what a corpus has, and nothing else."""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

import pytest

from serving.corpora.ports import StoreError
from serving.corpora.stores import sqlite
from serving.corpora.stores.corpus_file import CorpusFile
from serving.corpora.stores.migrations import check_schema
from serving.corpora.values import Corpus, WordSettings
from serving.operations.bounds import MAX_SEARCHED_FIELDS
from tests.serving.corpora.stores.contents import content
from tests.serving.corpora.stores.test_formats import FORMATS


def made(path: Path, *, stemming: str = "none", fields: int = 0) -> Path:
    settings = WordSettings(fields={f"f{i}": 1.0 for i in range(fields)})
    corpus = Corpus("c", stemming=stemming, words=settings)  # type: ignore[arg-type]
    with closing(CorpusFile(path, new=True)) as file:
        file.create(corpus)
        file.write([content([("a", "a text", {"n": 1})])])
        with file.set_aside():
            pass
    return path


@pytest.mark.parametrize(("stemming", "fields"), [("none", 0), ("porter", 0), ("none", MAX_SEARCHED_FIELDS)])
def test_a_corpus_has_it(tmp_path: Path, stemming: str, fields: int) -> None:
    sqlite.prepare("d", made(tmp_path / "given", stemming=stemming, fields=fields))


def test_settings_that_the_index_does_not_follow_are_refused(tmp_path: Path) -> None:
    given = made(tmp_path / "given", fields=1)
    with closing(sqlite3.connect(given, isolation_level=None)) as connection:
        connection.execute("""UPDATE corpora SET searched_fields = '{"f0":1.0,"f1":1.0}'""")
    with pytest.raises(StoreError, match=r"words: not indexed with .* the fields"):
        sqlite.prepare("d", given)


@pytest.mark.parametrize("format", FORMATS, ids=lambda path: path.stem)
def test_a_file_of_every_format_has_it_before_and_after_its_migration(tmp_path: Path, format: Path) -> None:
    given = Path(shutil.copy(format, tmp_path))
    check_schema(given)
    sqlite.prepare("d", given)
    check_schema(given)


@pytest.mark.parametrize(
    ("done", "named"),
    [
        (["CREATE TRIGGER t AFTER INSERT ON documents BEGIN DELETE FROM tombstones; END"], "trigger 't'"),
        (["CREATE VIEW v AS SELECT 1"], "view 'v'"),
        (["ALTER TABLE corpora RENAME TO c", "CREATE VIEW corpora AS SELECT * FROM c"], "'c(orpora)?'"),
        (["CREATE INDEX i ON documents (length(text))"], "index 'i'"),
        (["CREATE TABLE t (a CHECK (a > 1))"], "table 't'"),
        (["DROP TABLE tombstones"], "table 'tombstones'"),
        (["DROP TABLE words", "CREATE VIRTUAL TABLE words USING fts5(text, more, content = '')"], "table 'words"),
        (["ALTER TABLE corpora DROP COLUMN stemming", "PRAGMA user_version = -1"], "format 0"),
        (["ALTER TABLE documents ADD COLUMN a INTEGER AS (length(text))"], "table 'documents'"),
    ],
)
def test_what_has_more_or_less_is_refused_before_it_is_read(tmp_path: Path, done: Sequence[str], named: str) -> None:
    given = made(tmp_path / "given")
    with closing(sqlite3.connect(given, isolation_level=None)) as connection:
        connection.execute("PRAGMA journal_mode = DELETE")
        for statement in done:
            connection.execute(statement)
    before = given.read_bytes()
    with pytest.raises(StoreError, match=f"not a corpus of this server: .*{named}"):
        sqlite.prepare("d", given)
    assert given.read_bytes() == before
