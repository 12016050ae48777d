"""A BERT for masked language modelling on sequences of packed sentences, and the random masking of words."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, Self

import numpy as np
import torch
from numpy.typing import NDArray
from tokenizers.models import WordPiece
from torch import Tensor, nn
from torch.nn import functional as F

from models.bundle.origin import Origin
from models.encoder.encoder import Encoder, full_precision
from training.checkpoints.speed import OperationCount
from training.encoding.attention import use_fast_operations

if TYPE_CHECKING:
    from transformers import BertForMaskedLM, PreTrainedTokenizerBase

IGNORED = -100
"""Label of padding among the masked tokens. `cross_entropy` ignores it, and no token has this id."""


class MaskedTokens(NamedTuple):
    """Sequences with masked tokens."""

    ids: Tensor
    """Ids, (n, L)."""
    places: Tensor
    """Indices (m,) of the masked tokens in the n L tokens."""
    labels: Tensor
    """Original ids (m,), or `IGNORED` for padding."""

    def to(self, device: torch.device) -> MaskedTokens:
        """Copy to the device. Copies from pinned memory are asynchronous."""
        return MaskedTokens(*(each.to(device, non_blocking=True) for each in self))

    @property
    def answered(self) -> int:
        """Return the number of masked tokens, without padding."""
        return int((self.labels != IGNORED).sum())


class MaskedLM(nn.Module):
    """A BERT with a masked language modelling head. Each sentence of a sequence attends only to itself."""

    def __init__(
        self,
        bert: BertForMaskedLM,
        tokenizer: PreTrainedTokenizerBase,
        *,
        max_length: int,
        origin: Origin | None = None,
    ) -> None:
        super().__init__()
        self.bert = bert
        self.tokenizer = tokenizer
        self.vocabulary = Vocabulary.of(tokenizer)
        # The tuple prevents a second registration of the body's weights in this module.
        encoder = Encoder(bert.bert, tokenizer, pooling="mean", max_length=max_length, origin=origin)
        self._encoder = (use_fast_operations(encoder),)

    @property
    def encoder(self) -> Encoder:
        return self._encoder[0]

    def forward(self, ids: Tensor, places: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """Return the cross-entropy, summed over the m masked tokens, and the number of correct predictions.

        The head is computed only for masked tokens, because the loss does not need the others.
        """
        mask, positions = separate_sentences(ids, self.vocabulary.cls)
        hidden = self.bert.bert(input_ids=ids, attention_mask=mask, position_ids=positions).last_hidden_state
        logits = full_precision(self.bert.cls(hidden.flatten(0, 1).index_select(0, places)))
        return F.cross_entropy(logits, labels, reduction="sum"), (logits.argmax(dim=1) == labels).sum()

    def work(self, share: float) -> OperationCount:
        """Return the number of operations per token, for a head that is computed for a `share` of the tokens."""
        body = OperationCount.of(self.encoder)
        head = sum(each.weight.numel() for each in self.bert.cls.modules() if isinstance(each, nn.Linear))
        return OperationCount(body.weights + round(share * head), body.attention)


def separate_sentences(ids: Tensor, cls: int) -> tuple[Tensor, Tensor]:
    """Return an additive mask (n, 1, L, L) and positions (n, L) that separate the sentences of a sequence.

    A sentence begins at its [CLS] token. If a sentence is cut at the end of a sequence, the next sequence starts with
    the rest of the sentence, without [CLS]. Sentences must not attend to each other, because the corpus is shuffled.
    Source: Krell et al., "Efficient Sequence Packing without Cross-contamination" (2021), section 3.2.
    """
    begins, places = ids == cls, torch.arange(ids.size(1), device=ids.device).expand_as(ids)
    sentence = begins.cumsum(dim=1)
    same = sentence[:, None, :, None] == sentence[:, None, None, :]
    first = torch.where(begins, places, 0).cummax(dim=1).values
    return torch.where(same, 0.0, torch.finfo(torch.float32).min), places - first


# Random masking of whole words, anew in every step. Source: Devlin et al., "BERT" (NAACL 2019), section 3.1, with the
# whole-word masking of their release of May 2019. Of the masked tokens, 80 % become [MASK], 10 % become a random token,
# and 10 % stay. Each token of a word is drawn separately.

MASK_SHARE = 0.8
RANDOM_SHARE = 0.1


@dataclass(frozen=True)
class Vocabulary:
    """Properties of a tokenizer's tokens, for masking. V is the highest id plus 1."""

    special: NDArray[np.bool_]
    """True for special tokens such as [CLS], [SEP] and [UNK], and for unused ids, (V,).

    These ids are never masked, and never chosen as random replacements of masked tokens.
    """
    inside: NDArray[np.bool_]
    """True for tokens that continue a word, (V,)."""
    mask: int
    cls: int
    unknown: int

    @classmethod
    def of(cls, tokenizer: PreTrainedTokenizerBase) -> Self:
        """Read the vocabulary of a WordPiece tokenizer.

        Raises:
            ValueError: the tokenizer is not WordPiece, or lacks [MASK], [CLS] or [UNK].
        """
        pieces = getattr(getattr(tokenizer, "backend_tokenizer", None), "model", None)
        if not isinstance(pieces, WordPiece):
            raise ValueError("not a WordPiece tokenizer, so the starts of words are unknown")
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
class MaskedSequences:
    """Sequences with masked tokens, and the original tokens."""

    ids: NDArray[np.int64]
    """Ids (N, L) for the model."""
    places: NDArray[np.int64]
    """Indices (M,) of the masked tokens in the N L tokens, ascending."""
    labels: NDArray[np.int64]
    """Original ids (M,) of the masked tokens."""


def mask_words(
    ids: NDArray[np.int64], vocabulary: Vocabulary, *, share: float, rng: np.random.Generator
) -> MaskedSequences:
    """Mask random words of `ids` (N, L) until they have `share` of all tokens that are not special.

    Whole words are masked, so the share is exceeded by less than the tokens of one word. At least one word is masked,
    unless there are no words.
    """
    word = words(ids, vocabulary).ravel()
    sizes = np.bincount(word + 1)[1:]
    drawn = rng.permutation(len(sizes))
    before = np.cumsum(sizes[drawn]) - sizes[drawn]
    # The last element is for tokens that belong to no word, which have the index -1.
    hidden = np.zeros(len(sizes) + 1, dtype=bool)
    hidden[drawn[before < max(1, round(share * sizes.sum()))]] = True
    places = np.flatnonzero(hidden[word])

    seen = ids.ravel().copy()
    draw = rng.random(len(places))
    at_random = (draw >= MASK_SHARE) & (draw < MASK_SHARE + RANDOM_SHARE)
    seen[places[draw < MASK_SHARE]] = vocabulary.mask
    seen[places[at_random]] = rng.choice(np.flatnonzero(~vocabulary.special), size=at_random.sum())
    return MaskedSequences(seen.reshape(ids.shape), places, ids.ravel()[places])


def words(ids: NDArray[np.int64], vocabulary: Vocabulary) -> NDArray[np.int64]:
    """Return the index of the word to which each token of `ids` (N, L) belongs, from 0. Special tokens have -1.

    If a word is split between two sequences, its two parts have different indices.
    """
    special = vocabulary.special[ids]
    goes_on = vocabulary.inside[ids]
    goes_on[:, 0] = False
    goes_on[:, 1:] &= ~special[:, :-1]
    word = np.cumsum(~special & ~goes_on).reshape(ids.shape) - 1
    word[special] = -1
    return word
