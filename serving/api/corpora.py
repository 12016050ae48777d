"""Corpora: create, list, describe, delete."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response

from serving.api.auth import key_of
from serving.api.corpus_schemas import CorporaAnswer, CorpusAnswer, CorpusRequest
from serving.api.deps import CorpusName, ServiceDep
from serving.api.route import Route
from serving.corpora import is_stale
from serving.errors import NotFound
from serving.names import check_corpus_name
from serving.ports import Corpus, Size
from serving.service import Service

router = APIRouter(tags=["corpora"], route_class=Route)


@router.put("/corpora/{name}", summary="Create a corpus", responses={201: {"model": CorpusAnswer}})
async def create(
    name: CorpusName, service: ServiceDep, response: Response, body: CorpusRequest | None = None
) -> CorpusAnswer:
    """201 when it is new, else 200; what is given replaces the description and recall target it had.

    Texts and queries of a new one are embedded by `model`. 409 where it is there, and another one's.
    """
    wanted = body or CorpusRequest()
    encoder = service.encoders.asked_for(wanted.model).model.manifest if wanted.model is not None else None
    created = await service.on_corpora(
        lambda corpora: corpora.create(
            name, description=wanted.description, recall_target=wanted.recall_target, encoder=encoder
        ),
        of=name,
    )
    response.status_code = 201 if created else 200
    return _answer(*await service.on_corpora(lambda corpora: corpora.corpus(name), of=name), service)


@router.get("/corpora", summary="List the corpora")
async def listing(service: ServiceDep, request: Request) -> CorporaAnswer:
    """By name; those that the key may touch."""
    found, key = await service.on_corpora(lambda corpora: corpora.listing()), key_of(request)
    return CorporaAnswer(
        corpora=[_answer(corpus, size, service) for corpus, size in found if key is None or key.sees(corpus.name)]
    )


@router.get("/corpora/{name}", summary="Describe a corpus")
async def describe(name: CorpusName, service: ServiceDep) -> CorpusAnswer:
    """What it holds and how it is searched."""
    return _answer(*await service.on_corpora(lambda corpora: corpora.corpus(name), of=name), service)


@router.delete("/corpora/{name}", status_code=204, summary="Delete a corpus")
async def delete(name: CorpusName, service: ServiceDep) -> None:
    """With every document in it."""
    await service.on_corpora(lambda corpora: corpora.drop(name), of=name)


@router.api_route(
    "/corpora/{path:path}", methods=["GET", "PUT", "POST", "DELETE"], include_in_schema=False, response_model=None
)
async def unknown(path: str) -> None:
    """What no route above took: a name with a slash in it is refused as any bad name is."""
    name, _, rest = path.partition("/")
    check_corpus_name(name if rest else path, "name")
    raise NotFound(f"there is no route /corpora/{path}")


def _answer(corpus: Corpus, size: Size, service: Service) -> CorpusAnswer:
    stale = is_stale(corpus, size, service.encoders.fingerprints)
    return CorpusAnswer(
        name=corpus.name,
        description=corpus.description,
        documents=size.documents,
        bytes=size.bytes,
        dim=corpus.dim,
        fingerprint=corpus.fingerprint,
        recall_target=corpus.wanted_recall,
        index=service.settings.index,
        recall=service.corpora.recall,
        state="stale" if stale else "ready",
        created=corpus.created,
    )
