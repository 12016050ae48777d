"""Conversion of texts to token ids.

Training and serving both use the `tokenizers` library, so they tokenise texts in the same way. A `tokenizer.json` may
come from an untrusted source, so files are refused if a regular expression in them may take exponential time.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer as FastTokenizer

Direction = Literal["right", "left"]
TextPair = tuple[str, str]
"""Two texts that a cross-encoder reads together, such as a query and a document."""
CHARACTERS_PER_TOKEN = 250
"""Maximum characters of a text for each token of the model's maximum length. Longer texts are truncated before they are
tokenised. text-embeddings-inference uses the same number."""
UNKNOWN_WORDS = "a ☃ 𒀀"
"""Text with words that hardly any vocabulary has. If the unknown token is missing, a tokenizer fails on this text."""
HIDDEN_REPETITION = re.compile(r"\(\?#|\(\?[a-wyzA-Z-]*x|\\g<")
"""Pattern of comments, free spacing and group calls in a regular expression, which may hide a repeated group."""


class TokenizerFailure(RuntimeError):
    """The tokenizer failed on a text."""


@dataclass(frozen=True, slots=True)
class Tokens:
    """The tokens of one text or of one pair of texts, after truncation."""

    ids: NDArray[np.int64]
    """Token ids (L,), including special tokens."""
    length: int
    """Number of tokens of the whole text, including special tokens.

    The number is larger than `len(ids)` if the text was truncated.
    """
    types: NDArray[np.int64] | None = None
    """Types of the tokens of a pair of texts, (L,): 0 in the first text, 1 in the second. None for a single text."""

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def truncated(self) -> bool:
        return self.length > len(self.ids)


@dataclass(frozen=True, slots=True)
class Piece:
    """A token of a text, and its position in the text."""

    id: int
    text: str
    """Characters of the token in the text, or the name of a special token."""
    special: bool
    """True if the tokenizer added the token."""
    start: int | None
    """Index of the token's first character. None if the token is special."""
    stop: int | None
    """Index after the token's last character. None if the token is special."""


class Tokenizer:
    """A tokenizer from a `tokenizer.json`. It truncates texts to `max_length` tokens, and pads on the right.

    Truncation and padding settings in the file are ignored. The class truncates texts itself, so that it knows the
    number of removed tokens.
    """

    def __init__(self, file: Path, *, max_length: int) -> None:
        """Read the tokenizer in `file`.

        Raises:
            ValueError: the function `read` refuses the file, or `max_length` leaves no room for a text beside the
                special tokens.
        """
        self._fast = read(file)
        self._fast.no_truncation()
        self._fast.no_padding()
        self._pad_id = _pad_id(self._fast)
        self.max_length = max_length
        # Take the largest id, because ids may have gaps.
        self.vocab_size: int = max(self._fast.get_vocab(with_added_tokens=True).values()) + 1
        if max_length <= self._fast.num_special_tokens_to_add(is_pair=False):
            raise ValueError(f"max_length {max_length} leaves no room for a text beside the special tokens")

    def check_rows(self, rows: int) -> None:
        """Check that an embedding table with `rows` rows has a row for each token.

        Raises:
            ValueError: a token has no row.
        """
        if self.vocab_size > rows:
            raise ValueError(
                f"the tokenizer has {self.vocab_size} tokens, but the embedding table has {rows} rows: tokens were "
                "added without `resize_token_embeddings`"
            )

    def encode(
        self, texts: Sequence[str], *, direction: Direction = "right", max_length: int | None = None
    ) -> list[Tokens]:
        """Return the tokens of each text, truncated to `max_length` tokens. Special tokens are kept.

        A long text loses its last tokens if `direction` is `right`, and its first tokens if `direction` is `left`. The
        default of `max_length` is the tokenizer's maximum length.

        Raises:
            ValueError: a text is not valid Unicode (it has a lone surrogate); the message gives the index of the text.
            TokenizerFailure: the tokenizer failed on a text.
        """
        for i, text in enumerate(texts):
            try:
                text.encode()
            except UnicodeEncodeError:
                raise ValueError(f"text {i} is not valid Unicode: it contains a lone surrogate") from None
        limit = max_length or self.max_length
        with panics_as_errors():
            encodings = self._fast.encode_batch_fast(list(texts), add_special_tokens=True)
        return [_cut(encoding, limit, direction) for encoding in encodings]

    def encode_pairs(self, pairs: Sequence[TextPair], *, direction: Direction = "right") -> list[Tokens]:
        """Return the tokens of each pair of texts. Both texts together are truncated to the tokenizer's maximum length.

        The longer text is truncated first, as by transformers' `longest_first`. A truncated text loses its last tokens
        if `direction` is `right`, and its first tokens if `direction` is `left`.

        Raises:
            TokenizerFailure: the tokenizer failed on a text.
        """
        with panics_as_errors():
            encodings = self._fast.encode_batch_fast(list(pairs), add_special_tokens=True)
        return [_cut_pair(encoding, self.max_length, direction) for encoding in encodings]

    def pieces(self, texts: Sequence[str], *, special_tokens: bool = True) -> list[list[Piece]]:
        """Return every token of each text, without truncation.

        Raises:
            TokenizerFailure: the tokenizer failed on a text.
        """
        with panics_as_errors():
            encodings = self._fast.encode_batch(list(texts), add_special_tokens=special_tokens)
        return [_pieces(text, encoding) for text, encoding in zip(texts, encodings, strict=True)]

    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        """Return the text of `ids`.

        Raises:
            ValueError: an id is outside the vocabulary.
            TokenizerFailure: the tokenizer failed on the ids.
        """
        for i in ids:
            if not 0 <= i < self.vocab_size:
                raise ValueError(f"token id {i} is outside the vocabulary of {self.vocab_size}")
        with panics_as_errors():
            return str(self._fast.decode(list(ids), skip_special_tokens=skip_special_tokens))

    def pad(self, batch: Sequence[Tokens], *, length: int = 0) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return `input_ids` and `attention_mask`, each (N, L).

        L is the length of the longest text in the batch, but at least `length`.
        """
        longest = max(length, *map(len, batch), 0)
        ids = np.full((len(batch), longest), self._pad_id, dtype=np.int64)
        mask = np.zeros((len(batch), longest), dtype=np.int64)
        for row, tokens in enumerate(batch):
            ids[row, : len(tokens)] = tokens.ids
            mask[row, : len(tokens)] = 1
        return ids, mask


def read(file: Path) -> FastTokenizer:
    """Read the tokenizer in `file`.

    Raises:
        ValueError: the file is not a tokenizer, or has a regular expression that may take exponential time.
    """
    content = file.read_bytes()
    try:
        patterns = list(_patterns(json.loads(content)))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{file.name}: not JSON ({error})") from None
    if slow := next((one for one in patterns if repeats_a_group(one)), None):
        raise ValueError(
            f"{file.name}: the regular expression {slow[:80]!r} repeats a group, which may take exponential time"
        )
    try:
        with panics_as_errors():
            return FastTokenizer.from_buffer(content)
    except Exception as error:  # The library has no error class of its own.
        raise ValueError(f"{file.name}: {error}") from None


@contextmanager
def panics_as_errors() -> Iterator[None]:
    """Convert a panic or a plain `Exception` of the `tokenizers` library in the `with` block to a `TokenizerFailure`.

    A panic is not an `Exception`, so code that handles every `Exception` would not catch it.

    Raises:
        TokenizerFailure: the library panicked or raised a plain `Exception`, for example because a regular expression
            exceeded its step limit, or the vocabulary lacks the token for unknown words.
    """
    try:
        yield
    except BaseException as error:
        # No module of pyo3 exports the class of panics, so it is found by its name.
        if type(error) is not Exception and type(error).__name__ != "PanicException":
            raise
        raise TokenizerFailure(f"the tokenizer failed: {error}") from None


def repeats_a_group(pattern: str) -> bool:
    """Return whether a regular expression repeats a group, so that a search may take exponential time.

    Tokenizers of known model families repeat only characters and character classes. Comments, free spacing and group
    calls count as repetitions, because they could hide a repeated group.
    """
    if HIDDEN_REPETITION.search(pattern):
        return True
    classes, i = 0, 0
    while i < len(pattern):
        match pattern[i]:
            case "\\":
                i += 1
            case "[":
                classes += 1
            case "]":
                classes = max(0, classes - 1)
            case ")" if not classes and pattern[i + 1 : i + 2] in {"*", "+", "{"}:
                return True
        i += 1
    return False


def _patterns(value: Any) -> Iterator[str]:
    ahead = [value]
    while ahead:
        one = ahead.pop()
        if isinstance(one, dict):
            if isinstance(pattern := one.get("Regex"), str):
                yield pattern
            ahead += one.values()
        elif isinstance(one, list):
            ahead += one


def _pieces(text: str, encoding: Any) -> list[Piece]:
    return [
        Piece(id, name, True, None, None) if special else Piece(id, text[start:stop], False, start, stop)
        for id, name, special, (start, stop) in zip(
            encoding.ids, encoding.tokens, encoding.special_tokens_mask, encoding.offsets, strict=True
        )
    ]


def _cut(encoding: Any, limit: int, direction: Direction) -> Tokens:
    ids = np.asarray(encoding.ids, dtype=np.int64)
    length = len(ids)
    if length <= limit:
        return Tokens(ids, length)
    special = np.asarray(encoding.special_tokens_mask, dtype=bool)
    first, last = (int(edge) for edge in np.flatnonzero(~special)[[0, -1]])
    room = limit - (first + length - 1 - last)
    kept = slice(first, first + room) if direction == "right" else slice(last + 1 - room, last + 1)
    return Tokens(np.concatenate([ids[:first], ids[kept], ids[last + 1 :]]), length)


def _cut_pair(encoding: Any, limit: int, direction: Direction) -> Tokens:
    ids, types = (np.asarray(one, dtype=np.int64) for one in (encoding.ids, encoding.type_ids))
    length = len(ids)
    if length <= limit:
        return Tokens(ids, length, types)
    part = np.array([-1 if one is None else one for one in encoding.sequence_ids])
    first, second = (np.flatnonzero(part == one) for one in (0, 1))
    kept = np.flatnonzero(part == -1)
    short, long = sorted((len(first), len(second)))
    room = limit - len(kept)
    short, long = (short, room - short) if 2 * short <= room else (room // 2, room - room // 2)
    sizes = (short, long) if len(first) <= len(second) else (long, short)
    for rows, size in zip((first, second), sizes, strict=True):
        kept = np.append(kept, rows[:size] if direction == "right" else rows[len(rows) - size :])
    kept.sort()
    return Tokens(ids[kept], length, types[kept])


def padded_types(batch: Sequence[Tokens], shape: tuple[int, ...]) -> NDArray[np.int64]:
    """Return the token types (N, L) of padded pairs. Padding and single texts have the type 0."""
    types = np.zeros(shape, dtype=np.int64)
    for row, tokens in enumerate(batch):
        if tokens.types is not None:
            types[row, : len(tokens)] = tokens.types
    return types


def _pad_id(fast: FastTokenizer) -> int:
    """Return the id for padding tokens.

    The tokenizer's own padding token is used if there is one. Otherwise any id is suitable, because padding is masked.
    """
    found = (fast.token_to_id(name) for name in ("[PAD]", "<pad>"))
    return next((i for i in found if i is not None), 0)
