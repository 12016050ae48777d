"""Initial weights of pre-training: random weights, or the weights of an existing BERT.

Continued pre-training on a user's own text follows Gururangan et al., "Don't Stop Pretraining" (ACL 2020).
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import nn

from models.bundle import origin
from models.bundle.origin import Origin
from models.bundle.sources import SourceError, whole_encoder
from models.encoder import pretrained
from models.encoder.config import read_config
from models.encoder.pretrained import Weights, reading
from training.config import ConfigError
from training.pretraining.config import PretrainConfig
from training.pretraining.model import MaskedLM, Vocabulary

if TYPE_CHECKING:
    from transformers import BertConfig, BertForMaskedLM, PreTrainedTokenizerBase

HEAD = "cls.predictions."
"""Prefix of the masked language modelling head's weights, which published sentence encoders lack."""
UNUSED = ("pooler.", "bert.pooler.", "cls.seq_relationship.")
"""Prefixes of a BERT's weights that masked language modelling does not train. These weights are left out."""


class Start(NamedTuple):
    """Initial model and tokenizer of a run, and their origin for the model card."""

    bert: BertForMaskedLM
    tokenizer: PreTrainedTokenizerBase
    origin: Origin | None = None


def build_model(config: PretrainConfig, device: torch.device) -> MaskedLM:
    """Build the model before its first step on `device`.

    Random weights are drawn from torch's CPU generator.

    Raises:
        SourceError: the tokenizer or backbone does not exist or can't be read.
        ConfigError: the tokenizer is not WordPiece; or the backbone is not supported or has a different shape.
    """
    start = _random(config) if config.backbone is None else _published(config, whole_encoder(config.backbone))
    nn.Module.to(start.bert, device)  # The model is moved first, because later optimisations depend on the device.
    return MaskedLM(start.bert, start.tokenizer, max_length=config.max_length, origin=start.origin)


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
    """Return a model with random weights, drawn as in BERT: normal with a standard deviation of 0.02."""
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
    return Start(BertForMaskedLM(architecture), tokenizer)


def _published(config: PretrainConfig, folder: Path) -> Start:
    """Load the model in `folder`, with its head if it has one, and its tokenizer."""
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
        weights = pretrained.weights(BertForMaskedLM, folder, config=architecture)
    _check_weights(weights, folder)
    return Start(weights.model, tokenizer, origin.read(str(config.backbone), folder))


def _check(config: PretrainConfig, architecture: BertConfig, vocabulary: int) -> None:
    """Check that a run does not contradict its backbone.

    Raises:
        ConfigError: a field of the configuration differs from the backbone.
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


def _check_weights(weights: Weights, folder: Path) -> None:
    """Check the loaded weights.

    Raises:
        SourceError: the head is incomplete or has its own output embeddings, or there are weights that no BERT has.
    """
    bert, missing, unexpected = weights
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
    """Return the model's shape, by the names of the configuration's fields."""
    return {
        "layers": architecture.num_hidden_layers,
        "width": architecture.hidden_size,
        "heads": architecture.num_attention_heads,
    }
