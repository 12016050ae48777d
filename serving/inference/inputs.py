"""Preparation of a model's inputs: texts with their prompts, or token ids from a request.

Texts are truncated to the model's maximum length. The prompt comes from the request, from the bundle by name or role,
or from the server's default.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property, partial
from typing import TypeGuard, cast

import numpy as np

from models.bundle.bundle import Manifest
from models.bundle.prompts import DOCUMENT, QUERY, prompt_for
from models.bundle.tokenizer import CHARACTERS_PER_TOKEN, TextPair, Tokens
from serving.errors import Empty, ForeignTokens, Invalid, TooLarge
from serving.inference.batcher import Batcher
from serving.inference.embeddings import AS_DOCUMENTS, EmbedOptions, Inputs, Role
from serving.inference.engine import Engine, EngineError
from serving.inference.tokenizing import Tokenizing, in_turns
from serving.operations.bounds import check_count, check_text
from serving.operations.limits import Caller, current_caller
from serving.settings import Settings

NAMES: Mapping[Role, tuple[str, ...]] = {
    "search_query": QUERY,
    "search_document": DOCUMENT,
    "classification": ("classification",),
    "clustering": ("clustering",),
}
"""Names by which bundles store their prompts, for each role."""
MAX_BYTES = 10_000
"""Maximum bytes of a prompt. A prompt is repeated before every text, so it must be short."""
At = Callable[[int], str]
"""Function that returns the name of an input in error messages, given its index."""
CHARACTERS_EACH = 5
"""Assumed number of characters per token, to estimate token counts before texts are tokenised."""


class Prompts:
    """The prompts of a bundle by name, and the server's default prompt.

    Raises:
        EngineError: the bundle does not have the default prompt.
    """

    def __init__(self, known: Mapping[str, str], settings: Settings) -> None:
        self._known = known
        self._of_role = {role: prompt_for(known, names) for role, names in NAMES.items()}
        name = settings.default_prompt_name
        if name is not None and name not in known:
            raise EngineError(f"--default-prompt-name: the bundle has no prompt {name!r} (it has: {self._names})")
        self._default = settings.default_prompt or (known[name] if name is not None else "")

    def before(self, options: EmbedOptions) -> str:
        """Return the prompt for the texts of a request.

        Raises:
            Invalid: `prompt_name` is unknown, the request gives two prompts, or the prompt is not Unicode.
            TooLarge: the prompt has more than `MAX_BYTES`.
        """
        if options.prompt is not None and options.prompt_name is not None:
            raise Invalid("give only one of prompt and prompt_name", field="prompt")
        if options.prompt is not None:
            check_text(options.prompt, MAX_BYTES, "prompt")
            return options.prompt
        if options.prompt_name is not None:
            if options.prompt_name not in self._known:
                names = f"(it has: {self._names})"
                raise Invalid(f"the model has no prompt {options.prompt_name!r} {names}", field="prompt_name")
            return self._known[options.prompt_name]
        return (self._of_role[options.role] or "") if options.role else self._default

    def of_a_search(self, texts: int, options: EmbedOptions) -> list[str]:
        """Return the prompt for a query, followed by one prompt for each of `texts` documents."""
        asking = self.before(replace(options, role="search_query"))
        answering = self.before(replace(options, role="search_document"))
        return [asking, *[answering] * texts]

    @property
    def _names(self) -> str:
        return ", ".join(sorted(self._known)) or "none"


class InputPreparation:
    """Converter of a request's texts or token ids to the tokens of one encoder.

    Before texts are tokenised, the converter checks whether the `batcher`'s queue has room for them.
    """

    def __init__(
        self, engine: Engine, manifest: Manifest, settings: Settings, tokenizing: Tokenizing, batcher: Batcher
    ) -> None:
        self._engine, self._manifest, self._settings = engine, manifest, settings
        self._tokenizing, self._batcher = tokenizing, batcher
        self.prompts = Prompts(manifest.prompts, settings)
        self._coming: Counter[Caller | None] = Counter()
        """Estimated tokens of the texts that are being tokenised, by API key. Checks of the queue's room add these
        tokens to the queued tokens."""

    @cached_property
    def special_ids(self) -> list[int]:
        """Ids of the special tokens that the tokenizer adds to a text."""
        return [piece.id for piece in self._engine.pieces([""], special_tokens=True)[0]]

    @cached_property
    def length(self) -> int:
        """Maximum number of a text's tokens that the model reads, without special tokens."""
        return self._manifest.max_length - len(self.special_ids)

    @cached_property
    def document_length(self) -> int:
        """Maximum number of a document's tokens that the model reads after the prompt for documents."""
        prompt = self.prompts.before(AS_DOCUMENTS)
        return self.length - len(self._engine.pieces([prompt], special_tokens=False)[0])

    async def cut(self, texts: Sequence[str]) -> int:
        """Return the number of documents in `texts` that exceed the model's maximum length."""
        prompt = self.prompts.before(AS_DOCUMENTS)
        # In an ASCII text, the number of tokens is at most the number of characters, plus one for a leading space. A
        # character beyond ASCII can become several tokens.
        short = self.length - len(prompt) if prompt.isascii() else 0
        doubtful = [text for text in texts if len(text) >= short or not text.isascii()]
        return sum(tokens.truncated for tokens in await self.tokens(doubtful, AS_DOCUMENTS, str)) if doubtful else 0

    def prompted(
        self, texts: Sequence[str], options: EmbedOptions, at: At, prompts: Sequence[str] | None = None
    ) -> Sequence[str]:
        """Check the texts, and put a prompt before each.

        `prompts` has one prompt for each text. If `prompts` is None, all texts get the prompt that `options` select.
        `at` names the text in error messages.

        Raises:
            Invalid: a text is not Unicode, or the prompt is not valid.
            TooLarge: a text or the prompt is too long.
        """
        limit = self._settings.max_text_bytes
        for i, text in enumerate(texts):
            if not text.isascii() or len(text) > limit:
                check_text(text, limit, at(i))
        if prompts is not None:
            return [prompt + text for prompt, text in zip(prompts, texts, strict=True)]
        prompt = self.prompts.before(options)
        return [prompt + text for text in texts] if prompt else texts

    async def tokens(
        self, inputs: Inputs, options: EmbedOptions, at: At, prompts: Sequence[str] | None = None
    ) -> list[Tokens]:
        """Tokenise texts with their prompts, or check given token ids. Return the tokens of each input.

        Inputs longer than the model's maximum length are truncated, or refused if `options.truncate` is false.

        `prompts` has one prompt for each text. If `prompts` is None, all texts get the prompt that `options` select.
        `at` names an input in error messages.

        Raises:
            Empty, TooLarge, Invalid, ForeignTokens: the request is not valid.
            Overloaded: the tokenizer's queue or the encoder's queue has no room.
        """
        if _is_texts(inputs):
            tokens = await self._tokenized(self.prompted(inputs, options, at, prompts), options, at)
        else:
            tokens = self._given(cast("Sequence[Sequence[int]]", inputs), options, at)
        self._check_cut(tokens, options, at)
        return tokens

    async def _tokenized(self, texts: Sequence[str], options: EmbedOptions, at: At) -> list[Tokens]:
        limit = self._manifest.max_length * CHARACTERS_PER_TOKEN
        long = [i for i, text in enumerate(texts) if len(text) > limit]
        if long and not options.truncate:
            raise TooLarge(
                f"{len(texts[long[0]])} characters are more than the {limit} that the server reads for the "
                f"model's {self._manifest.max_length} tokens, and truncate is false",
                field=at(long[0]),
            )
        kept = [text[:limit] if options.direction == "right" else text[-limit:] for text in texts]
        about = sum(min(len(text) // CHARACTERS_EACH, self._manifest.max_length) for text in kept)
        # Under overload, refuse a request before its texts are tokenised. With a cache, tokenise first, because the
        # vectors may be cached.
        caller = current_caller()
        if (self._batcher.queued_tokens or self._coming) and not self._settings.cache_bytes:
            self._batcher.check_room(about, caller, self._coming)
        self._coming[caller] += about
        try:
            with self._tokenizing.admitted(sum(map(len, kept))):
                tokens = await self._tokenizing.tokens(kept, options.direction)
        finally:
            self._coming[caller] -= about
            if not self._coming[caller]:
                del self._coming[caller]
        _count_as_truncated(tokens, long)
        return tokens

    async def pair_tokens(self, pairs: Sequence[TextPair], options: EmbedOptions, field: str) -> list[Tokens]:
        """Return the tokens of each pair of texts, truncated together to the model's maximum length.

        In error messages, `field` names the pairs.

        Raises:
            Invalid: a text is not Unicode, or `options` have a prompt, which a cross-encoder does not support.
            TooLarge: a text or the request is too long.
            Overloaded: the tokenizer's queue has no room.
        """
        if options.prompt is not None or options.prompt_name is not None:
            raise Invalid(
                "a cross-encoder does not support prompts",
                field="prompt" if options.prompt_name is None else "prompt_name",
            )
        places = {text: i for i in reversed(range(len(pairs))) for text in pairs[i]}  # a query is in every pair
        for text, i in places.items():
            check_text(text, self._settings.max_text_bytes, f"{field}.{i}")
        limit = self._manifest.max_length * CHARACTERS_PER_TOKEN
        long = [i for i, pair in enumerate(pairs) if max(map(len, pair)) > limit]
        if long and not options.truncate:
            raise TooLarge(f"has more than {limit} characters, and truncate is false", field=f"{field}.{long[0]}")
        side = slice(limit) if options.direction == "right" else slice(-limit, None)
        cut = {text: text[side] for text in places}
        kept = [(cut[first], cut[second]) for first, second in pairs]
        # A query counts once for each text, because the tokenizer reads it again for each.
        characters = sum(map(_characters, kept))
        check_count(characters, self._settings.max_tokenizing_characters, field, "characters, counted for each pair,")
        tokens: list[Tokens] = []
        total = 0
        with self._tokenizing.admitted(characters):
            for turn in in_turns(kept, _characters):
                some = await self._tokenizing.run(partial(self._engine.tokenize_pairs, turn, options.direction))
                tokens += some
                total += sum(map(len, some))
                check_count(total, self._settings.max_request_tokens, field, "tokens")
        _count_as_truncated(tokens, long)
        self._check_cut(tokens, options, lambda i: f"{field}.{i}")
        return tokens

    def _check_cut(self, tokens: Sequence[Tokens], options: EmbedOptions, at: At) -> None:
        if options.truncate:
            return
        for i, one in enumerate(tokens):
            if one.truncated:
                raise TooLarge(
                    f"{one.length} tokens are more than the model's {self._manifest.max_length}, and truncate is false",
                    field=at(i),
                )

    def _given(self, inputs: Sequence[Sequence[int]], options: EmbedOptions, at: At) -> list[Tokens]:
        if self._settings.token_arrays == "reject":
            raise ForeignTokens(
                "this server accepts texts but no token ids; with LangChain's OpenAIEmbeddings, set "
                "check_embedding_ctx_length=False so that it sends text",
                field=at(0),
            )
        if options.prompt or options.prompt_name:
            raise Invalid("can't be combined with token ids", field="prompt" if options.prompt else "prompt_name")
        for i, ids in enumerate(inputs):
            self.check_ids(ids, at(i))
        limit = self._manifest.max_length
        kept = slice(limit) if options.direction == "right" else slice(-limit, None)
        return [Tokens(np.array(ids[kept], dtype=np.int64), len(ids)) for ids in inputs]

    def check_ids(self, ids: Sequence[int], field: str) -> None:
        """Raise `Empty` if there are no ids, and `ForeignTokens` if an id is not in the model's vocabulary."""
        size = self._engine.vocab_size
        if not ids:
            raise Empty("must contain at least one token id", field=field)
        if min(ids) < 0 or max(ids) >= size:
            foreign = next(i for i in ids if not 0 <= i < size)
            raise ForeignTokens(
                f"token id {foreign} is outside this model's vocabulary of {size}. Ids must come "
                "from this model's own tokenizer; with LangChain's OpenAIEmbeddings set "
                "check_embedding_ctx_length=False so that it sends text",
                field=field,
            )


def _characters(pair: TextPair) -> int:
    return len(pair[0]) + len(pair[1])


def _count_as_truncated(tokens: list[Tokens], cut: Sequence[int]) -> None:
    """Mark the inputs with the indices `cut` as truncated, even if their tokens fit the model.

    The texts of these inputs were shortened before tokenisation.
    """
    for i in cut:
        tokens[i] = replace(tokens[i], length=max(tokens[i].length, len(tokens[i]) + 1))


def _is_texts(inputs: Inputs) -> TypeGuard[Sequence[str]]:
    return isinstance(inputs[0], str)
