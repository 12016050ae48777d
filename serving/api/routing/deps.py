"""Dependencies that FastAPI injects into routes."""

from __future__ import annotations

from collections import Counter
from typing import Annotated

from fastapi import Depends, Path, Request
from fastapi.dependencies.models import Dependant

from serving.api.routing.auth import allowed_corpus
from serving.errors import Invalid
from serving.operations.bounds import CORPUS_NAME, MAX_ID_BYTES, check_corpus_name, check_document_id
from serving.service import Service


async def closed_query(request: Request) -> None:
    """Raise `Invalid` if the request has an unknown query parameter, or gives one more than once.

    Ignoring a parameter would change the meaning of the request.
    """
    if not request.query_params:
        return
    known = _parameters(request.scope["route"].dependant)
    for name, times in Counter(name for name, _ in request.query_params.multi_items()).items():
        if name not in known:
            there = f"only {', '.join(known)}" if known else "which has none"
            raise Invalid(f"is not a parameter of this route, {there}", field=name[:80])
        if times > 1:
            raise Invalid(f"is given {times} times: give it once", field=name)


def _parameters(dependant: Dependant) -> list[str]:
    own = [parameter.alias for parameter in dependant.query_params]
    return own + [name for inner in dependant.dependencies for name in _parameters(inner)]


CLOSED = [Depends(closed_query)]
"""Dependencies of Isosphere's own routes, which refuse unknown query parameters. Routes for clients of other servers
ignore unknown parameters."""


# Async, because FastAPI would otherwise call this function in a thread.
async def _service(request: Request) -> Service:
    service: Service = request.state.service
    return service


async def _corpus_name(
    name: Annotated[str, Path(description="Name or alias of the corpus.", json_schema_extra={"pattern": CORPUS_NAME})],
    request: Request,
) -> str:
    return allowed_corpus(check_corpus_name(name, "name"), request)


async def _document_id(
    id: Annotated[
        str, Path(description="Id of the document.", json_schema_extra={"minLength": 1, "maxLength": MAX_ID_BYTES})
    ],
) -> str:
    return check_document_id(id, "id")


ServiceDep = Annotated[Service, Depends(_service)]


async def _model_name(id: Annotated[str, Path(description="Name of the model.")], service: ServiceDep) -> str:
    return service.encoders.named(id).name


CorpusName = Annotated[str, Depends(_corpus_name)]
ModelName = Annotated[str, Depends(_model_name)]
DocumentId = Annotated[str, Depends(_document_id)]
