"""From texts or token ids to vectors: limits, prompt, tokens, batches, width, length."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, TypeGuard

import numpy as np

from models.bundle import Manifest
from models.tokenizer import Direction, Tokens
from serving.batcher import Batcher
from serving.errors import Backend, Empty, ForeignTokens, Invalid, Overloaded, TooLarge
from serving.metrics import Metrics
from serving.ports import Embedded, Engine, Floats, Model
from serving.settings import Settings
from serving.tokenizing import Tokenizing

Inputs = Sequence[str] | Sequence[Sequence[int]]

CHARACTERS_PER_TOKEN = 250
"""A text is first cut to this many for each token the model reads, as text-embeddings-inference does."""


@dataclass(frozen=True, kw_only=True)
class EmbedOptions:
    """How texts become vectors."""

    normalize: bool = True
    truncate: bool = True
    direction: Direction = "right"
    """The side that is cut."""
    prompt_name: str | None = None
    dimensions: int | None = None
    """Leading dimensions to keep, cut before normalising; None keeps all."""


@dataclass(frozen=True)
class Embeddings:
    """The answer to a request."""

    vectors: Floats
    """(N, D), finite."""
    tokens: int
    """Tokens embedded, special ones included."""
    truncated: int
    """Texts that were cut."""
    manifest: Manifest
    """Of the encoder that made all of them."""


class Embedder:
    """An encoder at work: what is known of its model, its engine, its batcher and the limits around them."""

    def __init__(self, engine: Engine, model: Model, settings: Settings, metrics: Metrics) -> None:
        self.engine = engine
        self.model = model
        self.manifest = model.manifest
        self._holders = 0
        self._free = asyncio.Event()
        self._free.set()
        self._settings = settings
        self._metrics = metrics
        self._tokenizing = Tokenizing(engine.tokenize)
        self._tokenizing_characters = 0
        self.batcher = Batcher(
            self._checked,
            max_batch_tokens=settings.max_batch_tokens,
            max_queued_tokens=settings.max_queued_tokens,
            observe=metrics.batch,
        )

    async def embed(self, inputs: Inputs, options: EmbedOptions, field: str = "inputs") -> Embeddings:
        """Vectors of texts, or of token ids as they are; `field` is what errors call them.

        Raises:
            Empty, TooLarge, Invalid, ForeignTokens: the request is at fault.
            Overloaded, Backend: the server is.
        """
        with self._metrics.request(len(inputs)):
            if not inputs:
                raise Empty("must hold at least one text", field=field)
            check_count(len(inputs), self._settings.max_request_texts, field)
            dimensions = self._dimensions(options)
            tokens = await self._tokens(inputs, options, field)
            truncated = self._check_tokens(tokens, options, field)
            embedded = await self.batcher.submit(tokens)
            total = sum(map(len, tokens))
            return Embeddings(_finish(embedded, dimensions, options.normalize), total, truncated, self.manifest)

    async def probe(self) -> None:
        """Embed a text, to see whether the engine works again; no caller's request, so not counted as one.

        Raises:
            Backend: it does not.
        """
        golden = self.manifest.golden
        await self.batcher.submit(await self._tokenizing.tokens([golden[0].text if golden else "a"], "right"))

    @contextmanager
    def held(self) -> Iterator[Embedder]:
        """Around a request that needs this encoder from beginning to end: it outlives its replacement for it."""
        self._holders += 1
        self._free.clear()
        try:
            yield self
        finally:
            self._holders -= 1
            if not self._holders:
                self._free.set()

    async def released(self) -> None:
        """Return when nobody holds it."""
        await self._free.wait()

    async def close(self) -> None:
        """Stop both threads."""
        await self.batcher.close()
        await self._tokenizing.close()

    def _checked(self, batch: Sequence[Tokens]) -> Embedded:
        embedded = self.engine.embed(batch)
        if embedded.vectors.shape != (len(batch), self.manifest.dim):
            raise Backend(f"the engine gave {embedded.vectors.shape} for {len(batch)} × {self.manifest.dim}")
        if not (np.isfinite(embedded.vectors).all() and np.isfinite(embedded.norms).all()):
            raise Backend("the engine gave numbers that are not finite")
        return embedded

    def _dimensions(self, options: EmbedOptions) -> int:
        native = self.manifest.dim
        if options.dimensions is None:
            return native
        if not 1 <= options.dimensions <= native:
            raise Invalid(f"must be between 1 and {native}", field="dimensions")
        return options.dimensions

    async def _tokens(self, inputs: Inputs, options: EmbedOptions, field: str) -> list[Tokens]:
        if _is_ids(inputs):
            return [self._given(ids, options, f"{field}.{i}") for i, ids in enumerate(inputs)]
        assert _is_text(inputs)
        for i, text in enumerate(inputs):
            check_text(text, self._settings.max_text_bytes, f"{field}.{i}")
        prompt = self._prompt(options.prompt_name)
        texts = [prompt + text for text in inputs] if prompt else inputs
        limit = self.manifest.max_length * CHARACTERS_PER_TOKEN
        long = [i for i, text in enumerate(texts) if len(text) > limit]
        if long and not options.truncate:
            raise TooLarge(
                f"{len(texts[long[0]])} characters are more than the {limit} that are read for the model's "
                f"{self.manifest.max_length} tokens, and truncate is false",
                field=f"{field}.{long[0]}",
            )
        kept = [text[:limit] if options.direction == "right" else text[-limit:] for text in texts]
        with self._metrics.tokenization.time(), self._admitted(sum(map(len, kept))):
            tokens = await self._tokenizing.tokens(kept, options.direction)
        for i in long:  # what is left of it may well fit the model
            tokens[i] = replace(tokens[i], length=max(tokens[i].length, len(tokens[i]) + 1))
        return tokens

    @contextmanager
    def _admitted(self, characters: int) -> Iterator[None]:
        """While they wait for the tokenizer; one request alone is always admitted."""
        waiting, limit = self._tokenizing_characters, self._settings.max_tokenizing_characters
        if waiting and waiting + characters > limit:
            raise Overloaded(
                f"{waiting} characters wait for the tokenizer and {characters} more would exceed {limit}", retry_after=1
            )
        self._tokenizing_characters += characters
        try:
            yield
        finally:
            self._tokenizing_characters -= characters

    def _given(self, ids: Sequence[int], options: EmbedOptions, field: str) -> Tokens:
        if not ids:
            raise Empty("must hold at least one token id", field=field)
        if min(ids) < 0 or max(ids) >= self.engine.vocab_size:
            foreign = next(i for i in ids if not 0 <= i < self.engine.vocab_size)
            raise ForeignTokens(
                f"token id {foreign} is outside this model's vocabulary of {self.engine.vocab_size}. Ids must come "
                "from this model's own tokenizer; with LangChain's OpenAIEmbeddings set "
                "check_embedding_ctx_length=False so that it sends text",
                field=field,
            )
        limit = self.manifest.max_length
        kept = ids[:limit] if options.direction == "right" else ids[-limit:]
        return Tokens(np.array(kept, dtype=np.int64), len(ids))

    def _prompt(self, name: str | None) -> str:
        if name is None:
            return ""
        if name not in self.manifest.prompts:
            known = ", ".join(sorted(self.manifest.prompts)) or "none"
            raise Invalid(f"the model has no prompt {name!r} (it has: {known})", field="prompt_name")
        return self.manifest.prompts[name]

    def _check_tokens(self, tokens: Sequence[Tokens], options: EmbedOptions, field: str) -> int:
        cut = [i for i, one in enumerate(tokens) if one.truncated]
        if cut and not options.truncate:
            raise TooLarge(
                f"{tokens[cut[0]].length} tokens are more than the model's {self.manifest.max_length}, "
                "and truncate is false",
                field=f"{field}.{cut[0]}",
            )
        total = sum(map(len, tokens))
        if total > self._settings.max_request_tokens:
            raise TooLarge(
                f"{total} tokens are more than the {self._settings.max_request_tokens} of one request", field=field
            )
        self._metrics.input_length.observe([one.length for one in tokens])
        self._metrics.truncated.inc(len(cut))
        return len(cut)


def check_count(texts: int, limit: int, field: str) -> None:
    """Refuse more texts than one request takes.

    Raises:
        TooLarge: more than `limit`.
    """
    if texts > limit:
        raise TooLarge(f"{texts} texts are more than the {limit} of one request", field=field)


def check_text(text: str, limit: int, field: str) -> None:
    """Refuse what can't be embedded or is too much.

    Raises:
        Invalid: a lone surrogate.
        TooLarge: more than `limit` bytes in UTF-8.
    """
    try:
        size = len(text.encode())
    except UnicodeEncodeError:
        raise Invalid("not valid Unicode: a lone surrogate", field=field) from None
    if size > limit:
        raise TooLarge(f"{size} bytes are more than the {limit} of one text", field=field)


def _is_ids(inputs: Inputs) -> TypeGuard[Sequence[Sequence[int]]]:
    return not isinstance(inputs[0], str)


def _is_text(inputs: Inputs) -> TypeGuard[Sequence[str]]:
    return isinstance(inputs[0], str)


def _finish(embedded: Embedded, dimensions: int, normalize: bool) -> Floats:
    vectors, norms = embedded
    if dimensions < vectors.shape[1]:
        vectors = vectors[:, :dimensions]
        if normalize:
            lengths: Any = np.linalg.norm(vectors, axis=1, keepdims=True)
            vectors = vectors / np.maximum(lengths, np.finfo(np.float32).tiny)
    if not normalize:
        vectors = vectors * norms[:, None]
    return np.ascontiguousarray(vectors, dtype=np.float32)
