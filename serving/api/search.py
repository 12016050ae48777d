"""Routes for search in corpora: by meaning, by words, or by both."""

from __future__ import annotations

import base64
import hashlib
import json
import time
from collections.abc import Sequence
from functools import partial
from typing import Annotated, Any

import orjson
from fastapi import APIRouter, Request, Response
from fastapi import Query as Parameter
from pydantic import BeforeValidator

from serving.api.middleware.unread_answers import largest_answer
from serving.api.routing.answers import json_response, truncation_header, written
from serving.api.routing.auth import allowed_corpus
from serving.api.routing.deps import CLOSED, CorpusName, ServiceDep
from serving.api.routing.route import Route, parsed
from serving.api.schemas.bodies import lower
from serving.api.schemas.corpora import warnings_of
from serving.api.schemas.search import EVEN, CorpusSearchRequest, SearchAnswer, SearchRequest
from serving.corpora.arranging import CANDIDATES, DIVERSE, has_scalar, has_sort_value, read_sorts, sort_value
from serving.corpora.backend import Backend
from serving.corpora.filter_language import compile_filter, is_large
from serving.corpora.filters import ID
from serving.corpora.ingest.vectors import unit_vector
from serving.corpora.reranking import Reranking
from serving.corpora.search import Cursor, Examples, Hit, Mode, Query, SearchOptions, SearchResult, shown
from serving.corpora.values import Counts, WordOptions
from serving.errors import Empty, Invalid, TooLarge
from serving.operations.bounds import check_corpus_name, check_text
from serving.operations.json_body import LARGE
from serving.operations.threads import check_cancelled
from serving.service import Service

VALUES = 20
"""Maximum number of values of a facet in the answer."""
DEEPEST = 100_000_000
"""Maximum number of hits before the page that a cursor requests. A cursor with a larger number is refused."""

router = APIRouter(tags=["search"], route_class=Route, dependencies=CLOSED)
_DOCUMENTED: dict[str, Any] = {"response_model": SearchAnswer, "response_model_exclude_unset": True}


@router.post("/corpora/{name}/search", summary="Search a corpus", **_DOCUMENTED)
async def search(name: CorpusName, body: SearchRequest, service: ServiceDep) -> Response:
    """Find the passages that best match a query, several queries, a vector, or examples (`like`).

    `dense` searches by meaning. `lexical` searches by words (BM25), and a phrase in double quotes must occur in the
    text. `hybrid` searches by both.

    With `vector` and `query`, hybrid search compares the vector by meaning, and looks for the words of the query.
    """
    if body.corpus is not None and service.aliases.corpora.get(body.corpus, body.corpus) != name:
        raise Invalid(f"is not {name!r}, the corpus in the path", field="corpus")
    return await _search(service, [name], body)


@router.get("/corpora/{name}/search", summary="Search a corpus by URL", **_DOCUMENTED)
async def search_by_url(
    name: CorpusName,
    service: ServiceDep,
    *,
    q: Annotated[str, Parameter(description="The query.", examples=["wait until several tasks have finished"])],
    k: Annotated[int, Parameter(ge=1, le=1000)] = 10,
    offset: Annotated[int, Parameter(ge=0)] = 0,
    mode: Annotated[Mode, BeforeValidator(lower)] = "dense",
    filter: Annotated[
        str | None, Parameter(description="Filter as JSON.", examples=['{"year": {"$gte": 2020}}'])
    ] = None,
    sort: Annotated[
        str | None, Parameter(description="Order of the hits by metadata, such as `year:desc,title:asc`.")
    ] = None,
    cursor: str | None = None,
    highlight: bool = False,
    prefix: bool = False,
    typos: bool = False,
) -> Response:
    """Find the passages that best answer the query `q`. The same path with POST has more options."""
    asked: dict[str, Any] = {"k": k, "offset": offset, "mode": mode, "cursor": cursor}
    asked |= {"highlight": highlight, "prefix": prefix, "typos": typos}
    if filter is not None:
        try:
            asked["filter"] = orjson.loads(filter)
        except orjson.JSONDecodeError as error:
            raise Invalid(f"not JSON: {error}", field="filter") from None
        if asked["filter"] is None:
            raise Invalid("must be an object", field="filter")
    if sort is not None:
        asked["sort"] = sort.split(",")
    return await _search(service, [name], parsed(SearchRequest, {"query": q, **asked}))


@router.post("/search", summary="Search the corpora named in the body", **_DOCUMENTED)
async def search_named(body: CorpusSearchRequest, service: ServiceDep, request: Request) -> Response:
    """Search one corpus, or several corpora of one encoder, as /corpora/{name}/search does.

    The hits of several corpora are merged by score. Cosines of different corpora are comparable. BM25 scores are
    comparable only if the corpora are similar, because the weight of a word depends on its corpus.
    """
    if (body.corpus is None) == (body.corpora is None):
        raise Invalid("give either corpus or corpora", field="corpus")
    given = body.corpora or [body.corpus or ""]
    fields = [f"corpora.{i}" for i in range(len(given))] if body.corpora else ["corpus"]
    names = [allowed_corpus(check_corpus_name(name, field), request) for name, field in zip(given, fields, strict=True)]
    if len(set(names)) < len(names):
        raise Invalid("names a corpus twice", field="corpora")
    return await _search(service, names, body)


async def _search(service: Service, names: Sequence[str], body: SearchRequest) -> Response:
    started = time.perf_counter()
    name, several = names[0], isinstance(body, CorpusSearchRequest) and body.corpora is not None
    queries = _queries(body, service.settings.max_text_bytes)
    _check_options(body)
    reranking = _reranking(body)
    where, orders = await service.library.prepare(
        lambda: (compile_filter(body.filter) if body.filter else None, _orders(name, body)),
        of=name,
        large=bool(body.filter or body.queries) and is_large([body.filter, body.queries]),
    )
    options = SearchOptions(
        k=body.k,
        offset=body.offset,
        after=_after(orders, body),
        mode=body.mode,
        fusion=body.fusion,
        alpha=body.alpha,
        exact=body.exact,
        where=where,
        min_score=body.min_score,
        with_vector=body.with_vector,
        highlight=body.highlight,
        sort=read_sorts([one if isinstance(one, str) else one.sort() for one in body.sort]) if body.sort else [],
        diversity=body.diversity,
        group_by=body.group_by,
        group_size=body.group_size,
        explain=body.explain,
        words=WordOptions(body.prefix, body.typos),
        max_characters=service.settings.max_search_characters,
    )
    _check_combination(body, options, several=several)
    asked = 1 if isinstance(queries, Query) else len(queries)
    depth = reranking.candidates if reranking else (body.k + body.offset) * body.group_size
    hits, limit = asked * len(names) * depth, service.settings.max_search_hits
    if hits > limit:
        raise TooLarge(
            f"the request asks for {hits} hits, counting all queries, groups, the offset and the candidates of a "
            f"reranking, but a request may have at most {limit}: ask for fewer, or use the cursor of an answer",
            field="k",
        )
    if reranking and not isinstance(queries, Query):
        found = await service.library.reranked(name, queries, options, reranking)
    elif several:
        found = await service.library.search_several(names, queries, options)
    else:
        found = await service.library.search(name, queries, options)
    counts = await _counts(service, names, body, options) if body.total or body.facets else None
    most = largest_answer(service.settings)
    warnings = await _warnings(service, name, options, found, counts)

    def answered() -> Response:
        results = _results(found, orders, body, most)
        answer: dict[str, Any] = {"results": results} if body.queries is not None else results[0]
        took = round(1000 * (time.perf_counter() - started), 3)
        facts: dict[str, Any] = {"took_ms": took, "mode": body.mode, "index": found.index}
        if counts and body.total:
            facts["total"] = counts.passages
        if counts and body.facets:
            values = {path: [value._asdict() for value in values] for path, values in counts.values.items()}
            facts |= {"facets": values, "facets_complete": counts.complete}
        return json_response(answer | facts | warnings, headers=truncation_header(found.truncated))

    characters = sum(len(hit.passage.document.text) for hits in found.hits for hit in hits)
    return await service.library.prepare(answered, of=name, large=characters >= LARGE)


async def _counts(service: Service, names: Sequence[str], body: SearchRequest, options: SearchOptions) -> Counts:
    """Count the passages from which a search chooses its hits, in all corpora together.

    Also count the values of each facet in the documents of these passages. A lexical search chooses from the passages
    that match the filter and contain a word of the query. Other searches choose from all passages that match the
    filter.
    """
    query = body.query if body.mode == "lexical" else None
    paths = list(dict.fromkeys(body.facets or ()))

    def count(name: str, corpora: Backend) -> Counts:
        return corpora.counts(name, query, options.where, paths, VALUES, options=options.words)

    found = [await service.library.read(partial(count, name), of=name, charged=True) for name in names]
    return found[0]._replace(passages=sum(one.passages for one in found))


async def _warnings(
    service: Service, name: str, options: SearchOptions, found: SearchResult, counts: Counts | None
) -> dict[str, Any]:
    """Return the field `warnings` of the answer.

    The warnings name conditions of the filter that no document can meet, and fields without values to sort, group or
    count. A field of `sort` or `group_by` is looked up only if the first hit has no value for the field. A field of
    `facets` is looked up only if no value was counted. Most searches therefore need no lookup.
    """
    first = next((hit for of_query in found.hits for hit in of_query), None)
    unused = {
        "sort": [
            has_sort_value(one) for one in options.sort if not first or sort_value(first.passage.document, one) is None
        ],
        "group_by": [has_scalar(options.group_by)] if options.group_by and (not first or first.group is None) else [],
        "facets": [has_scalar(path) for path, values in counts.values.items() if not values] if counts else [],
    }
    missing = await service.library.unmatched(name, unused)
    return warnings_of(filter=found.warnings, **missing) if found.warnings or missing else {}


def _check_combination(body: SearchRequest, options: SearchOptions, *, several: bool) -> None:
    """Raise `Invalid` if options of the search can't be combined."""
    if several:
        for field in ("cursor", "like", "sort", "diversity", "group_by", "facets"):
            if getattr(body, field):
                raise Invalid(
                    "does not work in a search of several corpora: search each corpus separately", field=field
                )
    if (body.total or body.facets) and body.queries is not None:
        raise Invalid("does not work with total and facets: send one query at a time", field="queries")
    if ID in (body.facets or ()):
        raise Invalid(f"can't count {ID}, because each document has its own: name metadata fields", field="facets")
    if body.group_size > 1 and not body.group_by:
        raise Invalid("needs group_by", field="group_size")
    if not options.arranged:
        return
    if body.sort and body.diversity:
        raise Invalid(
            "does not work with sort, because both options order the hits: give only one of them", field="diversity"
        )
    for field, instead in (("cursor", "use offset"), ("queries", "send one query at a time")):
        if getattr(body, field) is not None:
            raise Invalid(f"does not work with sort, diversity and group_by: {instead}", field=field)
    if body.k + body.offset > (most := DIVERSE if body.diversity else CANDIDATES):
        raise Invalid(
            f"k plus offset must not exceed {most}, because the hits are chosen from the best {most}", field="k"
        )


def _check_options(body: SearchRequest) -> None:
    """Raise `Invalid` if an option of the request has no effect with the request's `mode` or `fusion`."""
    if body.fusion != "rrf" and body.mode != "hybrid":
        raise Invalid(f"has no effect in {body.mode} search: set mode to hybrid", field="fusion")
    if body.alpha != EVEN and body.fusion != "weighted":
        raise Invalid("has no effect here: set mode to hybrid and fusion to weighted", field="alpha")
    for option in ("prefix", "typos"):
        if getattr(body, option) and body.mode == "dense":
            raise Invalid("does not work in dense search: set mode to lexical or hybrid", field=option)


def _queries(body: SearchRequest, most: int) -> list[str] | Query:
    """Return the texts to search for. If the request has a vector or examples, return a `Query` instead.

    A `Query` needs no encoder. This function refuses illegal texts and texts of more than `most` bytes, because lexical
    search has no encoder that would refuse them.
    """
    given = [name for name in ("query", "queries", "vector", "like") if getattr(body, name) is not None]
    if given == ["query", "vector"]:
        if body.mode != "hybrid":
            raise Invalid(
                f"{body.mode} search needs either query or vector: for both, set mode to hybrid", field="vector"
            )
        check_text(body.query or "", most, "query")
        return Query(body.query, unit_vector(body.vector))
    if len(given) != 1:
        raise Invalid(
            f"give exactly one of query, queries, vector and like; the request has {len(given)} of them", field="query"
        )
    if given[0] in ("vector", "like") and body.mode != "dense":
        more = "together with the vector" if (body.mode, given[0]) == ("hybrid", "vector") else " or queries"
        raise Invalid(f"{body.mode} search looks for words: give query{more}", field=given[0])
    if given[0] in ("vector", "like") and body.highlight:
        raise Invalid("highlights words of a query: give query or queries", field="highlight")
    if body.query is not None:
        check_text(body.query, most, "query")
        return [body.query]
    if body.queries is not None:
        if not body.queries:
            raise Empty("must contain at least one query", field="queries")
        for i, query in enumerate(body.queries):
            check_text(query, most, f"queries.{i}")
        return body.queries
    if body.like is not None:
        return Query(None, None, Examples(body.like.positive, body.like.negative))
    return Query(None, unit_vector(body.vector))


def _reranking(body: SearchRequest) -> Reranking | None:
    """Return the validated options for reranking, or None if the request has none.

    Raises:
        Invalid: the options do not fit each other or the rest of the request.
    """
    if not (asked := body.rerank):
        return None
    if body.vector is not None or (body.query is None and body.queries is None):
        raise Invalid("compares texts: give query or queries instead of a vector or examples", field="rerank")
    for field in ("cursor", "sort", "diversity", "group_by", "explain", "corpora"):
        if getattr(body, field, None):
            raise Invalid("does not work with rerank: leave one of them out", field=field)
    if body.offset + body.k > asked.candidates:
        raise Invalid(
            f"must be at least offset plus k, which is {body.offset + body.k}, because only candidates can become hits",
            field="rerank.candidates",
        )
    if asked.model is not None and asked.method != "cross_encoder":
        raise Invalid(
            f"does not work with the method {asked.method}, which uses the encoder of the corpus: leave out the model",
            field="rerank.model",
        )
    return Reranking(asked.method, asked.candidates, asked.model)


def _results(found: SearchResult, orders: Sequence[str], body: SearchRequest, most: int) -> list[dict[str, Any]]:
    """Return the hits of each query as JSON, with a cursor if there may be more hits.

    `orders`, the result of `_orders`, has a digest for each query. The cursor contains the digest, to detect a changed
    query. Hits are written one at a time.

    Raises:
        TooLarge: the hits written so far have more than `most` bytes together.
    """
    unpaged = body.rerank or body.sort or body.diversity or body.group_by or getattr(body, "corpora", None)
    results, size = list[dict[str, Any]](), 0
    for hits, order in zip(found.hits, orders, strict=True):
        fragments = []
        for hit in hits:
            check_cancelled()
            content = written(_hit(hit, body))
            size += len(content)
            if size > most:
                raise TooLarge(
                    f"the hits have more than the {most} bytes that an answer may have: ask for fewer hits", field="k"
                )
            fragments.append(orjson.Fragment(content))
        more = len(hits) == body.k and not unpaged
        results.append({"hits": fragments, "cursor": _cursor(order, found.behind(hits[-1])) if more else None})
    return results


def _hit(hit: Hit, body: SearchRequest) -> dict[str, Any]:
    document, span = hit.passage
    answer: dict[str, Any] = {"id": document.id, "score": shown(hit.score)}
    if hit.corpus is not None:
        answer["corpus"] = hit.corpus
    if body.mode == "hybrid":
        answer |= {"dense": _rounded(hit.dense), "lexical": _rounded(hit.lexical)}
    if body.group_by:
        answer["group"] = hit.group
    if body.explain:
        answer["explain"] = _explanation(hit, body)
    if span is not None:
        answer["span"] = {"start": span.start, "end": span.end}
    if body.with_text:
        answer["text"] = hit.text
    if body.with_metadata:
        answer["metadata"] = document.metadata
    if body.with_vector:
        answer["vector"] = hit.vector
    if body.highlight:
        answer["highlights"] = [span._asdict() for span in hit.highlights]
        if hit.field_highlights is not None:
            answer["field_highlights"] = [
                one._asdict() | {"highlights": [span._asdict() for span in one.highlights]}
                for one in hit.field_highlights
            ]
    return answer


def _explanation(hit: Hit, body: SearchRequest) -> dict[str, Any]:
    """Return the rank and the score of a hit in each ranking of the search."""
    dense, lexical = hit.ranks
    scores = {"dense": (hit.score, None), "lexical": (None, hit.score), "hybrid": (hit.dense, hit.lexical)}[body.mode]
    return {
        name: {"rank": rank, "score": _rounded(score)}
        for name, rank, score in (("dense", dense, scores[0]), ("lexical", lexical, scores[1]))
        if body.mode in (name, "hybrid")
    }


def _rounded(score: float | None) -> float | None:
    return None if score is None else shown(score)


def _cursor(order: str, place: Cursor) -> str:
    return base64.urlsafe_b64encode(orjson.dumps([order, *place])).decode().rstrip("=")


def _after(orders: Sequence[str], body: SearchRequest) -> Cursor | None:
    if body.cursor is None:
        return None
    if body.queries is not None:
        raise Invalid("does not work with queries: give query or vector", field="cursor")
    try:
        sent = body.cursor.encode("ascii")
        order, generation, seen, score, key = orjson.loads(base64.urlsafe_b64decode(sent + b"=" * (-len(sent) % 4)))
        place = Cursor(str(generation), int(seen), float(score), int(key))
        if not (0 < place.seen <= DEEPEST and 0 < place.key < 2**63):
            raise ValueError(place)
    except (ValueError, TypeError) as error:  # binascii.Error and orjson.JSONDecodeError are ValueErrors
        raise Invalid("is not a cursor of this server", field="cursor") from error
    if [order] != orders:
        raise Invalid(
            "belongs to another search: query, filter, mode, corpus and options must stay the same", field="cursor"
        )
    return place


def _orders(name: str, body: SearchRequest) -> list[str]:
    """Return for each query a digest of everything that determines the order of its hits.

    The digest includes the corpus, because a cursor contains a passage key of one corpus. The digest of a query does
    not depend on other queries in the request.
    """
    names = ("mode", "fusion", "alpha", "filter", "prefix", "typos")
    asked = {name: getattr(body, name) for name in names}
    alike = _digest([name, asked])
    sought: list[Any] = body.queries or [next((one for one in (body.query, body.vector) if one is not None), None)]
    if body.query is not None and body.vector is not None:
        sought = [[body.query, body.vector]]
    if body.like is not None:
        sought = [body.like.model_dump()]
    return [_digest([alike, one]) for one in sought]


def _digest(value: Any) -> str:
    try:
        written = orjson.dumps(value, option=orjson.OPT_SORT_KEYS)
    except TypeError:  # orjson can't write integers of more than 64 bits
        written = json.dumps(value, sort_keys=True).encode()
    return hashlib.blake2b(written, digest_size=8).hexdigest()
