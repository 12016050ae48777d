"""What a masked language model is asked: whole words hidden from it, at random and anew every time.

Devlin et al., "BERT" (NAACL 2019), section 3.1, with the whole words of their release of May 2019: of the tokens that
are hidden 80 % become [MASK], 10 % a random token, 10 % stay; each token of a word draws for itself.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

import numpy as np
from numpy.typing import NDArray
from tokenizers.models import WordPiece

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

MASK_SHARE = 0.8
RANDOM_SHARE = 0.1


@dataclass(frozen=True)
class Vocabulary:
    """What masking has to know of a tokenizer's tokens, whose ids are all below V."""

    special: NDArray[np.bool_]
    """(V,) [CLS], [SEP], [UNK] and the like, and ids that no token has: never hidden, never drawn"""
    inside: NDArray[np.bool_]
    """(V,) the tokens that go on with a word"""
    mask: int
    cls: int
    unknown: int

    @classmethod
    def of(cls, tokenizer: PreTrainedTokenizerBase) -> Self:
        """The vocabulary of a WordPiece tokenizer.

        Raises:
            ValueError: it is not one, or lacks [MASK], [CLS] or [UNK].
        """
        pieces = getattr(getattr(tokenizer, "backend_tokenizer", None), "model", None)
        if not isinstance(pieces, WordPiece):
            raise ValueError("not a WordPiece tokenizer, so where a word begins is not known")
        named = (tokenizer.mask_token_id, tokenizer.cls_token_id, tokenizer.unk_token_id)
        if None in named:
            raise ValueError("the tokenizer lacks [MASK], [CLS] or [UNK]")
        ids = tokenizer.get_vocab()
        inside = np.zeros(max(ids.values()) + 1, dtype=bool)
        inside[[i for name, i in ids.items() if name.startswith(pieces.continuing_subword_prefix)]] = True
        special = np.ones_like(inside)
        special[list(ids.values())] = False
        special[tokenizer.all_special_ids] = True
        return cls(special, inside & ~special, *named)

    def __len__(self) -> int:
        return len(self.special)


@dataclass(frozen=True)
class Masked:
    """Sequences with tokens hidden, and what they were."""

    ids: NDArray[np.int64]
    """(N, L) as the model sees them"""
    places: NDArray[np.int64]
    """(M,) of the hidden tokens among the N L, ascending"""
    labels: NDArray[np.int64]
    """(M,) what stood there"""


def masked(ids: NDArray[np.int64], vocabulary: Vocabulary, *, share: float, rng: np.random.Generator) -> Masked:
    """Hides words of `ids` (N, L), drawn one by one until they have `share` of all tokens that are not special.

    So there are at most one word's tokens too many, and at least one word if there is any.
    """
    word = words(ids, vocabulary).ravel()
    sizes = np.bincount(word + 1)[1:]
    drawn = rng.permutation(len(sizes))
    before = np.cumsum(sizes[drawn]) - sizes[drawn]
    hidden = np.zeros(len(sizes) + 1, dtype=bool)  # the last one for those of no word, -1
    hidden[drawn[before < max(1, round(share * sizes.sum()))]] = True
    places = np.flatnonzero(hidden[word])

    seen = ids.ravel().copy()
    draw = rng.random(len(places))
    at_random = (draw >= MASK_SHARE) & (draw < MASK_SHARE + RANDOM_SHARE)
    seen[places[draw < MASK_SHARE]] = vocabulary.mask
    seen[places[at_random]] = rng.choice(np.flatnonzero(~vocabulary.special), size=at_random.sum())
    return Masked(seen.reshape(ids.shape), places, ids.ravel()[places])


def words(ids: NDArray[np.int64], vocabulary: Vocabulary) -> NDArray[np.int64]:
    """(N, L) the word that each token of `ids` is of, counted from 0 on; -1 for special tokens.

    A word that was cut where a sequence begins is another one there.
    """
    special = vocabulary.special[ids]
    goes_on = vocabulary.inside[ids]
    goes_on[:, 0] = False
    goes_on[:, 1:] &= ~special[:, :-1]
    word = np.cumsum(~special & ~goes_on).reshape(ids.shape) - 1
    word[special] = -1
    return word
