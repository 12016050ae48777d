"""Documents of a corpus: list, get, change metadata, delete."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Annotated, Any

from fastapi import APIRouter, Query

from serving.api.routing.deps import CLOSED, CorpusName, DocumentId, ServiceDep
from serving.api.routing.route import Route
from serving.api.schemas.corpora import (
    DeleteAnswer,
    DeleteRequest,
    DocumentAnswer,
    DocumentPatchRequest,
    DocumentsAnswer,
    PatchAnswer,
    PatchRequest,
    warnings_of,
)
from serving.corpora.backend import Backend, DocumentCursor
from serving.corpora.filters import Filter, compile_filter, is_large, read_filter
from serving.corpora.ports import Document
from serving.errors import Invalid
from serving.jobs.upload_order import check_stays

router = APIRouter(prefix="/corpora/{name}/documents", tags=["documents"], route_class=Route, dependencies=CLOSED)


@router.get("", summary="List or count documents", response_model_exclude_unset=True)
async def listing(
    name: CorpusName,
    service: ServiceDep,
    limit: Annotated[
        int, Query(ge=0, le=1000, description="Maximum number of documents. With 0 only their number is returned.")
    ] = 100,
    cursor: str | None = None,
    filter: Annotated[
        str | None,
        Query(
            description="Filter as JSON. Only documents that match it are listed.",
            examples=['{"year": {"$gte": 2020}}'],
        ),
    ] = None,
) -> DocumentsAnswer:
    """List documents, oldest first; a replaced document counts as new.

    A page of large documents may have fewer than `limit`. As long as the answer has a `cursor`, there are more.
    """
    after = None if cursor is None else _after(cursor)
    where = None if filter is None else read_filter(filter)
    looked = service.library.scan if where else service.library.read
    found = await looked(lambda corpora: corpora.page(name, after, limit, where), of=name)
    following = found.following
    return DocumentsAnswer(
        documents=[_answer(document) for document in found.documents],
        cursor=None if following is None else f"{following.generation}.{following.key}",
        count=found.total,
        **({"warnings": warnings_of(found.warnings)} if found.warnings else {}),
    )


@router.delete("", summary="Delete documents by filter", response_model_exclude_unset=True)
async def delete_where(name: CorpusName, body: DeleteRequest, service: ServiceDep) -> DeleteAnswer:
    """Delete every document whose metadata match.

    If the caller disconnects, deletion stops; deleted documents stay deleted.
    """
    if not body.filter:
        raise Invalid("would match everything; to empty a corpus, delete it", field="filter")
    where = await service.library.prepare(partial(compile_filter, body.filter), of=name, large=is_large(body.filter))
    before_commit = partial(check_stays, service.jobs, name)

    def delete(corpora: Backend) -> DeleteAnswer:
        unmatched = corpora.unmatched(name, where)
        removed = corpora.delete_where(name, where, before_commit)
        return DeleteAnswer(deleted=removed, **({"warnings": warnings_of(unmatched)} if unmatched else {}))

    return await service.library.remove(delete, of=name)


@router.patch("", summary="Change the metadata of documents", response_model_exclude_unset=True)
async def patch_several(name: CorpusName, body: PatchRequest, service: ServiceDep) -> PatchAnswer:
    """Merge metadata into the documents that `ids` names or `filter` matches. Nothing is embedded again.

    Unknown ids are skipped: compare `patched` with the number of ids. If the caller disconnects, or a document's
    metadata would become too large, the documents that are already changed stay changed.
    """
    if (body.ids is None) == (not body.filter):
        raise Invalid("give one of ids and filter", field="ids")
    if body.ids is not None:
        return PatchAnswer(patched=await _patched(name, body.ids, body.metadata, service))
    where = await service.library.prepare(partial(compile_filter, body.filter), of=name, large=is_large(body.filter))
    unmatched = await service.library.scan(lambda corpora: corpora.unmatched(name, where), of=name)
    patched = await _patched(name, where, body.metadata, service)
    return PatchAnswer(patched=patched, **({"warnings": warnings_of(unmatched)} if unmatched else {}))


@router.patch("/{id:any}", summary="Change the metadata of a document")
async def patch(name: CorpusName, id: DocumentId, body: DocumentPatchRequest, service: ServiceDep) -> DocumentAnswer:
    """Merge metadata into the document's metadata, and return the document. Nothing is embedded again."""
    await _patched(name, [id], body.metadata, service)
    return await get(name, id, service)


async def _patched(name: str, which: Sequence[str] | Filter, metadata: Mapping[str, Any], service: ServiceDep) -> int:
    before_commit = partial(check_stays, service.jobs, name)
    bounds = service.settings.bounds

    def patched(corpora: Backend) -> int:
        service.disk_quota.check()
        return corpora.patch(name, which, metadata, bounds, before_commit)

    return await service.library.remove(patched, of=name)


@router.get("/{id:any}", summary="Get a document")
async def get(name: CorpusName, id: DocumentId, service: ServiceDep) -> DocumentAnswer:
    """Return a document by its id."""
    return _answer(await service.library.read(lambda corpora: corpora.document(name, id), of=name))


@router.delete("/{id:any}", status_code=204, summary="Delete a document")
async def delete(name: CorpusName, id: DocumentId, service: ServiceDep) -> None:
    """Delete a document by its id. The deletion is durable."""

    def removed(corpora: Backend) -> None:
        check_stays(service.jobs, name)
        corpora.delete(name, id)

    await service.library.run(removed, of=name)


def _after(cursor: str) -> DocumentCursor:
    generation, _, key = cursor.partition(".")
    return DocumentCursor(generation, key)


def _answer(document: Document) -> DocumentAnswer:
    return DocumentAnswer(id=document.id, text=document.text, metadata=dict(document.metadata))
