"""Routes to create, list, describe, rename and delete corpora."""

from __future__ import annotations

from bisect import bisect_right
from contextlib import suppress
from dataclasses import asdict
from typing import Annotated

from fastapi import APIRouter, Query, Request, Response
from starlette.types import ASGIApp, Receive, Scope, Send

from models.bundle.bundle import Manifest
from serving.api.routing.auth import allowed_corpus, key_of
from serving.api.routing.deps import CLOSED, CorpusName, ServiceDep
from serving.api.routing.route import Route
from serving.api.schemas.corpora import (
    CorporaAnswer,
    CorpusAnswer,
    CorpusRequest,
    FieldAnswer,
    FieldsAnswer,
    IndexAnswer,
    RenameRequest,
)
from serving.corpora.backend import Backend, Description, is_stale
from serving.corpora.values import Corpus, OwnVectors, WordSettings
from serving.errors import Conflict, Damaged, Invalid, NotFound, ServiceError
from serving.jobs.upload_order import check_stays
from serving.operations.bounds import check_corpus_name
from serving.operations.threads import in_thread
from serving.service import Service

router = APIRouter(tags=["corpora"], route_class=Route, dependencies=CLOSED)


@router.put("/corpora/{name}", summary="Create a corpus", responses={201: {"model": CorpusAnswer}})
async def create(
    name: CorpusName, service: ServiceDep, response: Response, body: CorpusRequest | None = None
) -> CorpusAnswer:
    """Create a corpus, or change it: 201 if the corpus is new, else 200.

    The given values replace the corpus's description, recall target, synonyms, stop words and searched fields. If the
    searched fields change, the server indexes the words of all documents again before it answers. `model` selects the
    encoder for a corpus that has none yet. A corpus with `vectors: own` has no encoder, and each uploaded document must
    contain its vector.

    409 if the corpus already has documents and the request gives another stemming. 409 if the request gives another
    model, another origin of vectors or another number of dimensions than the corpus already has. 409 if the corpus is
    being deleted. 409 if the request gives values while the corpus is being restored, because the restore would
    overwrite these values.
    """
    wanted = body or CorpusRequest()
    given = wanted.model_dump(exclude_none=True, exclude_defaults=True)
    encoder = _encoder(wanted, service)

    def check_room() -> None:
        if name not in service.library.corpora.names():
            service.disk_quota.check()

    await in_thread(check_room)

    def made(corpora: Backend) -> tuple[bool, Description]:
        if given:
            check_stays(service.jobs, name)
        words = WordSettings(wanted.synonyms, wanted.stop_words, wanted.fields)
        corpus = Corpus(name, wanted.description, wanted.recall_target, stemming=wanted.stemming, words=words)
        created = corpora.create(corpus, encoder)
        return created, corpora.description(name)

    try:
        created, described = await service.library.run(made, of=name)
    except NotFound:
        raise Conflict(f"corpus {name!r} was deleted while it was being created: create it again") from None
    response.status_code = 201 if created else 200
    return _answer(described, service)


@router.get("/corpora", summary="List corpora")
async def listing(
    service: ServiceDep,
    request: Request,
    limit: Annotated[int | None, Query(ge=1, le=1000, description="Maximum number of corpora. Default: all.")] = None,
    cursor: Annotated[str | None, Query(description="Cursor of the previous page.")] = None,
) -> CorporaAnswer:
    """List the corpora to which the key has access, in the order of their names.

    While the answer has a `cursor`, there are more corpora.
    """
    if cursor is not None:
        check_corpus_name(cursor, "cursor")
    key = key_of(request)

    def page(corpora: Backend) -> tuple[list[Description], str | None]:
        names = [name for name in corpora.names() if key is None or key.sees(name)]
        ahead = names[0 if cursor is None else bisect_right(names, cursor) :]
        listed = ahead[:limit]
        return corpora.descriptions(listed), listed[-1] if len(listed) < len(ahead) else None

    found, last = await service.library.read(page)
    return CorporaAnswer(corpora=[_answer(one, service, listed=True) for one in found], cursor=last)


@router.get("/corpora/{name}", summary="Describe a corpus")
async def describe(name: CorpusName, service: ServiceDep) -> CorpusAnswer:
    """Describe a corpus: its contents, its settings and its index."""
    return _answer(await service.library.read(lambda corpora: corpora.description(name), of=name), service)


@router.patch("/corpora/{name}", summary="Rename a corpus")
async def rename(name: CorpusName, body: RenameRequest, service: ServiceDep, request: Request) -> CorpusAnswer:
    """Rename a corpus. Its aliases then point to the new name. Its snapshots keep the old name.

    409 if the new name is taken by a corpus or an alias, or if the corpus has an unfinished job.
    """
    to = check_corpus_name(body.name, "name")
    if allowed_corpus(to, request) != to:
        raise Conflict(f"{to!r} is an alias: delete it first")
    if to == name:
        return await describe(name, service)

    def renamed(corpora: Backend) -> Description:
        corpora.rename(name, to)
        try:
            service.aliases.follow(name, to)
        except ServiceError:  # the disk is full: the answer says that nothing was stored
            corpora.rename(to, name)
            raise
        return corpora.description(to)

    async with service.jobs.renaming(name, to):
        return _answer(await service.library.run(renamed, of=name), service)


@router.get("/corpora/{name}/fields", summary="List metadata fields")
async def fields(
    name: CorpusName,
    service: ServiceDep,
    values: Annotated[int, Query(ge=1, le=1000, description="Maximum number of values for each field.")] = 20,
) -> FieldsAnswer:
    """List the metadata fields that filters can use, each with its types and its most frequent values."""
    found = await service.library.read(lambda corpora: corpora.facets(name, values), of=name, charged=True)
    return FieldsAnswer(
        fields=[
            FieldAnswer(**one._asdict() | {"values": [value._asdict() for value in one.values]}) for one in found.fields
        ],
        complete=found.complete,
    )


@router.delete("/corpora/{name}", status_code=204, summary="Delete a corpus")
async def delete(name: CorpusName, service: ServiceDep) -> None:
    """Delete a corpus with all its documents, and cancel its jobs, except a running snapshot or map.

    If the file of the corpus is damaged, the server renames the file instead of deleting it.
    """
    with suppress(Damaged):
        await service.library.read(lambda corpora: corpora.corpus(name), of=name)
    async with service.jobs.deleting(name):
        await service.library.run(lambda corpora: corpora.drop(name), of=name)


def unknown(otherwise: ASGIApp) -> ASGIApp:
    """Return a handler of unknown paths. The handler checks the corpus name, and then calls the handler `otherwise`.

    If the corpus name in a path below /corpora/ is illegal, the returned handler raises the error for illegal names. An
    example is the empty name in `/corpora//documents`.
    """

    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["path"].startswith("/corpora/"):
            path = scope["path"].removeprefix("/corpora/")
            name, _, rest = path.partition("/")
            check_corpus_name(name if rest else path, "name")
        await otherwise(scope, receive, send)

    return answer


def _encoder(wanted: CorpusRequest, service: Service) -> Manifest | OwnVectors | None:
    """Return the encoder that a request selects, or `OwnVectors` if the vectors come with the documents.

    Return None if the request selects neither.

    Raises:
        Invalid: the fields `model`, `vectors` and `dim` contradict each other, or `model` is a cross-encoder.
        NotFound: the server has no model with this name.
    """
    if wanted.vectors == "own":
        if wanted.model is not None:
            raise Invalid(
                "the vectors of this corpus come with its documents: leave out model or vectors", field="model"
            )
        return OwnVectors(wanted.dim)
    if wanted.dim is not None:
        raise Invalid('is only for vectors that come with the documents: give "vectors": "own", too', field="dim")
    return service.encoders.corpus_encoder(wanted.model).model.manifest if wanted.model is not None else None


def _answer(described: Description, service: Service, *, listed: bool = False) -> CorpusAnswer:
    corpus, size, index = described.corpus, described.size, described.index
    stale = is_stale(corpus, size, service.encoders.fingerprints)
    return CorpusAnswer(
        name=corpus.name,
        description=corpus.description,
        documents=size.documents,
        passages=size.passages,
        bytes=size.bytes,
        dim=corpus.dim,
        vectors="own" if corpus.own_vectors else "encoder",
        fingerprint=None if corpus.own_vectors else corpus.fingerprint,
        recall_target=corpus.wanted_recall,
        stemming=corpus.wanted_stemming,
        synonyms=None if listed else corpus.words.synonyms or {},
        stop_words=None if listed else corpus.words.stop_words or [],
        fields=corpus.words.fields or {},
        index="exact" if index is None else index.kind,
        recall=1.0 if index is None else index.recall,
        index_details=None if index is None else IndexAnswer(**asdict(index)),
        state="damaged" if described.damage else "stale" if stale else "ready",
        created=corpus.created,
    )
