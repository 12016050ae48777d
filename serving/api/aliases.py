"""Aliases of corpora: set, list, delete."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Depends, Path, Request, Response

from serving.api.routing.auth import allowed_corpus, key_of
from serving.api.routing.deps import CLOSED, ServiceDep
from serving.api.routing.route import Route
from serving.api.schemas.corpora import AliasAnswer, AliasesAnswer, AliasRequest
from serving.corpora.backend import Backend
from serving.errors import Conflict
from serving.operations.bounds import CORPUS_NAME, check_corpus_name
from serving.operations.threads import in_thread

router = APIRouter(prefix="/aliases", tags=["corpora"], route_class=Route, dependencies=CLOSED)


async def _alias(
    alias: Annotated[str, Path(description="The alias.", json_schema_extra={"pattern": CORPUS_NAME})], request: Request
) -> str:
    """Return the alias.

    Raises:
        Forbidden: the API key has no access to the alias or to its current corpus.
        Invalid: the alias is not a legal name.
    """
    allowed_corpus(check_corpus_name(alias, "alias"), request)
    return alias


Alias = Annotated[str, Depends(_alias)]


@router.put("/{alias}", summary="Set an alias", responses={201: {"model": AliasAnswer}})
async def put(
    alias: Alias, body: AliasRequest, service: ServiceDep, request: Request, response: Response
) -> AliasAnswer:
    """Point an alias to a corpus: 201 if the alias is new, else 200.

    Every route accepts an alias in place of a corpus name. Requests that arrive after the answer use the new corpus.
    409 if a corpus has the same name as the alias.
    """
    corpus = allowed_corpus(check_corpus_name(body.corpus, "corpus"), request)

    def pointed(corpora: Backend) -> bool:
        if alias in corpora.names():
            raise Conflict(f"{alias!r} is already the name of a corpus: choose another alias")
        corpora.corpus(corpus)
        return service.aliases.set(alias, corpus)

    response.status_code = 201 if await service.library.run(pointed, of=corpus) else 200
    return AliasAnswer(alias=alias, corpus=corpus)


@router.get("", summary="List aliases")
async def listing(service: ServiceDep, request: Request) -> AliasesAnswer:
    """List the aliases that the key may use, with their corpora."""
    key = key_of(request)
    found = service.aliases.listing().items()
    return AliasesAnswer(
        aliases=[
            AliasAnswer(alias=alias, corpus=corpus)
            for alias, corpus in found
            if key is None or (key.sees(alias) and key.sees(corpus))
        ]
    )


@router.delete("/{alias}", status_code=204, summary="Delete an alias")
async def delete(alias: Alias, service: ServiceDep) -> None:
    """Delete an alias. Its corpus is not deleted."""
    await in_thread(lambda: service.aliases.delete(alias))
