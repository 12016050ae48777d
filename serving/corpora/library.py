"""Corpora, together with the encoders that embed their texts and queries."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, asynccontextmanager
from dataclasses import replace
from functools import partial
from typing import NamedTuple, TypeVar

import numpy as np

from models.bundle.bundle import CROSS_ENCODER
from models.bundle.tokenizer import Piece
from models.runtimes.base import Floats
from serving.corpora.backend import Backend, Stale
from serving.corpora.filters import AnyOf, Filter
from serving.corpora.ingest.chunking import cut
from serving.corpora.ingest.vectors import VectorRule
from serving.corpora.reranking import Reranking, first_stage, reranked
from serving.corpora.search import Query, SearchOptions, SearchResult, merged
from serving.corpora.values import OWN, Chunking, Content, Corpus, Document, KnownText, Span
from serving.errors import Conflict, Invalid, Overloaded, ServiceError
from serving.inference.embedder import Embedder, check_kind
from serving.inference.embeddings import AS_DOCUMENTS, AS_QUERIES, Embeddings
from serving.inference.encoders import Encoders
from serving.inference.inputs import At
from serving.operations.context import recorded
from serving.operations.limits import check_no_debt
from serving.operations.metrics import Metrics
from serving.operations.threads import CorpusThreads

T = TypeVar("T")
LEAST_COSINE = 0.99
"""Minimum cosine between an uploaded vector and the encoder's own vector of the text. Vectors that an encoder computes
in bf16 and in float32 have a greater cosine."""
SLICE_TEXTS, SLICE_CHARACTERS = 512, 250_000
"""Maximum number of passages, and maximum number of characters, in one call of the encoder."""


class UploadResult(NamedTuple):
    """The result of an upload."""

    truncated: int
    """Number of passages longer than the model's limit. They are stored completely, but only their beginning is
    embedded."""
    embedded: int
    """Number of passages that were embedded. The other passages already had vectors."""


class Library:
    """Corpora and their encoders.

    Blocking work runs in `CorpusThreads`. Texts are embedded by the queues of the encoders.
    """

    def __init__(
        self,
        corpora: Backend,
        encoders: Encoders,
        metrics: Metrics,
        admitted: Callable[[], AbstractContextManager[None]],
        remedy: Callable[[str], str],
    ) -> None:
        """Create the library.

        `admitted` opens a context for work on a request, and raises `Unhealthy` if the server is not ready. `remedy`
        takes the name of a corpus whose encoder is not served. It returns a message that says how to make the corpus
        searchable again.
        """
        self.corpora = corpora
        self.threads = CorpusThreads()
        self._encoders = encoders
        self._metrics = metrics
        self._admitted = admitted
        self._remedy = remedy

    async def add(
        self,
        corpus: str,
        documents: Sequence[Document],
        chunking: Chunking | None = None,
        *,
        embedded_by: str = "",
        job: str | None = None,
        after_commit: Callable[[], None] = lambda: None,
        before_commit: Callable[[], None] = lambda: None,
    ) -> UploadResult:
        """Embed documents, and store either all of them or none. Documents that have vectors are not embedded.

        `embedded_by` is the fingerprint of the encoder that computed the documents' vectors. This encoder must be the
        corpus's encoder. As a check, the first document is embedded again, and the two vectors are compared. If
        documents have vectors and `embedded_by` is empty, the corpus must have own vectors, which means that callers
        compute all its vectors, and that it has no encoder.

        When this method returns, the documents survive a power failure, and every later search finds them.

        A text that the corpus already contains is not embedded again. Documents of a `job` are skipped if another
        request wrote or removed them since the job was accepted. If `before_commit` raises an exception, nothing is
        committed. `after_commit` is called after the commit, in any thread. If the caller is cancelled too late to
        prevent the commit, `after_commit` is still called.

        Raises:
            Conflict: the corpus has an encoder, which did not compute the documents' vectors. Or the corpus has own
                vectors, but the documents have no vectors, or `embedded_by` is given.
            Stale: the corpus's encoder is not served.
        """

        def put(content: Content) -> None:
            before_commit()
            self.corpora.put(corpus, replace(content, job=job))
            after_commit()

        if vectors := [document.vector for document in documents if document.vector is not None]:
            if embedded_by:
                await self._check_embedded(corpus, documents[0], embedded_by)
            with self._admitted():
                content = Content(documents, np.stack(vectors), embedded_by or OWN)
                await self.threads.run(corpus, partial(put, content))
            return UploadResult(0, 0)
        add = partial(self._add, corpus, documents, chunking, put)
        try:
            return await add()
        except Conflict:  # the corpus may have got another encoder since it was read
            return await add(again=True)

    async def _add(
        self,
        corpus: str,
        documents: Sequence[Document],
        chunking: Chunking | None,
        put: Callable[[Content], None],
        *,
        again: bool = False,
    ) -> UploadResult:
        async with self.encoder_of(corpus, from_store=again) as embedder:
            if not documents:
                return UploadResult(0, 0)
            fingerprint = embedder.manifest.fingerprint
            texts = [document.text for document in documents]
            known = await self.threads.read(corpus, lambda: self.corpora.embedded(corpus, texts, chunking, fingerprint))
            fresh = [i for i, held in enumerate(known) if held is None]
            made, truncated = await _embedded(embedder, texts, fresh, chunking)
            if chunking is None:  # texts that already have vectors may be too long, too
                old = [texts[i] for i, one in enumerate(known) if one is not None]
                truncated += sum([await embedder.preparation.cut(old[part]) for part in _slices(old)])
            for i, one in zip(fresh, made, strict=True):
                known[i] = one
            await self.threads.run(corpus, partial(put, _content(documents, known, chunking, embedder)))
            return UploadResult(truncated, sum(len(one.vectors) for one in made))

    async def _check_embedded(self, corpus: str, document: Document, embedded_by: str) -> None:
        """Raise `Conflict` if `embedded_by` is not the corpus's encoder, or did not compute the document's vector."""
        assert document.vector is not None, "the caller has checked that the document has a vector"
        async with self.encoder_of(corpus, from_store=True) as embedder:
            manifest = embedder.manifest
            if manifest.fingerprint != embedded_by:
                raise Conflict(
                    f"{embedded_by[:80]!r} is not the encoder of corpus {corpus!r}: its encoder is "
                    f"{manifest.fingerprint!r}",
                    field="embedded_by",
                )
            made = (await embedder.embed([document.text], AS_DOCUMENTS)).vectors[0]
            cosine = float(made @ document.vector) if made.shape == document.vector.shape else math.nan
            if not cosine >= LEAST_COSINE:
                raise Conflict(
                    f"the vector of document {document.id!r} differs from the encoder's own vector of its text "
                    f"(cosine {cosine:.3f}). Embed whole texts, with all dimensions as floats, and with the "
                    "prompt for documents",
                    field="embedded_by",
                )

    async def vector_rule(self, corpus: str) -> VectorRule:
        """Return the rule that says which uploaded documents of the corpus must have a vector.

        If the backend knows the fingerprint of the corpus's encoder without waiting, the store is not read.
        """
        with self._admitted():
            if self.corpora.index_fingerprint(corpus) not in (None, OWN):
                return VectorRule(corpus, own=False)
            described, _ = await self.threads.read(corpus, lambda: self.corpora.corpus(corpus))
            return VectorRule(corpus, described.own_vectors, described.dim)

    async def upload_rule(self, corpus: str, chunking: Chunking | None, embedded_by: str = "") -> VectorRule:
        """Check that `chunking` and `embedded_by` of an upload fit the corpus. Return the rule for uploaded vectors.

        Raises:
            Conflict: `embedded_by` names an encoder, but the corpus's vectors are not from an encoder.
            Invalid: the passages of `chunking` are longer than the encoder reads, or `chunking` would split documents
                that have a vector.
            Stale: the corpus's encoder is not served.
        """
        rule = replace(await self.vector_rule(corpus), embedded_by=embedded_by)
        if rule.own and embedded_by:
            raise Conflict(
                f"the vectors of corpus {corpus!r} come with its documents: leave out embedded_by", field="embedded_by"
            )
        if not (rule.own or embedded_by):
            async with self.encoder_of(corpus) as embedder:
                limit = embedder.preparation.document_length
                if chunking and chunking.tokens > limit:
                    behind = " behind its prompt for documents" if limit < embedder.preparation.length else ""
                    raise Invalid(f"the encoder of the corpus reads {limit} tokens{behind}", field="chunk_tokens")
        elif chunking:
            raise Invalid("documents with a vector can't be split", field="chunk_tokens")
        return rule

    async def reranked(
        self, corpus: str, queries: Sequence[str], options: SearchOptions, reranking: Reranking
    ) -> SearchResult:
        """Search, and rerank the first hits of each query.

        Raises:
            Conflict: see `search`.
            Invalid: `reranking.method` needs vectors of tokens, but the corpus's encoder was exported without them. Or
                `reranking.model` is not a cross-encoder.
            NotFound: the method needs a cross-encoder, but the name `reranking.model` is unknown. Or this name is None,
                and the server has no cross-encoder.
        """
        if reranking.method == "cross_encoder":
            with self._admitted(), self._encoders.cross_encoder(reranking.model).ready_embedder.held() as embedder:
                check_kind(embedder.manifest, CROSS_ENCODER)
                found = await self.search(corpus, queries, first_stage(options, reranking))
                return await reranked(found, queries, options, reranking, embedder)
        found = await self.search(corpus, queries, first_stage(options, reranking))
        async with self.encoder_of(corpus) as embedder:
            return await reranked(found, queries, options, reranking, embedder)

    async def search(self, corpus: str, queries: Sequence[str] | Query, options: SearchOptions) -> SearchResult:
        """Return the best passages for each text, or for one `Query` that needs no encoder.

        Raises:
            Conflict: the queries and the corpus were embedded by different encoders. Or the queries are texts, but the
                corpus has no encoder, because callers computed the vectors of its documents.
            Stale: the corpus's encoder is not served.
        """
        if isinstance(queries, Query) or options.mode == "lexical":
            with self._admitted():
                check_no_debt()
                asked = [queries] if isinstance(queries, Query) else [Query(text) for text in queries]
                return await self._found(corpus, asked, options)
        try:
            return await self._searched(corpus, queries, options)
        except Conflict:  # the corpus may have been embedded again since the queries were embedded
            return await self._searched(corpus, queries, options, again=True)

    async def search_several(
        self, corpora: Sequence[str], queries: Sequence[str] | Query, options: SearchOptions
    ) -> SearchResult:
        """Search several corpora of one encoder, and merge the hits by score. Empty corpora may have another encoder.

        Raises:
            Conflict: the search compares vectors, and two corpora have vectors of different encoders.
        """
        deep = replace(options, k=options.k + options.offset, offset=0)
        if options.mode == "lexical":
            return merged({name: await self.search(name, queries, deep) for name in corpora}, options)

        def with_documents(backend: Backend) -> Corpus:
            described = map(backend.corpus, corpora)
            empty, size = next(described)
            return empty if size.documents else next((corpus for corpus, held in described if held.documents), empty)

        first = await self.read(with_documents, of=corpora[0])

        async def found(asked: Sequence[Query], made_by: str | None) -> SearchResult:
            results: dict[str, SearchResult] = {}
            for name in corpora:
                try:
                    results[name] = await self._found(name, asked, deep, made_by)
                except Conflict:
                    raise Conflict(
                        f"the corpora {first.name!r} and {name!r} have different encoders: search each corpus "
                        "separately"
                    ) from None
            return merged(results, options)

        if isinstance(queries, Query):
            with self._admitted():
                check_no_debt()
                return await found([queries], first.fingerprint)
        async with self.encoder_of(first.name, from_store=True) as embedder:
            made = await embedder.embed(queries, AS_QUERIES, "queries")
            asked = [Query(text, row) for text, row in zip(queries, made.vectors, strict=True)]
            return replace(await found(asked, made.manifest.fingerprint), truncated=made.truncated)

    async def _searched(
        self, corpus: str, queries: Sequence[str], options: SearchOptions, *, again: bool = False
    ) -> SearchResult:
        async with self.encoder_of(corpus, from_store=again) as embedder:
            made = await embedder.embed(queries, AS_QUERIES, "queries")
            asked = [Query(text, row) for text, row in zip(queries, made.vectors, strict=True)]
            found = await self._found(corpus, asked, options, made.manifest.fingerprint)
            return replace(found, truncated=made.truncated)

    async def run(self, work: Callable[[Backend], T], of: str = "", on_cancel: Callable[[], None] = lambda: None) -> T:
        """Run `work`, which may block, in a thread. If the server is not ready, raise `Unhealthy`.

        `of` is the name of the corpus of `work`, if any. If the caller is cancelled, `on_cancel` is called, and `run`
        still waits until the work has ended.
        """
        with self._admitted():
            return await self.threads.run(of, lambda: work(self.corpora), on_cancel)

    async def read(self, work: Callable[[Backend], T], of: str = "", *, charged: bool = False) -> T:
        """Run `work`, which changes nothing, in a thread. If the caller is cancelled, the call ends immediately.

        If `charged` is True, the CPU time of the work is charged to the API key. Work that may read every document must
        be charged.

        Raises:
            Overloaded: `charged` is True, and earlier work of the key has exceeded the key's rate limit.
            Unhealthy: the server is not ready.
        """
        if charged:
            check_no_debt()
        with self._admitted():
            return await self.threads.read(of, lambda: work(self.corpora), charged=charged)

    async def unmatched(self, name: str, filters: Mapping[str, Sequence[Filter]]) -> dict[str, Sequence[str]]:
        """Return a warning for each of `filters` that no document of the corpus can match.

        `filters` has a filter for each metadata field that an option of a request names, and the warnings are under the
        same keys. The answer to the request is complete without the warnings. Therefore, there are no warnings after an
        error, for example if the corpus was deleted meanwhile.
        """
        wanted = {option: AnyOf(tuple(of_option)) for option, of_option in filters.items() if of_option}
        if not wanted:
            return {}
        try:
            return await self.read(
                lambda corpora: {option: corpora.unmatched(name, where) for option, where in wanted.items()},
                of=name,
                charged=True,
            )
        except ServiceError:
            return {}

    async def prepare(self, work: Callable[[], T], of: str, *, large: bool) -> T:
        """Run `work`, which prepares a request to the corpus `of`. If the request is `large`, run `work` in a thread.

        The thread keeps the event loop free. Its CPU time is charged to the API key of the request.

        Raises:
            Unhealthy: the request is large, and the server is not ready.
            Overloaded: the request is large, and too many reads of the API key already wait for a thread.
        """
        if not large:
            return work()
        with self._admitted():
            return await self.threads.read(of, work, charged=True)

    async def stoppable(self, work: Callable[[Backend], T], of: str, *, charged: bool = False) -> T:
        """Run long `work` that calls `check_cancelled`, such as a deletion in several commits.

        If the caller is cancelled, the work is stopped, and the call ends after the work has stopped. If `charged` is
        True, the CPU time of the work is charged to the API key.

        Raises:
            Overloaded: `charged` is True, and earlier work of the key has exceeded the key's rate limit; or too many
                reads of the key already wait for a thread.
            Unhealthy: the server is not ready, or is stopping.
        """
        if charged:
            check_no_debt()
        with self._admitted():
            return await self.threads.stoppable(of, lambda: work(self.corpora), charged=charged)

    @asynccontextmanager
    async def encoder_of(self, corpus: str, *, from_store: bool = False) -> AsyncIterator[Embedder]:
        """Yield the encoder of a corpus, and keep it open while the `with` block runs.

        If the index of the corpus is open and has the fingerprint of a loaded encoder, this encoder is used. Otherwise,
        or with `from_store`, a thread reads the fingerprint from the store. At the end of a re-embedding, an open index
        may still give the old encoder. Callers that must not get the old encoder use `from_store`.

        Raises:
            Conflict: the corpus has own vectors, so it has no encoder.
            Stale: the corpus's encoder is not served.
        """
        with self._admitted(), ExitStack() as holding:
            served: dict[str, Embedder] = {}
            for embedder in self._encoders.loaded:
                served.setdefault(embedder.manifest.fingerprint, embedder)
            known = None if from_store else served.get(self.corpora.index_fingerprint(corpus) or "")
            if known:
                with known.held() as embedder:
                    yield embedder
                return
            for embedder in served.values():  # the encoder must stay open until its fingerprint has been read
                holding.enter_context(embedder.held())
            try:
                fingerprint = await self.threads.read(corpus, lambda: self.corpora.encoder(corpus, list(served)))
            except Stale as error:
                raise Stale(f"{error.message}. {self._remedy(corpus)}") from None
            with served[fingerprint].held() as embedder:
                holding.close()
                yield embedder

    async def _found(
        self, corpus: str, queries: Sequence[Query], options: SearchOptions, made_by: str | None = None
    ) -> SearchResult:
        with self._metrics.search(corpus), recorded("search"):
            search = partial(self.corpora.search, corpus, queries, options, made_by)
            return await self.threads.read(corpus, search, charged=True)

    def close(self) -> None:
        """Wait for running work, then close the corpora."""
        self.threads.close()
        self.corpora.close()


async def embed_passages(embedder: Embedder, texts: Sequence[str], names: Callable[[int], str]) -> tuple[Floats, int]:
    """Embed P passages. Return their (P, D) vectors, and the number of truncated passages.

    `texts` are the texts of the passages. In errors, `names(i)` is the name of the i-th text. Passages are embedded in
    slices. The API key's rate limit and the queue's limit can refuse only the first slice. Later slices are retried
    until the queue accepts them, because a refusal would waste the embeddings of the earlier slices.
    """
    vectors, truncated = [np.empty((0, embedder.manifest.dim), np.float32)], 0
    for part, rows in enumerate(_slices(texts)):

        def at(i: int, first: int = rows.start) -> str:
            return names(first + i)

        made = await _embedded_part(embedder, texts[rows], at, part)
        vectors.append(made.vectors)
        truncated += made.truncated
    return np.concatenate(vectors), truncated


async def _embedded_part(embedder: Embedder, texts: Sequence[str], at: At, part: int) -> Embeddings:
    while True:
        try:
            return await embedder.embed(texts, AS_DOCUMENTS, "documents", at, part=part)
        except Overloaded as error:
            if not part:
                raise
            await asyncio.sleep(error.retry_after or 1)


async def _embedded(
    embedder: Embedder, texts: Sequence[str], fresh: Sequence[int], chunking: Chunking | None
) -> tuple[list[KnownText], int]:
    """Embed the texts with the indices `fresh`. Return the embedded texts, and the number of truncated passages."""
    spans: list[Sequence[Span] | None] = [None] * len(fresh)
    if chunking:
        cuts = await asyncio.to_thread(_cut, embedder, [texts[i] for i in fresh], chunking)
        spans = [found if len(found) > 1 else None for found in cuts]
    passages, owners = [], []
    for i, found in zip(fresh, spans, strict=True):
        parts = [texts[i]] if found is None else [texts[i][span.start : span.end] for span in found]
        passages += parts
        owners += [i] * len(parts)
    vectors, truncated = await embed_passages(embedder, passages, lambda row: f"documents.{owners[row]}.text")
    ends = np.cumsum([len(found) if found else 1 for found in spans])
    return list(map(KnownText, spans, np.split(vectors, ends[:-1]) if fresh else [])), truncated


def _cut(embedder: Embedder, texts: Sequence[str], chunking: Chunking) -> list[list[Span]]:
    def pieces(some: Sequence[str]) -> list[list[Piece]]:
        return embedder.engine.pieces(some, False)

    return [spans for part in _slices(texts) for spans in cut(texts[part], chunking, pieces)]


def _content(
    documents: Sequence[Document], held: Sequence[KnownText | None], chunking: Chunking | None, embedder: Embedder
) -> Content:
    whole = [one for one in held if one is not None]
    assert len(whole) == len(documents), "every text has a stored vector or was embedded"
    spans = [one.spans or [Span(0, len(document.text))] for one, document in zip(whole, documents, strict=True)]
    vectors = np.concatenate([one.vectors for one in whole])
    fingerprint = embedder.manifest.fingerprint
    return Content(documents, vectors, fingerprint, spans if chunking else None, chunking)


def _slices(texts: Sequence[str]) -> Iterator[slice]:
    start = characters = 0
    for i, text in enumerate(texts):
        if i > start and (i - start == SLICE_TEXTS or characters + len(text) > SLICE_CHARACTERS):
            yield slice(start, i)
            start, characters = i, 0
        characters += len(text)
    if start < len(texts):
        yield slice(start, len(texts))
