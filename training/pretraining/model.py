"""A BERT for masked language modelling on packed sentences: masking of words, model and initial weights."""

from __future__ import annotations

from collections.abc import Set
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Self

import numpy as np
import torch
from numpy.typing import NDArray
from tokenizers.models import WordPiece
from torch import Tensor, nn
from torch.nn import functional as F

from models.bundle import origin
from models.bundle.origin import Origin
from models.bundle.sources import SourceError, whole_encoder
from models.encoder import pretrained
from models.encoder.config import read_config
from models.encoder.encoder import Encoder, full_precision
from models.encoder.pretrained import reading
from training.checkpoints.speed import OperationCount
from training.config import ConfigError
from training.encoding.attention import use_fast_operations
from training.pretraining.config import PretrainConfig

if TYPE_CHECKING:
    from transformers import BertConfig, BertForMaskedLM, PreTrainedTokenizerBase

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
        """Return a copy on the device. Copies from pinned memory are asynchronous."""
        return MaskedTokens(*(each.to(device, non_blocking=True) for each in self))

    @property
    def answered(self) -> int:
        """Return the number of masked tokens. Entries of `labels` that are padding are not counted."""
        return int((self.labels != IGNORED).sum())


class MaskedLM(nn.Module):
    """A BERT with a masked language modelling head.

    A token sequence contains several sentences. Tokens attend only to tokens of their own sentence.
    """

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
        """Return the model's `OperationCount`, with the head's number of weights multiplied by `share`.

        `share` is the fraction of the tokens for which the language-modelling head is computed.
        """
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
    """Properties of a tokenizer's tokens, for masking. The arrays have the length V, which is the highest id plus 1."""

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
    """Mask random words of `ids` (N, L) until the masked tokens are the share `share` of all tokens.

    Special tokens are neither masked nor counted. Whole words are masked, so the last masked word may exceed the
    share. If there are words, at least one is masked.
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
    """Return, for each token of `ids` (N, L), the index of its word, counted from 0. Special tokens have -1.

    If a word is split between two sequences, its two parts have different indices.
    """
    special = vocabulary.special[ids]
    goes_on = vocabulary.inside[ids]
    goes_on[:, 0] = False
    goes_on[:, 1:] &= ~special[:, :-1]
    word = np.cumsum(~special & ~goes_on).reshape(ids.shape) - 1
    word[special] = -1
    return word


# Initial weights: random weights, or the weights of an existing BERT. Continued pre-training on a user's own text
# follows Gururangan et al., "Don't Stop Pretraining" (ACL 2020).

HEAD = "cls.predictions."
"""Prefix of the masked language modelling head's weights, which published sentence encoders lack."""
UNUSED = ("pooler.", "bert.pooler.", "cls.seq_relationship.")
"""Prefixes of a BERT's weights that masked language modelling does not train. These weights are left out."""


Start = tuple["BertForMaskedLM", "PreTrainedTokenizerBase", Origin]
"""Initial model and tokenizer of a run, and their origin for the model card."""


def build_model(config: PretrainConfig, device: torch.device) -> MaskedLM:
    """Build the model on `device` with its initial weights, which are random or from the backbone.

    Random weights are drawn from torch's CPU generator.

    Raises:
        SourceError: the tokenizer or backbone does not exist or can't be read.
        ConfigError: the tokenizer is not WordPiece; or the backbone is not supported or has a different shape.
    """
    bert, tokenizer, source = (
        _random(config) if config.backbone is None else _published(config, whole_encoder(config.backbone))
    )
    nn.Module.to(bert, device)  # The model is moved first, because later optimisations depend on the device.
    return MaskedLM(bert, tokenizer, max_length=config.max_length, origin=source)


def backbone_fields(backbone: str) -> dict[str, Any]:
    """Return the configuration's fields for a run that continues from `backbone`: shape, tokenizer and maximum length.

    Raises:
        SourceError: the backbone does not exist.
        ConfigError: the backbone is not a BERT.
    """
    architecture = _architecture(backbone, whole_encoder(backbone))
    length = min(PretrainConfig.max_length, architecture.max_position_embeddings)
    return {"backbone": backbone, "tokenizer": backbone, "max_length": length, **_shape(architecture)}


def _tokenizer(config: PretrainConfig, folder: Path, *, lowers: bool = False) -> PreTrainedTokenizerBase:
    with reading(folder):
        tokenizer = pretrained.tokenizer(folder, lowers=lowers)
    try:
        Vocabulary.of(tokenizer)
    except ValueError as error:
        raise ConfigError(f"tokenizer: {config.tokenizer}: {error}") from error
    return tokenizer


def _random(config: PretrainConfig) -> Start:
    """Return a model with random weights, its tokenizer and an empty origin.

    Weights are drawn as in BERT, from a normal distribution with a standard deviation of 0.02.
    """
    from transformers import BertConfig, BertForMaskedLM

    tokenizer = _tokenizer(config, whole_encoder(config.tokenizer))
    tokenizer.model_max_length = config.max_length
    architecture = BertConfig(
        vocab_size=len(Vocabulary.of(tokenizer)),
        hidden_size=config.width,
        num_hidden_layers=config.layers,
        num_attention_heads=config.heads,
        intermediate_size=4 * config.width,
        max_position_embeddings=config.max_length,
        hidden_dropout_prob=config.dropout,
        attention_probs_dropout_prob=config.dropout,
        pad_token_id=tokenizer.pad_token_id,
    )
    return BertForMaskedLM(architecture), tokenizer, Origin()


def _published(config: PretrainConfig, folder: Path) -> Start:
    """Load the backbone in `folder`, its tokenizer and its origin. The head is random if the folder has none."""
    from transformers import BertForMaskedLM

    said = read_config(folder)
    if said.get("transform"):
        raise ConfigError(f"backbone: {config.backbone}: has a transform, which would be lost")
    tokenizer = _tokenizer(config, folder, lowers=bool(said.get("lower")))
    architecture = _architecture(str(config.backbone), folder)
    _check(config, architecture, len(Vocabulary.of(tokenizer)))
    positions = architecture.max_position_embeddings
    tokenizer.model_max_length = min(tokenizer.model_max_length, positions, said.get("max_length") or positions)
    architecture.hidden_dropout_prob = architecture.attention_probs_dropout_prob = config.dropout
    with reading(folder):
        bert, missing, unexpected = pretrained.weights(BertForMaskedLM, folder, config=architecture)
    _check_weights(bert, missing, unexpected, folder)
    return bert, tokenizer, origin.read(str(config.backbone), folder)


def _check(config: PretrainConfig, architecture: BertConfig, vocabulary: int) -> None:
    """Check that a run does not contradict its backbone.

    Raises:
        ConfigError: the run has another shape than the backbone, `max_length` exceeds the backbone's positions, or the
            tokenizer has more tokens than the backbone has embeddings.
    """
    for name, value in _shape(architecture).items():
        if getattr(config, name) != value:
            raise ConfigError(f"{name}: {getattr(config, name)}, but {config.backbone} has {value}")
    if config.max_length > (positions := architecture.max_position_embeddings):
        raise ConfigError(f"max_length: {config.max_length}, but {config.backbone} has {positions} positions")
    if vocabulary > architecture.vocab_size:
        rows = architecture.vocab_size
        raise ConfigError(
            f"backbone: {config.backbone}: {rows} word embeddings, but its tokenizer has {vocabulary} tokens"
        )


def _check_weights(bert: BertForMaskedLM, missing: Set[str], unexpected: Set[str], folder: Path) -> None:
    """Check the weights that were loaded from `folder`. The whole head may be missing.

    Raises:
        SourceError: the head has output embeddings or biases of its own; the head is incomplete; other weights are
            missing; or there are weights that no BERT has.
    """
    words, head = bert.bert.embeddings.word_embeddings, bert.cls.predictions
    if head.decoder.weight is not words.weight or head.decoder.bias is not head.bias:
        raise SourceError(f"{folder}: its head has output embeddings or biases of its own, which is not supported")
    of_the_head = {name for name in bert.state_dict() if name.startswith(HEAD)} - {f"{HEAD}decoder.weight"}
    if absent := missing - of_the_head if of_the_head <= missing else missing:
        raise SourceError(f"{folder}: the weights lack {len(absent)} tensors of a BERT, e.g. {min(absent)}")
    if strange := {name for name in unexpected if not name.startswith(UNUSED) and not name.endswith("position_ids")}:
        raise SourceError(f"{folder}: has {len(strange)} tensors that a BERT does not have, e.g. {min(strange)}")


def _architecture(backbone: str, folder: Path) -> BertConfig:
    from transformers import AutoConfig, BertConfig

    with reading(folder):
        architecture = AutoConfig.from_pretrained(folder, trust_remote_code=False)
    if not isinstance(architecture, BertConfig):
        raise ConfigError(f"backbone: {backbone}: a {architecture.model_type}; only a BERT can be trained further")
    if architecture.is_decoder:
        raise ConfigError(f"backbone: {backbone}: a decoder, whose tokens do not attend to later tokens")
    return architecture


def _shape(architecture: BertConfig) -> dict[str, int]:
    """Return the model's shape, by the names of the fields of `PretrainConfig`."""
    return {
        "layers": architecture.num_hidden_layers,
        "width": architecture.hidden_size,
        "heads": architecture.num_attention_heads,
    }
