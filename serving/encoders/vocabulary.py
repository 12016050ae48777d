"""Token queries: the tokens of a text, the text of token ids, and the valid ids."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from models.tokenizer import Piece
from serving.encoders.tokenizing import Tokenizing, in_turns
from serving.errors import Empty, ForeignTokens, TooLarge
from serving.ports import Engine


class Vocabulary:
    """Vocabulary of an engine, used in its tokenizer's thread."""

    def __init__(self, engine: Engine, tokenizing: Tokenizing) -> None:
        self._engine = engine
        self._tokenizing = tokenizing

    def check(self, ids: Sequence[int], field: str) -> None:
        """Refuse ids that are not in the model's vocabulary.

        Raises:
            Empty: there are no ids.
            ForeignTokens: an id is outside the vocabulary.
        """
        size = self._engine.vocab_size
        if not ids:
            raise Empty("must hold at least one token id", field=field)
        if min(ids) < 0 or max(ids) >= size:
            foreign = next(i for i in ids if not 0 <= i < size)
            raise ForeignTokens(
                f"token id {foreign} is outside this model's vocabulary of {size}. Ids must come "
                "from this model's own tokenizer; with LangChain's OpenAIEmbeddings set "
                "check_embedding_ctx_length=False so that it sends text",
                field=field,
            )

    async def pieces(
        self, texts: Sequence[str], *, special_tokens: bool, at_most: int, field: str
    ) -> list[list[Piece]]:
        """Return every token of each text, without truncation.

        Raises:
            TooLarge: there are more than `at_most` tokens.
        """
        found: list[list[Piece]] = []
        tokens = 0
        for turn in in_turns(texts):
            pieces = await self._tokenizing.run(partial(self._engine.pieces, turn, special_tokens))
            tokens += sum(map(len, pieces))
            if tokens > at_most:
                raise TooLarge(f"more than the {at_most} tokens of one request", field=field)
            found += pieces
        return found

    async def decoded(self, ids: Sequence[Sequence[int]], *, skip_special_tokens: bool, field: str) -> list[str]:
        """Decode each list of token ids."""
        for i, one in enumerate(ids):
            self.check(one, f"{field}.{i}")
        return await self._tokenizing.run(lambda: [self._engine.decode(one, skip_special_tokens) for one in ids])
