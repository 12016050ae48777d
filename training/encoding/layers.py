"""A student with some layers of its base, or with none: a table of token vectors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from torch import nn

from models.encoder.encoder import Encoder
from training.config import ConfigError

if TYPE_CHECKING:
    from transformers import PreTrainedModel


def keep_layers(encoder: Encoder, kept: Sequence[int]) -> None:
    """Keep only the layers `kept` of the backbone, counted from 0, in their order. All other weights stay.

    Raises:
        ConfigError: a layer does not exist or is named twice, the order differs from the backbone's, or the layers of
            this family differ in more than their weights.
    """
    backbone = encoder.backbone
    parent, name, layers = _layers(backbone)
    if [*kept] != sorted({*kept} & {*range(len(layers))}):
        raise ConfigError(
            f"layers: {','.join(map(str, kept))}: must be ascending numbers from 0 to {len(layers) - 1}, each once"
        )
    setattr(parent, name, nn.ModuleList(layers[i] for i in kept))
    backbone.config.num_hidden_layers = len(kept)


def without_layers(base: Encoder) -> Encoder:
    """Return a static encoder with the tokenizer, length and prompts of `base`. Its token vectors are random."""
    from models.encoder.static import StaticConfig, StaticModel

    (empty,) = base.tokenizer.encode([""])
    config = StaticConfig(
        vocab_size=len(base.backbone.get_input_embeddings().get_parameter("weight")),
        hidden_size=base.dim,
        special_ids=sorted({*empty.ids.tolist()}),
    )
    return Encoder(
        StaticModel(config),
        base.hub_tokenizer,
        pooling="mean",
        max_length=base.max_length,
        prompts=base.prompts,
        origin=base.origin,
    )


def _layers(backbone: PreTrainedModel) -> tuple[nn.Module, str, nn.ModuleList]:
    """Return the list of a backbone's layers, with its parent and its name there.

    Raises:
        ConfigError: the backbone has no such list, or its configuration describes the layers one by one.
    """
    config = backbone.config
    found = [
        (parent, name, child)
        for parent in backbone.modules()
        for name, child in parent.named_children()
        if isinstance(child, nn.ModuleList) and len(child) == config.num_hidden_layers
    ]
    if len(found) != 1 or getattr(config, "layer_types", None):
        raise ConfigError(
            f"layers: a {config.model_type} can't lose layers: choose a BERT, RoBERTa, MPNet or DistilBERT"
        )
    return found[0]
