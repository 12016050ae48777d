"""Embedding of texts or token ids with one encoder: limits, prompts, tokenisation, batching, truncation and scaling."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from time import perf_counter

import numpy as np

from models.bundle.bundle import CROSS_ENCODER, ENCODER, Manifest
from models.bundle.tokenizer import CHARACTERS_PER_TOKEN, Piece, TextPair, Tokens
from serving.errors import Backend, Invalid, Overloaded, TooLarge
from serving.inference.batcher import Batcher
from serving.inference.embeddings import (
    AS_THEY_ARE,
    Computed,
    Embeddings,
    EmbedOptions,
    Inputs,
    TokenEmbeddings,
    finished,
)
from serving.inference.engine import EachToken, Embedded, Engine, Floats, Mixed, Model
from serving.inference.fair_queue import Answer, EngineSlots
from serving.inference.inputs import At, InputPreparation
from serving.inference.tokenizing import Tokenizing, in_turns
from serving.inference.vector_cache import Submit, VectorCache
from serving.operations.bounds import check_count, check_some
from serving.operations.context import BULK, record
from serving.operations.limits import PATIENT, charge, check_no_debt
from serving.operations.metrics import Metrics, Timing
from serving.settings import Settings

NOT_MATRYOSHKA = "not-matryoshka"
"""Code of a warning: vectors were truncated to a number of dimensions for which the encoder had no Matryoshka
training."""
NOT_FINITE = "the engine returned numbers that are not finite"
KINDS = {
    ENCODER: "{name!r} is an encoder, which can't score pairs: use a cross-encoder",
    CROSS_ENCODER: "{name!r} is a cross-encoder, which can't embed texts: use it with /rerank or /predict",
}
"""Error messages for requests that name a model of the wrong kind, by the kind of this model."""
NO_PROMPT = {"default_prompt": None, "default_prompt_name": None}
"""Server settings for a cross-encoder. They switch off the default prompt, because a cross-encoder has no prompts."""
TOKENS_SHARE = 8
"""Divisor of the configured cache bytes. The token cache gets `1 / TOKENS_SHARE` of these bytes, and the vector cache
gets the remaining bytes."""


def check_kind(manifest: Manifest, kind: str) -> None:
    """Raise `Invalid` if the model is not of the requested `kind`."""
    if kind != manifest.kind:
        raise Invalid(KINDS[manifest.kind].format(name=manifest.name), field="model")


class Embedder:
    """A loaded encoder: its model, its engine, its batcher and its limits.

    Embedders with the same `shared` slots take turns to run their batches. The methods raise `Empty`, `TooLarge`,
    `Invalid` or `ForeignTokens` for an invalid request, and `Overloaded` or `Backend` if the server can't answer now.

    Raises:
        EngineError: the bundle does not have the server's default prompt.
    """

    def __init__(
        self, engine: Engine, model: Model, settings: Settings, metrics: Metrics, shared: EngineSlots | None = None
    ) -> None:
        self.engine, self.model, self.manifest = engine, model, model.manifest
        self.overtaking = engine.device == "cpu" and settings.api_keys_file is not None
        """True if a batch of one key may run in an extra thread while batches of other keys occupy all streams."""
        self._holders = 0
        self._free = asyncio.Event()
        self._free.set()
        self._settings = settings
        self._metrics = metrics
        self._tokenizing = Tokenizing(
            engine.tokenize, settings.cache_bytes // TOKENS_SHARE, settings.max_tokenizing_characters
        )
        max_batch_tokens = settings.max_batch_tokens or engine.batch_tokens
        self.batcher = Batcher(
            self._checked,
            max_batch_tokens=max_batch_tokens,
            streams=engine.streams,
            shared=shared,
            length_step=engine.length_step,
            overtaking=self.overtaking,
            max_queued_tokens=settings.max_queued_tokens,
            observe=partial(
                metrics.batch,
                length_step=engine.length_step,
                max_length=model.manifest.max_length,
                max_tokens=max_batch_tokens,
            ),
        )
        prompting = settings if self.manifest.kind == ENCODER else settings.model_copy(update=NO_PROMPT)
        self.preparation = InputPreparation(engine, self.manifest, prompting, self._tokenizing, self.batcher)
        self._embedded: Submit = self.batcher.submit
        if settings.cache_bytes:
            self._embedded = VectorCache(
                self.batcher.submit, settings.cache_bytes - settings.cache_bytes // TOKENS_SHARE, metrics.cached
            ).embed

    async def embed(
        self,
        inputs: Inputs,
        options: EmbedOptions,
        field: str = "inputs",
        at: At | None = None,
        *,
        beside: int = 0,
        prompts: Sequence[str] | None = None,
        part: int | None = None,
    ) -> Embeddings:
        """Embed texts or token ids.

        In error messages, `field` names the inputs, and `at` maps an input's index to the input's name.

        Token ids get no prompt and no special tokens. They are truncated like texts. `beside` is the number of inputs
        that do not count towards the limit on texts, such as the query of a reranking request. `prompts` has one prompt
        for each input.

        A caller may split a large list of texts into several calls. The caller numbers the calls from 0, and passes the
        number as `part`. The rate limit of the API key can refuse only part 0. The limits on the texts and the tokens
        of one request do not apply to parts. A full queue can refuse any part with `Overloaded`. If a part after part 0
        is refused, the caller must repeat this part.
        """
        check_kind(self.manifest, ENCODER)
        with self._metrics.request(len(inputs), retried=bool(part) or PATIENT.get()):
            began = perf_counter()
            at = at or (lambda i: f"{field}.{i}")
            if part is None:
                check_count(len(inputs) - beside, self._settings.max_request_texts, field)
            check_some(inputs, field)
            warning = self._checked_options(options)
            tokens = await self.preparation.tokens(inputs, options, at, prompts)
            answer, computed = await self._run(
                tokens, self._embedded, inputs, field, began=began, warning=warning, part=part
            )
            return Embeddings(
                **vars(computed),
                vectors=finished(answer.vectors, answer.norms, options),
                unit=answer.vectors,
                int8_limit=self.model.int8_limit,
            )

    async def embed_tokens(
        self,
        inputs: Inputs,
        options: EmbedOptions,
        field: str = "inputs",
        at: At | None = None,
        *,
        most: int,
        beside: int = 0,
        prompts: Sequence[str] | None = None,
    ) -> TokenEmbeddings:
        """Return one vector for each token of the inputs, including the special tokens of texts.

        `TooLarge` is raised if all token vectors together have more than `most` components, and `Invalid` if the bundle
        has no token vectors. See `embed` for the other parameters.
        """
        check_kind(self.manifest, ENCODER)
        with self._metrics.request(len(inputs)):
            began = perf_counter()
            at = at or (lambda i: f"{field}.{i}")
            if (width := self.engine.token_dim) is None:
                raise Invalid(
                    f"the bundle of {self.manifest.name!r} was exported without token vectors: export it again by "
                    "`isosphere export`",
                    field="model",
                )
            check_count(len(inputs) - beside, self._settings.max_request_texts, field)
            check_some(inputs, field)
            tokens = await self.preparation.tokens(inputs, options, at, prompts)
            total, limit = sum(map(len, tokens)), min(most // width, self._settings.max_request_tokens)
            if total > limit:
                raise TooLarge(
                    f"the texts have {total} tokens, but a request for token vectors may have at most {limit}: "
                    "send fewer texts",
                    field=field,
                )
            each = [EachToken(one.ids, one.length) for one in tokens]
            answer, computed = await self._run(each, self.batcher.submit, inputs, field, began=began)
            return TokenEmbeddings(**vars(computed), vectors=answer.vectors, norms=answer.norms, texts=each)

    async def score(
        self, pairs: Sequence[TextPair], options: EmbedOptions, field: str = "inputs"
    ) -> tuple[Floats, Computed]:
        """Return the logits (N,) of a cross-encoder for N pairs of texts, and facts about the computation.

        In error messages, `field` names the pairs.
        """
        check_kind(self.manifest, CROSS_ENCODER)
        with self._metrics.request(len(pairs)):
            began = perf_counter()
            check_count(len(pairs), self._settings.max_request_texts, field)
            check_some(pairs, field)
            tokens = await self.preparation.pair_tokens(pairs, options, field)
            texts = [text for pair in pairs for text in pair]
            answer, computed = await self._run(tokens, self.batcher.submit, texts, field, began=began)
            return answer.vectors[:, 0], computed

    async def _run(
        self,
        tokens: Sequence[Tokens],
        submit: Submit,
        inputs: Inputs,
        field: str,
        *,
        began: float,
        warning: str | None = None,
        part: int | None = None,
    ) -> tuple[Answer, Computed]:
        """Charge the `tokens` of `inputs` to the API key of the request, and embed these tokens with `submit`.

        `began` is the time at which the request arrived. See `embed` for `part`.
        """
        total, truncated = sum(len(one.ids) for one in tokens), sum(one.truncated for one in tokens)
        lengths = [one.length for one in tokens]
        if part is None:
            check_count(total, self._settings.max_request_tokens, field, "tokens")
        charge(total, begun=bool(part))
        tokenized = perf_counter()
        record("tokenise", began, tokenized, texts=len(tokens), tokens=total)
        try:
            answer = await submit(tokens, bulk=BULK.get())
        except Overloaded:  # refused before any work was done
            charge(-total, begun=True)
            raise
        done = perf_counter()
        timing = Timing(
            tokenization=tokenized - began,
            queue=answer.begun - tokenized,
            inference=done - answer.begun,
            total=done - began,
        )
        self._metrics.lengths(lengths, truncated=truncated)
        self._metrics.timing(timing, len(tokens))
        record("queue", tokenized, answer.begun)
        record("infer", answer.begun, done)
        return answer, Computed(
            characters=sum(map(len, inputs)),
            tokens=total,
            truncated=truncated,
            timing=timing,
            device=self.engine.device,
            warning=warning,
            manifest=self.manifest,
        )

    async def pieces(
        self, texts: Sequence[str], *, special_tokens: bool, options: EmbedOptions, field: str = "inputs"
    ) -> list[list[Piece]]:
        """Return all tokens of each text with its prompt, without truncation. Charge these tokens to the API key."""
        check_no_debt()
        found = await self._pieces(texts, special_tokens=special_tokens, options=options, field=field)
        charge(sum(map(len, found)), begun=True)
        return found

    async def _pieces(
        self,
        texts: Sequence[str],
        *,
        special_tokens: bool,
        options: EmbedOptions,
        field: str,
        most: int | None = None,
    ) -> list[list[Piece]]:
        """Return all tokens, or the first `most` tokens, of each text with its prompt."""
        check_count(len(texts), self._settings.max_request_texts, field)
        check_some(texts, field)
        prompted = self.preparation.prompted(texts, options, lambda i: f"{field}.{i}")
        limit = self._settings.max_request_tokens
        found: list[list[Piece]] = []
        tokens = 0
        with self._tokenizing.admitted(sum(map(len, prompted))):
            for turn in in_turns(prompted):
                whole = await self._tokenizing.run(partial(self.engine.pieces, turn, special_tokens))
                pieces = [one[:most] for one in whole]
                found += pieces
                tokens += sum(map(len, pieces))
                if tokens > limit:
                    raise TooLarge(f"more than the {limit} tokens of one request", field=field)
        return found

    async def beginnings(self, texts: Sequence[str], tokens: int, field: str) -> tuple[Sequence[str], list[int]]:
        """Truncate each text to `tokens` tokens. Return all texts, and the indices of the texts that were truncated.

        If the model's maximum length is at most `tokens`, return the texts unchanged and no indices, because the model
        truncates the texts later.
        """
        if tokens >= self.preparation.length:
            return texts, []
        begun = [text[: tokens * CHARACTERS_PER_TOKEN] for text in texts]
        pieces = await self._pieces(begun, special_tokens=False, options=AS_THEY_ARE, field=field, most=tokens + 1)
        cut = [
            i
            for i, (one, own, text) in enumerate(zip(begun, pieces, texts, strict=True))
            if len(own) > tokens or len(one) < len(text)
        ]
        return [text[: own[:tokens][-1].stop] if own else text for text, own in zip(begun, pieces, strict=True)], cut

    async def decoded(self, ids: Sequence[Sequence[int]], *, skip_special_tokens: bool) -> list[str]:
        check_some(ids, "ids", "token id")
        check_count(len(ids), self._settings.max_request_texts, "ids")
        for i, one in enumerate(ids):
            self.preparation.check_ids(one, f"ids.{i}")
        charge(sum(map(len, ids)))
        return await self._tokenizing.run(lambda: [self.engine.decode(one, skip_special_tokens) for one in ids])

    async def probe(self) -> None:
        """Embed a short text to test whether the engine works again.

        The metrics of batches and of the queue include this text, and the metrics of requests do not.
        """
        golden = self.manifest.golden
        await self.batcher.submit(await self._tokenizing.tokens([golden[0].text if golden else "a"], "right"))

    @contextmanager
    def held(self) -> Iterator[Embedder]:
        """Keep this encoder open while the `with` block runs, even if a reload replaces the encoder."""
        self._holders += 1
        self._free.clear()
        try:
            yield self
        finally:
            self._holders -= 1
            if not self._holders:
                self._free.set()

    async def close_when_free(self) -> None:
        """Wait until no request uses the encoder, then close it. If the wait is cancelled, close it at once."""
        try:
            await self._free.wait()
        finally:
            await self.close()

    async def close(self) -> None:
        await self.batcher.close()
        await self._tokenizing.close()

    def _checked(self, batch: Sequence[Tokens], *, alone: bool) -> Embedded | Mixed:
        tokenwise = [isinstance(tokens, EachToken) for tokens in batch]
        if not any(tokenwise):
            return self._checked_texts(batch, alone=alone)
        texts = [tokens for tokens, each in zip(batch, tokenwise, strict=True) if not each]
        whole = iter(zip(*self._checked_texts(texts, alone=False), strict=True) if texts else ())
        every = [tokens for tokens, each in zip(batch, tokenwise, strict=True) if each]
        vectors = iter(self._checked_tokens(every, alone=alone))
        found = [(own := next(vectors), np.linalg.norm(own, axis=1)) if each else next(whole) for each in tokenwise]
        return Mixed(*zip(*found, strict=True))

    def _checked_texts(self, batch: Sequence[Tokens], *, alone: bool) -> Embedded:
        embedded = self.engine.embed(batch, alone=alone)
        if embedded.vectors.shape != (len(batch), self.manifest.dim):
            raise Backend(
                f"the engine returned vectors of shape {embedded.vectors.shape}, not ({len(batch)}, "
                f"{self.manifest.dim})"
            )
        if not (np.isfinite(embedded.vectors).all() and np.isfinite(embedded.norms).all()):
            raise Backend(NOT_FINITE)
        return embedded

    def _checked_tokens(self, batch: Sequence[Tokens], *, alone: bool) -> Sequence[Floats]:
        vectors = self.engine.embed_tokens(batch, alone=alone)
        if not all(np.isfinite(one).all() for one in vectors):
            raise Backend(NOT_FINITE)
        return vectors

    def _checked_options(self, options: EmbedOptions) -> str | None:
        """Raise `Invalid` if the encoder does not support the options.

        Return the warning `NOT_MATRYOSHKA` if the encoder had no Matryoshka training for the requested number of
        dimensions, else None.
        """
        native = self.manifest.dim
        if options.dimensions is not None and not 1 <= options.dimensions <= native:
            raise Invalid(f"must be between 1 and {native}", field=options.dimensions_field)
        if options.calibrated and self.model.int8_limit is None:
            raise Invalid(
                "this bundle has no calibrated range for int8 and uint8: export it by `isosphere export`, or "
                "use binary or ubinary"
            )
        whole = options.dimensions in (None, native)
        return None if whole or options.dimensions in self.model.matryoshka else NOT_MATRYOSHKA
