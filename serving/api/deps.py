"""What routes are given."""

from __future__ import annotations

from typing import Annotated

from fastapi import Depends, Path, Request

from serving.api.auth import check_corpus_allowed
from serving.errors import NotFound
from serving.names import check_corpus_name, check_document_id
from serving.service import Service


def service_of(request: Request) -> Service:
    """The service that the app was made around, from its lifespan state."""
    service: Service = request.state.service
    return service


async def _service(request: Request) -> Service:  # not async, FastAPI would call it in a thread
    return service_of(request)


async def _corpus_name(name: Annotated[str, Path(description="name of the corpus")], request: Request) -> str:
    return check_corpus_allowed(check_corpus_name(name, "name"), request)


async def _document_id(id: Annotated[str, Path(description="id of the document")]) -> str:
    return check_document_id(id, "id")


async def _model_name(id: Annotated[str, Path(description="name of the model")], request: Request) -> str:
    served = service_of(request).manifest.name
    if id != served:
        raise NotFound(f"there is no model {id!r}; this server runs {served!r}", field="model")
    return id


ServiceDep = Annotated[Service, Depends(_service)]
CorpusName = Annotated[str, Depends(_corpus_name)]
ModelName = Annotated[str, Depends(_model_name)]
DocumentId = Annotated[str, Depends(_document_id)]
