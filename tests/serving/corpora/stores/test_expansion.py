"""Words beyond those of the query: completions, corrections, synonyms, stop words and fields, in every store."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serving.corpora.ports import Store
from serving.corpora.stores import STORES, queries
from serving.corpora.stores.corpus_file import CorpusFile
from serving.corpora.stores.queries import MAX_ADDED, MAX_CORRECTED, Rules, parse, rules
from serving.corpora.values import Changes, Chunking, Corpus, Patch, Removal, Stemming, WordOptions, WordSettings
from tests.serving.conftest import ROOT
from tests.serving.corpora.stores.contents import Row, content

ROWS: list[Row] = [
    ("bank", "the river bank", {"title": "Money and water"}),
    ("rivers", "rivers flow", {"title": ["One", "River thoughts"], "year": 1900}),
    ("car", "an automobile in New York", {}),
    ("pipe", "a connection of pipes", {"by": [{"name": "Austen"}, {"name": 7}]}),
    ("rivet", "a rivet and a hammer", {"title": {"de": "Niete"}}),
    ("cjk", "機械学習の本", {}),
]
PREFIX, TYPOS, BOTH = WordOptions(prefix=True), WordOptions(typos=True), WordOptions(prefix=True, typos=True)


@pytest.fixture(params=STORES)
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    opened = STORES[request.param](tmp_path)
    yield opened
    opened.close()


def filled(store: Store, stemming: Stemming = "none", chunking: Chunking | None = None, **settings: Any) -> Store:
    store.create(Corpus("c", stemming=stemming, words=WordSettings(**settings)))
    store.write("c", [content(ROWS, chunking=chunking)])
    return store


def found(store: Store, query: str, options: WordOptions = WordOptions()) -> dict[str, list[str]]:  # noqa: B008
    """The highlights of each hit, best first."""
    keys = store.words("c", query, 20, None, options).keys.tolist()
    held = store.passages("c", keys)
    documents = [held[key].document for key in keys]
    marked = store.highlights("c", [one.text for one in documents], query, options)
    return {one.id: [one.text[start:end] for start, end in spans] for one, spans in zip(documents, marked, strict=True)}


@pytest.mark.parametrize("stemming", ["none", "porter"])
def test_the_last_word_may_be_a_beginning(store: Store, stemming: Stemming) -> None:
    filled(store, stemming)
    assert found(store, "riv") == {}
    assert found(store, "a riv ", PREFIX).keys() == {"pipe", "rivet"}, "a space ends the word"
    assert found(store, "RIV", PREFIX) == {"rivers": ["rivers"], "bank": ["river"], "rivet": ["rivet"]}
    assert next(iter(found(store, "river", PREFIX))) == ("bank" if stemming == "none" else "rivers"), "a whole word"
    assert found(store, "riv pip", PREFIX) == {"pipe": ["pipes"]}
    assert found(store, '"riv"', PREFIX) == {}
    assert found(store, '"new york" aut', PREFIX) == {"car": ["automobile", "New York"]}
    assert found(store, "connecti", PREFIX) == {"pipe": ["connection"]}, "its stem is shorter"
    assert found(store, "機械", PREFIX) == {"cjk": ["機械"]}
    assert found(store, "", PREFIX) == found(store, "?", PREFIX) == {}


@pytest.mark.parametrize("stemming", ["none", "porter"])
def test_the_beginning_of_many_words_is_searched_for_as_a_word(
    store: Store, stemming: Stemming, monkeypatch: pytest.MonkeyPatch
) -> None:
    filled(store, stemming)
    monkeypatch.setattr(queries, "MAX_COMPLETIONS", 2)
    assert found(store, "riv", PREFIX) == {}
    assert found(store, "rivet riv", PREFIX).keys() == {"rivet"}
    assert found(store, "rive ham", PREFIX).keys() == {"rivet"}


@pytest.mark.parametrize("stemming", ["none", "porter"])
def test_misspelt_words_are_corrected(store: Store, stemming: Stemming) -> None:
    filled(store, stemming)
    assert found(store, "conectoin") == {}
    assert found(store, "conectoin", TYPOS) == {"pipe": ["connection"]}
    assert [*found(store, "river", TYPOS)][-1] == "rivet"
    assert found(store, "river", TYPOS)["rivet"] == ["rivet"]
    assert found(store, '"rivre"', TYPOS) == {}, "a phrase is meant as it is"
    assert found(store, "autonobile york", TYPOS) == {"car": ["automobile", "York"]}
    assert found(store, "automib", BOTH) == {"car": ["automobile"]}
    assert found(store, "automib", PREFIX) == found(store, "automib", TYPOS) == {}


def test_a_removed_word_corrects_nothing(store: Store) -> None:
    filled(store)
    store.write("c", [Removal(["pipe"])])
    assert found(store, "conectoin", TYPOS) == {}
    store.write("c", [Removal([name for name, *_ in ROWS])])
    store.give_back("c")
    assert store.verify("c") == []


def test_synonyms(store: Store) -> None:
    filled(store, synonyms={"Car": ["automobile"], "big  apple": ["new york"], "ml": ["機械"]})
    assert found(store, "cars") == {}
    assert found(store, "CAR") == {"car": ["automobile"]}
    assert found(store, "the big apple") == {"car": ["New York"], "bank": ["the"]}
    assert found(store, "apple big") == found(store, '"car"') == {}
    assert found(store, "ML") == {"cjk": ["機械"]}
    assert found(store, "automobile") == {"car": ["automobile"]}, "synonyms have one direction"
    store.describe(Corpus("c", words=WordSettings(synonyms={})))
    assert found(store, "car") == {}


@pytest.mark.parametrize("key", ["&", "\u200b", ""])
def test_a_synonym_without_words_is_in_no_query(store: Store, key: str) -> None:
    filled(store, synonyms={key: ["hammer"], "pipes": ["bank"]})
    assert found(store, "rivers").keys() == {"rivers"}
    assert found(store, f"{key} pipes").keys() == {"pipe", "bank"}


@pytest.mark.parametrize("stemming", ["none", "porter"])
def test_a_synonym_in_a_script_without_spaces_is_found_inside_a_run(store: Store, stemming: Stemming) -> None:
    filled(store, stemming, synonyms={"日本": ["hammer"], "서울": ["bank"]})
    for query in ("日本", "日本の経済", "経済 日本"):
        assert found(store, query).keys() >= {"rivet"}
    assert found(store, "서울에").keys() == {"bank"}
    assert found(store, "本日").keys() == set()


def test_synonyms_are_found_by_their_stems(store: Store) -> None:
    filled(store, "porter", synonyms={"cars": ["automobiles"]})
    assert found(store, "car") == {"car": ["automobile"]}


def test_stop_words(store: Store) -> None:
    filled(store, stop_words=["The", "a", "of"])
    assert found(store, "the pipes of a") == {"pipe": ["pipes"]}
    assert found(store, "the") == {"bank": ["the"]}, "there is no other word"
    assert found(store, '"a hammer"') == {"rivet": ["a hammer"]}
    assert found(store, "pipes a", PREFIX).keys() == {"pipe", "car", "rivet"}, "a beginning is no stop word"
    store.describe(Corpus("c", words=WordSettings(stop_words=[])))
    assert found(store, "the pipes").keys() == {"pipe", "bank"}


def test_fields(store: Store) -> None:
    filled(store, fields={"title": 3.0, "by.name": 1.0})
    assert found(store, "money").keys() == {"bank"}
    assert [*found(store, "river")] == ["rivers", "bank"], "a title counts more"
    assert found(store, "austen").keys() == {"pipe"}
    assert found(store, "thuoghts", TYPOS).keys() == {"rivers"}
    assert found(store, '"one river"').keys() == {"rivers"}, "elements of a list are lines of one text"
    assert found(store, "niete 7 1900") == {}, "strings and lists of strings"
    store.describe(Corpus("c", words=WordSettings(fields={"title": 0.1, "by.name": 1.0})))
    assert [*found(store, "river")] == ["bank", "rivers"]
    assert store.verify("c") == []


def test_other_fields_are_indexed_at_once(store: Store) -> None:
    filled(store, "porter", Chunking(1, 0))
    generation = store.corpus("c").generation
    assert found(store, "money") == {}
    for fields in ({"title": 1.0}, {"title": 2.0, "by": 1.0}, {"by": 1.0}, {}, {"title": 1.0, "year": 1.0}):
        store.describe(Corpus("c", words=WordSettings(fields=fields)))
        assert store.corpus("c").words.fields == fields
        assert bool(found(store, "money")) == ("title" in fields)
        assert found(store, "hammer", TYPOS).keys() == {"rivet"}
        assert store.verify("c") == []
    assert len(store.words("c", "money", 9).keys) == 3, "each passage has the title of its document"
    assert store.corpus("c").generation == generation, "cursors stay valid"
    store.write("c", [Removal(["bank"]), content([("rivers", "new", {"title": "Money"})])])
    assert found(store, "money").keys() == {"rivers"}
    assert store.verify("c") == []


def test_words_of_a_patched_field_are_found(store: Store) -> None:
    filled(store, chunking=Chunking(1, 0), fields={"title": 1.0})
    store.write("c", [Patch(["bank", "car"], Changes({"title": "Silver coins"}))])
    assert found(store, "money") == {}
    assert found(store, "silver").keys() == {"bank", "car"}
    assert len(store.words("c", "silver", 20).keys) == 8, "each passage has the title of its document"
    assert store.verify("c") == []


def test_settings_stay_until_others_are_given(tmp_path: Path) -> None:
    store = filled(STORES["sqlite"](tmp_path), synonyms={"a": ["b"]}, stop_words=["the"], fields={"title": 2.0})
    store.describe(Corpus("c", "described"))
    store.copy("c", tmp_path / "copy")
    store.close()
    store = STORES["sqlite"](tmp_path)
    store.adopt("d", tmp_path / "copy")
    for name in ("c", "d"):
        assert store.corpus(name).words == WordSettings({"a": ["b"]}, ["the"], {"title": 2.0})
        assert len(store.words(name, "money", 5).keys) == 1
    store.close()


KILLED = """
import sys
from pathlib import Path
from serving.corpora.values import Corpus, WordSettings
from serving.corpora.stores.sqlite import SqliteStore
from serving.operations import failpoints

store = SqliteStore(Path(sys.argv[1]))
failpoints.arm({failpoints.VARIABLE: f"{sys.argv[2]}=kill"})
store.describe(Corpus("c", words=WordSettings(fields={"title": 1.0})))
"""


@pytest.mark.slow
@pytest.mark.parametrize(("place", "there"), [("store.before-commit", False), ("store.after-commit", True)])
def test_a_kill_leaves_the_old_fields_or_the_new(tmp_path: Path, place: str, there: bool) -> None:
    filled(STORES["sqlite"](tmp_path), fields={"by.name": 1.0}).close()
    ended = subprocess.run([sys.executable, "-c", KILLED, str(tmp_path), place], cwd=ROOT, check=False)
    assert ended.returncode == -9
    store = STORES["sqlite"](tmp_path)
    assert store.corpus("c").words.fields == ({"title": 1.0} if there else {"by.name": 1.0})
    assert (bool(found(store, "money")), bool(found(store, "austen"))) == (there, not there)
    assert store.verify("c") == []
    store.close()


words = st.sampled_from(["river", "rivers", "rivet", "rover", "bank", "a", "b"])


@given(texts=st.lists(st.lists(words, max_size=6).map(" ".join), max_size=8), query=words, stemmed=st.booleans())
def test_the_word_itself_ranks_above_its_corrections(
    tmp_path_factory: pytest.TempPathFactory, texts: list[str], query: str, stemmed: bool
) -> None:
    file = CorpusFile(tmp_path_factory.mktemp("c") / "c", "OFF", new=True)
    file.create(Corpus("c", stemming="porter" if stemmed else "none"))
    file.write([content([(str(i), text, {}) for i, text in enumerate(texts)])])
    exact = file.words(query, 10, None, WordOptions()).keys.tolist()
    with_typos = file.words(query, 10, None, TYPOS)
    file.close()
    assert set(with_typos.keys.tolist()[: len(exact)]) == set(exact)
    assert (with_typos.scores > 0).all()


def test_what_a_query_is_expanded_by_is_bounded() -> None:
    many = ", ".join(f'"s{i}"' for i in range(20))
    wide = rules(None, "{" + ", ".join(f'"k{i}": [{many}, "own{i}"]' for i in range(30)) + "}")
    terms = parse(" ".join(f"k{i}" for i in range(30)), wide).terms
    assert len(terms) <= 30 + MAX_ADDED
    assert len(parse(" ".join(f"w{i}" for i in range(99)), Rules()).loose) > MAX_CORRECTED


def test_a_hostile_vocabulary_is_no_syntax(tmp_path: Path) -> None:
    store = filled(STORES["sqlite"](tmp_path), "porter")
    store.close()
    file = CorpusFile(tmp_path / "c.sqlite")
    with file.writing() as writer:
        writer.execute("""INSERT INTO vocabulary VALUES ('rivr" NOT "a'), ('riv"er'), ('riv er')""")
    assert len(file.words("rivre", 5, None, BOTH).keys) >= 3
    file.close()
