"""The linear layers of a backbone, and the removal of some of its layers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from torch import nn

from models.errors import Refused

if TYPE_CHECKING:
    from transformers import PreTrainedModel


def linear_layers(backbone: nn.Module) -> dict[str, nn.Linear]:
    """Return the linear layers by name. The pooler is left out, because vectors don't depend on it."""
    return {
        name: module
        for name, module in backbone.named_modules()
        if isinstance(module, nn.Linear) and not name.startswith("pooler")
    }


def keep_layers(backbone: PreTrainedModel, kept: Sequence[int]) -> None:
    """Keep only the layers `kept`, counted from 0, in their order.

    All other weights stay the same.

    Raises:
        Refused: a layer does not exist or is named twice, the order differs from the backbone's, or the layers of
            this model family differ in more than their weights.
    """
    parent, name, layers = _layers(backbone)
    if [*kept] != sorted({*kept} & {*range(len(layers))}):
        raise Refused(
            f"layers: {','.join(map(str, kept))}: must be ascending numbers from 0 to {len(layers) - 1} without "
            "repetition"
        )
    setattr(parent, name, nn.ModuleList(layers[i] for i in kept))
    backbone.config.num_hidden_layers = len(kept)


def _layers(backbone: PreTrainedModel) -> tuple[nn.Module, str, nn.ModuleList]:
    """Return the list of a backbone's layers, with its parent module and its attribute name in the parent.

    Raises:
        Refused: the backbone has no such list, or its configuration describes the layers one by one.
    """
    config = backbone.config
    found = [
        (parent, name, child)
        for parent in backbone.modules()
        for name, child in parent.named_children()
        if isinstance(child, nn.ModuleList) and len(child) == config.num_hidden_layers
    ]
    if len(found) != 1 or getattr(config, "layer_types", None):
        raise Refused(
            f"layers: layers of a {config.model_type} can't be removed: choose a BERT, RoBERTa, MPNet or DistilBERT"
        )
    return found[0]
