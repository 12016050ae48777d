"""Tools of the MCP server, which an assistant calls."""

from __future__ import annotations

import asyncio
from importlib.metadata import version
from typing import Annotated, Any

from mcp.server.mcpserver import Context, MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp.types import ToolAnnotations
from pydantic import BaseModel, ConfigDict, Field

from isosphere.mcp_server.api import Api

INSTRUCTIONS = """Search documents by meaning and by words. Call `list_corpora` to see which corpora there are, `search`
to find passages in one of them, and `fetch` to read a whole document."""
MOST_HITS = 100
MOST_CHARACTERS = 2000
"""Maximum characters of a hit's text. For longer texts, the assistant can call `fetch`."""
MOST_DOCUMENTS = 256
"""Maximum documents of a call. By default, the server stores this many at once, and makes a job of a larger upload."""
JOB_SECONDS = 0.5
"""Seconds between two requests that ask whether a job has ended."""
READS = ToolAnnotations(read_only_hint=True, open_world_hint=False)
WRITES = ToolAnnotations(read_only_hint=False, destructive_hint=True, idempotent_hint=True, open_world_hint=False)

Corpus = Annotated[str, Field(min_length=1, description="Name of the corpus, as `list_corpora` returns it.")]
DocumentId = Annotated[str, Field(min_length=1)]
Limit = Annotated[int, Field(ge=1, le=MOST_HITS, description="Maximum number of hits.")]
Filter = Annotated[
    dict[str, Any] | None,
    Field(
        description="Conditions on metadata. `list_corpora` with a corpus returns its fields. Operators: $eq, $ne, "
        "$gt, $gte, $lt, $lte, $in, $nin, $exists, $contains, $startswith, $near (distance from a point), $elemMatch "
        "(objects in a list), $and, $or, $not. The field $id is the document's id.",
        examples=[{"year": {"$gte": 2020}, "lang": "en"}],
    ),
]


class Hit(BaseModel):
    """A passage that the search found."""

    id: str = Field(description="Id of the document. `fetch` returns its whole text.")
    score: float
    text: str = Field(description=f"The passage, cut to {MOST_CHARACTERS} characters. An ellipsis marks a cut.")
    metadata: dict[str, Any]


class Hits(BaseModel):
    """The passages that the search found, best first."""

    hits: list[Hit]
    warnings: list[str] = Field(description="Conditions of the filter that no document can meet.")


class Document(BaseModel):
    """A whole document."""

    id: DocumentId
    text: str
    metadata: dict[str, Any] = {}
    expires_at: str | None = Field(
        default=None, description="Time in RFC 3339 from which searches no longer find the document."
    )


class NewDocument(Document):
    """A document to store. Fields of the user's own belong in `metadata`."""

    model_config = ConfigDict(extra="forbid")


class FieldOfMetadata(BaseModel):
    """A field of the metadata that a filter can use."""

    field: str
    kinds: list[str]
    least: float | None
    greatest: float | None
    values: list[Any] = Field(description="The most frequent values.")


class CorpusFacts(BaseModel):
    """A corpus. `fields` has a value only if the request names the corpus."""

    name: str
    description: str | None
    documents: int
    state: str = Field(description="`ready`, or the reason why the corpus can't be searched.")
    fields: list[FieldOfMetadata] | None = None


class Corpora(BaseModel):
    """The corpora that the key may read, in the order of their names."""

    corpora: list[CorpusFacts]


class Stored(BaseModel):
    """Ids of the documents that were stored."""

    ids: list[str]


class Deleted(BaseModel):
    """Id of the document that was deleted."""

    id: str


def server_of(api: Api, *, writes: bool = False) -> MCPServer:
    """Return an MCP server with tools that read the corpora of `api` and, if `writes` is true, write to them."""
    server = MCPServer(
        "isosphere",
        title="Isosphere",
        instructions=INSTRUCTIONS,
        version=version("isosphere"),
        log_level="WARNING",  # Messages of level INFO would quote documents.
    )

    @server.tool(title="Search a corpus", annotations=READS)
    async def search(query: str, corpus: Corpus, caller: Context, limit: Limit = 10, filter: Filter = None) -> Hits:
        """Find the passages of a corpus that best answer a query, by meaning and by words.

        The search by words finds a phrase in double quotes only where its words follow each other. If the server did
        not compute the vectors of the corpus, the corpus is searched by words only.
        """
        embeds = (await api.ask(caller, "GET", "corpora", corpus))["vectors"] == "encoder"
        mode = {"mode": "hybrid", "fusion": "weighted"} if embeds else {"mode": "lexical"}
        body = {"corpus": corpus, "query": query, "k": limit, "filter": filter, **mode}
        found = await api.ask(caller, "POST", "search", json=body)
        return Hits(hits=[_hit(one) for one in found["hits"]], warnings=found.get("warnings", []))

    @server.tool(title="Read a document", annotations=READS)
    async def fetch(
        corpus: Corpus, id: Annotated[DocumentId, Field(description="Id of a hit of `search`.")], caller: Context
    ) -> Document:
        """Return the whole text and the metadata of a document."""
        return Document(**await api.ask(caller, "GET", "corpora", corpus, "documents", id))

    @server.tool(title="List corpora", annotations=READS)
    async def list_corpora(
        caller: Context,
        corpus: Annotated[
            str | None,
            Field(description="Name of a corpus. The result is then this corpus only, with its fields for filters."),
        ] = None,
    ) -> Corpora:
        """List the corpora that `search` can search, or describe one corpus with the fields of its metadata."""
        if not corpus:
            listed = (await api.ask(caller, "GET", "corpora"))["corpora"]
            return Corpora(corpora=[CorpusFacts(**{**facts, "fields": None}) for facts in listed])
        facts = await api.ask(caller, "GET", "corpora", corpus)
        fields = (await api.ask(caller, "GET", "corpora", corpus, "fields"))["fields"]
        for field in fields:
            field["values"] = [one["value"] for one in field["values"]]
        return Corpora(corpora=[CorpusFacts(**{**facts, "fields": fields})])

    if writes:
        _add_writing(server, api)
    return server


def _add_writing(server: MCPServer, api: Api) -> None:
    @server.tool(title="Store documents", annotations=WRITES)
    async def store(
        corpus: Corpus,
        documents: Annotated[list[NewDocument], Field(min_length=1, max_length=MOST_DOCUMENTS)],
        caller: Context,
    ) -> Stored:
        """Store documents in a corpus. A document replaces the stored document of the same id."""
        body = {"documents": [one.model_dump(exclude_none=True) for one in documents]}
        answer = await api.ask(caller, "POST", "corpora", corpus, "documents", json=body)
        while answer.get("state") in ("queued", "running"):  # The server made a job of the upload.
            await asyncio.sleep(JOB_SECONDS)
            answer = await api.ask(caller, "GET", "jobs", answer["id"])
        if answer.get("state", "succeeded") != "succeeded":
            errors = "; ".join(f"{one['place']}: {one['error']}" for one in answer["errors"])
            ended = f"the job {answer['id']}, which was to store the documents, has the state {answer['state']!r}"
            raise ToolError(f"{ended}. {errors}".rstrip())
        return Stored(ids=[one.id for one in documents])

    @server.tool(title="Delete a document", annotations=WRITES)
    async def delete(corpus: Corpus, id: DocumentId, caller: Context) -> Deleted:
        """Delete a document from a corpus."""
        await api.ask(caller, "DELETE", "corpora", corpus, "documents", id)
        return Deleted(id=id)


def _hit(found: dict[str, Any]) -> Hit:
    text = found["text"]
    shown = text if len(text) <= MOST_CHARACTERS else text[: MOST_CHARACTERS - 1] + "…"
    return Hit(id=found["id"], score=found["score"], text=shown, metadata=found["metadata"])
