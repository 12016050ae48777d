"""Queries of word search: terms, phrases, synonyms, completions of the last word, and corrections.

A term is a word or a phrase of a query. Synonyms and completions of the last word are further terms. A correction is
similar to a word of the query.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import NamedTuple

import orjson

from serving.corpora.stores import analysis, corrections
from serving.corpora.stores.analysis import tokenizers
from serving.corpora.values import NO_OPTIONS, Stemming, WordOptions

MAX_WORDS = 64
"""Maximum number of words of a query that are searched, including words in phrases. Later words are ignored."""
MAX_ASKED = 20_000
"""Maximum number of characters of a query that are parsed."""
MAX_ADDED = 64
"""Maximum number of words that synonyms add to a query, and maximum number of corrections of one word. In a corpus with
stemming, also the maximum number of completions whose stems do not begin with the last word."""
MAX_COMPLETIONS = 2000
"""Maximum number of words in the vocabulary that begin with the last word of a query. If there are more, the last word
is not completed, because FTS5 would read the postings of all these words."""
MAX_CORRECTED = 10
"""Maximum number of words of a query that are corrected. Later words are not corrected."""
FREQUENT = 10_000
"""Number of passages above which a word counts as frequent. Frequent words are not corrected."""
_PREFIX = "*"
"""Mark at the end of a term. A term with this mark finds all words that begin with the term. No word contains it."""
Term = tuple[str, ...]
"""A word, or the words of a phrase. They are not stemmed, because FTS5 stems them, and a second stemming may change a
stem."""


class Rules(NamedTuple):
    """Rules of word search in a corpus."""

    stemming: Stemming = "none"
    synonyms: Mapping[Term, Sequence[str]] = {}
    """For the stems of a word or phrase: the synonyms that are also searched if the query has this word or phrase."""
    stop_words: Collection[str] = ()
    weights: Mapping[str, float] = {}
    """Weights of the searched metadata fields, in the order of the columns in the index."""


@lru_cache(64)
def rules(
    stemming: Stemming | None, synonyms: str | None = None, stop_words: str | None = None, fields: str | None = None
) -> Rules:
    """Return the rules of word search that a corpus's settings define. All settings except `stemming` are JSON texts.

    Synonyms of a text without words, such as `&`, are left out. Otherwise, this text would count as an empty phrase,
    and its synonyms would be added to every query.
    """
    stemming = stemming or "none"
    by_stems: dict[Term, list[str]] = {}
    for word, others in orjson.loads(synonyms or "{}").items():
        _, stems = _open_phrase(word, stemming)
        if stems:
            by_stems.setdefault(stems, []).extend(others)
    stops = tokenizers["none"].words(analysis.indexed(" ".join(orjson.loads(stop_words or "[]"))))
    return Rules(stemming, by_stems, frozenset(stops), orjson.loads(fields or "{}"))


PLAIN = Rules()


class Asked(NamedTuple):
    """A parsed query."""

    terms: list[Term]
    phrases: list[Term]
    """The terms that must occur in a passage."""
    loose: list[str]
    """Words outside of phrases. Only one word of each stem is listed."""
    last: str | None
    """Last word of the query, which may be incomplete. None if white space or a phrase follows it, or if it has a
    character of a script without spaces."""
    corrections: Sequence[tuple[Sequence[Term], Sequence[Term]]] = ()
    """For each corrected word: the terms that find the word, and its corrections. See `expanded`."""

    @property
    def matching(self) -> list[Term]:
        """All terms of the query, and all corrections of its words."""
        return [*self.terms, *(term for _, corrected in self.corrections for term in corrected)]


def parse(query: str, rules: Rules = PLAIN) -> Asked:
    """Parse any text as a query. Words in double quotes must occur as a phrase. All other words are optional.

    Each phrase is a term, and each word outside of phrases is a term. Synonyms of these words, and of sequences of
    them, are added as optional terms. Of several terms with the same stems, only the first is used.

    Only the first `MAX_WORDS` words count. Stop words outside of phrases are left out, unless the query has no other
    word.
    """
    terms: dict[Term, Term] = {}
    required: set[Term] = set()
    loose: list[str] = []
    last: str | None = None
    left, synonyms = MAX_WORDS, list[str]()
    parts = query[:MAX_ASKED].split('"', 2 * MAX_WORDS)
    for i, part in enumerate(parts):
        words, stems = _words_and_stems(part, rules.stemming)
        quoted = i % 2 == 1 and i + 1 < len(parts)  # the last quote may have no partner
        # In a passage, more characters may follow the last character of a run, so the token for the end of the run is
        # dropped. Inside a phrase, the token stays, because another word follows.
        ends = range(len(words) - 1 if quoted else 0, len(words))
        kept = [at for at in range(len(words)) if not (at in ends and analysis.ends_run(words, at))]
        if not quoted:
            kept = [at for at in kept if words[at] not in rules.stop_words]
            last = words[-1] if words and not part[-1].isspace() and not analysis.has_unspaced(words[-1]) else None
            synonyms += _synonyms(stems, rules)
        kept = kept[:left]
        left -= len(kept)
        groups = [kept] if quoted else [[at] for at in kept]
        for group in groups:
            stem = tuple(stems[at] for at in group)
            if not quoted and stem not in terms:
                loose.append(words[group[0]])
            terms.setdefault(stem, tuple(words[at] for at in group))
            if quoted:
                required.add(stem)
    terms.pop((), None)
    if not terms and rules.stop_words:
        return parse(query, rules._replace(stop_words=()))
    added = MAX_ADDED
    for synonym in synonyms:
        phrase, stem = _open_phrase(synonym, rules.stemming)
        added -= len(phrase)
        if phrase and added >= 0:
            terms.setdefault(stem, phrase)
    return Asked(list(terms.values()), [term for stem, term in terms.items() if stem in required], loose, last)


def _words_and_stems(text: str, stemming: Stemming) -> tuple[list[str], list[str]]:
    prepared = analysis.indexed(text)
    words = tokenizers["none"].words(prepared)
    return words, words if stemming == "none" else tokenizers[stemming].words(prepared)


def _open_phrase(text: str, stemming: Stemming) -> tuple[Term, Term]:
    """Return the words and the stems of `text`, without the single last character of a run at the end of `text`.

    A run is a sequence of characters of a script without spaces, such as Chinese. For example, the run ABC has the
    tokens AB BC C (see `analysis.ends_run`), and the run ABCD has the tokens AB BC CD D. As a key of synonyms, AB BC C
    would not be found in the query ABCD. AB BC is found in both runs.
    """
    words, stems = _words_and_stems(text, stemming)
    end = len(words) - analysis.ends_run(words, len(words) - 1)
    return tuple(words[:end]), tuple(stems[:end])


def _synonyms(stems: Sequence[str], rules: Rules) -> Iterator[str]:
    """Yield the synonyms of each word and phrase that begins among the first `MAX_WORDS` of `stems`."""
    for length in {len(key) for key in rules.synonyms}:
        for at in range(min(len(stems) - length + 1, MAX_WORDS)):
            yield from rules.synonyms.get(tuple(stems[at : at + length]), ())


def expanded(reader: sqlite3.Connection, query: str, rules: Rules = PLAIN, options: WordOptions = NO_OPTIONS) -> Asked:
    """Parse a query, and expand it by completions of its last word and by corrections, if `options` ask for them.

    At most `MAX_CORRECTED` words of the query are corrected.
    """
    asked = parse(query, rules)
    last = asked.last if options.prefix else None
    completions = _completions(reader, last, rules) if last else []
    corrections = []
    for word in asked.loose[:MAX_CORRECTED] if options.typos else ():
        own = [(word,), *(completions if word == last else [])]
        if corrected := _corrections(reader, word, own, rules, continued=word == last):
            corrections.append((own, corrected))
    return asked._replace(terms=asked.terms + completions, corrections=corrections)


def _completions(reader: sqlite3.Connection, word: str, rules: Rules) -> list[Term]:
    """Return terms that find the words which begin with `word`.

    If more than `MAX_COMPLETIONS` words begin with `word`, return no terms.

    With stemming, FTS5 compares a prefix with stems, so it misses a word whose stem does not begin with the prefix.
    Such words are looked up in the vocabulary, and at most `MAX_ADDED` terms are added for them.
    """
    _, stems = _words_and_stems(word, rules.stemming)
    whole: list[Term] = [(word + _PREFIX,)] if stems == [word] else []
    beginning = corrections.beginning(reader, word, MAX_COMPLETIONS + 1)
    if len(beginning) > MAX_COMPLETIONS:
        return []
    if rules.stemming == "none":
        return whole
    return [*whole, *_by_stems(beginning, rules.stemming, lambda stem: bool(whole) and stem.startswith(word))]


def _corrections(
    reader: sqlite3.Connection, word: str, own: Sequence[Term], rules: Rules, *, continued: bool
) -> list[Term]:
    """Return the corrections of `word`. If `word` is frequent, return an empty list.

    `own` are the terms that find the uncorrected word: the word itself, and its completions if it has been completed.
    With `continued`, the word may be incomplete.
    """
    select = f"SELECT count(*) FROM (SELECT 1 FROM words WHERE words MATCH ? LIMIT {FREQUENT + 1})"
    ((having,),) = reader.execute(select, (expression(own, "OR"),))
    if having > FREQUENT:
        return []
    near = corrections.nearest(reader, word, continued=continued)
    if continued:
        near = [one for one in near if not one.startswith(word)]
    _, known = _words_and_stems(" ".join(term.removesuffix(_PREFIX) for (term,) in own), rules.stemming)
    return _by_stems(near, rules.stemming, known.__contains__)


def _by_stems(words: Sequence[str], stemming: Stemming, known: Callable[[str], bool]) -> list[Term]:
    """Return a term for each stem of `words`, except stems for which `known` is true.

    The term is the first of `words` with this stem. At most `MAX_ADDED` terms are returned.
    """
    found: dict[str, Term] = {}
    for word, stem in zip(*_words_and_stems(" ".join(words), stemming), strict=True):
        if not known(stem):
            found.setdefault(stem, (word,))
    return [*found.values()][:MAX_ADDED]


def expression(terms: Sequence[Term], operator: str, *, single_as_prefix: bool = True) -> str:
    """Return an FTS5 query that joins `terms` by `operator`.

    Each term is in quotes, because FTS5 parses no syntax within quotes. The words of a term never contain quotes.

    With `single_as_prefix`, a term's last word becomes a prefix if it is a single character of a script without spaces.
    The prefix also finds the pairs of characters that begin with this character. The index has such pairs as words.
    """
    quoted = []
    for *words, last in terms:
        prefix = last.endswith(_PREFIX) or (single_as_prefix and analysis.is_character(last))
        quoted.append(f'"{" ".join([*words, last.removesuffix(_PREFIX)])}"{_PREFIX * prefix}')
    return f" {operator} ".join(quoted)
