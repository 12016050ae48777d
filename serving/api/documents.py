"""Routes to list, get, change and delete documents of a corpus."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query, Response

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
from serving.corpora.arranging import has_sort_value, read_sorts, sort_value
from serving.corpora.backend import Backend, DocumentCursor
from serving.corpora.filter_language import compile_filter, is_large, read_filter
from serving.corpora.filters import Filter
from serving.corpora.values import Changes, Document
from serving.errors import Invalid, NotFound
from serving.jobs.upload_order import check_stays
from serving.operations.clock import moment, timestamp

MAX_SORTS, MAX_SORT = 8, 4200
"""Maximum number of sort fields of a list, and maximum characters of the parameter `sort`."""

router = APIRouter(prefix="/corpora/{name}/documents", tags=["documents"], route_class=Route, dependencies=CLOSED)


@router.get("", summary="List or count documents", response_model_exclude_unset=True)
async def listing(
    name: CorpusName,
    service: ServiceDep,
    *,
    limit: Annotated[
        int, Query(ge=0, le=1000, description="Maximum number of documents. With 0, the answer has only `count`.")
    ] = 100,
    cursor: str | None = None,
    filter: Annotated[
        str | None,
        Query(
            description="Filter as JSON. Only documents that match it are listed.",
            examples=['{"year": {"$gte": 2020}}'],
        ),
    ] = None,
    sort: Annotated[
        str | None,
        Query(
            max_length=MAX_SORT,
            description="Order by metadata, such as `year:desc,title:asc`, of up to 8 fields. Numbers come before "
            "dates, dates before other strings, and documents without the field last.",
            examples=["year:desc,title:asc"],
        ),
    ] = None,
) -> DocumentsAnswer:
    """List documents, oldest first or in the order of `sort`.

    A replaced document counts as new. A page of large documents may have fewer than `limit` documents. While the
    answer has a `cursor`, there are more documents.
    """
    generation, _, key = (cursor or "").partition(".")
    after = None if cursor is None else DocumentCursor(generation, key)
    where = None if filter is None else read_filter(filter)
    orders = read_sorts(sort.split(",")) if sort is not None else []
    if len(orders) > MAX_SORTS:
        raise Invalid(f"has {len(orders)} fields, but at most {MAX_SORTS} are allowed", field="sort")
    found = await service.library.read(
        lambda corpora: corpora.page(name, after, limit, where, orders), of=name, charged=bool(where or orders)
    )
    following = found.following
    first = next(iter(found.documents), None)
    unused = [has_sort_value(order) for order in orders if not first or sort_value(first, order) is None]
    return DocumentsAnswer(
        documents=[_answer(document) for document in found.documents],
        cursor=None if following is None else f"{following.generation}.{following.key}",
        count=found.total,
        **warnings_of(filter=found.warnings, **await service.library.unmatched(name, {"sort": unused})),
    )


@router.delete("", summary="Delete documents by filter", response_model_exclude_unset=True)
async def delete_where(name: CorpusName, body: DeleteRequest, service: ServiceDep) -> DeleteAnswer:
    """Delete all documents that match the filter.

    If the caller disconnects, the deletion stops, and documents that are already deleted stay deleted.
    """
    if not body.filter:
        raise Invalid("would match every document; to remove all documents, delete the corpus", field="filter")
    where = await service.library.prepare(partial(compile_filter, body.filter), of=name, large=is_large(body.filter))
    before_commit = partial(check_stays, service.jobs, name)

    def delete(corpora: Backend) -> DeleteAnswer:
        unmatched = corpora.unmatched(name, where)
        removed = corpora.delete_where(name, where, before_commit)
        return DeleteAnswer(deleted=removed, **warnings_of(filter=unmatched))

    return await service.library.stoppable(delete, of=name, charged=True)


@router.patch("", summary="Change metadata and expiry of documents", response_model_exclude_unset=True)
async def patch_several(name: CorpusName, body: PatchRequest, service: ServiceDep) -> PatchAnswer:
    """Change metadata and expiry of the documents that `ids` lists or `filter` matches. `{}` matches all documents.

    Nothing is embedded again. Unknown ids are skipped, so compare `patched` with the number of ids. If the caller
    disconnects, or the metadata of a document would become too large, the remaining documents are not changed.
    """
    if (body.ids is None) == (body.filter is None):
        raise Invalid("give either ids or filter", field="ids")
    if body.ids is not None:
        return PatchAnswer(patched=await _patched(name, body.ids, body, service))
    given = body.filter or {}
    where = await service.library.prepare(partial(compile_filter, given), of=name, large=is_large(given))
    unmatched = await service.library.read(lambda corpora: corpora.unmatched(name, where), of=name, charged=True)
    return PatchAnswer(patched=await _patched(name, where, body, service), **warnings_of(filter=unmatched))


@router.patch(
    "/{id:any}",
    summary="Change metadata and expiry of a document",
    response_model=DocumentAnswer,
    response_model_exclude_unset=True,
    responses={204: {"description": "The document was changed, and has expired at once"}},
)
async def patch(name: CorpusName, id: DocumentId, body: DocumentPatchRequest, service: ServiceDep) -> Any:
    """Change metadata and expiry of one document, and return the document. Nothing is embedded again."""
    changed = await _patched(name, [id], body, service)
    try:
        return await get(name, id, service)
    except NotFound:
        if changed:
            return Response(status_code=204)
        raise


async def _patched(name: str, which: Sequence[str] | Filter, body: DocumentPatchRequest, service: ServiceDep) -> int:
    """Change the documents whose ids `which` lists, or that match the filter `which`.

    Return the number of changed documents. If `body` has no `expires_at`, the expiry stays the same. If `expires_at` is
    null, the documents never expire.
    """
    if not body.model_fields_set & {"metadata", "expires_at"}:
        raise Invalid("give metadata, expires_at or both", field="metadata")
    expires_at: int | Literal["kept"] | None = "kept"
    if "expires_at" in body.model_fields_set:
        expires_at = None if body.expires_at is None else moment(body.expires_at, "expires_at")
    changes = Changes(body.metadata, expires_at)
    before_commit = partial(check_stays, service.jobs, name)
    bounds = service.settings.bounds

    def patched(corpora: Backend) -> int:
        service.disk_quota.check()
        return corpora.patch(name, which, changes, bounds, before_commit)

    return await service.library.stoppable(patched, of=name, charged=True)


@router.get("/{id:any}", summary="Get a document", response_model_exclude_unset=True)
async def get(name: CorpusName, id: DocumentId, service: ServiceDep) -> DocumentAnswer:
    """Return a document by its id."""
    return _answer(await service.library.read(lambda corpora: corpora.document(name, id), of=name))


@router.delete("/{id:any}", status_code=204, summary="Delete a document")
async def delete(name: CorpusName, id: DocumentId, service: ServiceDep) -> None:
    """Delete a document by its id. The answer 204 means that the deletion is on disk."""

    def removed(corpora: Backend) -> None:
        check_stays(service.jobs, name)
        corpora.delete(name, id)

    await service.library.run(removed, of=name)


def _answer(document: Document) -> DocumentAnswer:
    expires_at = {} if document.expires_at is None else {"expires_at": timestamp(document.expires_at)}
    return DocumentAnswer(id=document.id, text=document.text, metadata=dict(document.metadata), **expires_at)
