"""What routes are given."""

from __future__ import annotations

from typing import Annotated

from fastapi import Depends, Path, Request

from serving.api.auth import check_corpus_allowed
from serving.arriving import Arriving
from serving.names import CORPUS_NAME, MAX_ID_BYTES, check_corpus_name, check_document_id
from serving.service import Service


def service_of(request: Request) -> Service:
    """The service that the app was made around, from its lifespan state."""
    service: Service = request.state.service
    return service


def arriving_of(request: Request) -> Arriving:
    """What counts the bodies on their way to the app, likewise."""
    arriving: Arriving = request.state.arriving
    return arriving


async def _service(request: Request) -> Service:  # not async, FastAPI would call it in a thread
    return service_of(request)


async def _corpus_name(
    name: Annotated[str, Path(description="name of the corpus", json_schema_extra={"pattern": CORPUS_NAME})],
    request: Request,
) -> str:
    return check_corpus_allowed(check_corpus_name(name, "name"), request)


async def _document_id(
    id: Annotated[
        str,
        Path(description="id of the document", json_schema_extra={"minLength": 1, "maxLength": MAX_ID_BYTES}),
    ],
) -> str:
    return check_document_id(id, "id")


async def _model_name(id: Annotated[str, Path(description="name of the model")], request: Request) -> str:
    return service_of(request).encoders.named(id).name


ServiceDep = Annotated[Service, Depends(_service)]
CorpusName = Annotated[str, Depends(_corpus_name)]
ModelName = Annotated[str, Depends(_model_name)]
DocumentId = Annotated[str, Depends(_document_id)]
