"""Preparation of a backbone for training: its dropout, and a low-rank adapter trained instead of its weights.

Hu et al., "LoRA: Low-Rank Adaptation of Large Language Models" (ICLR 2022): a linear layer computes W + s B A. W is
frozen, A (rank, in) and B (out, rank) are trained, and s is alpha / rank. B begins at zero, so the run starts from the
unchanged backbone.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from models.bundle import adapter, sources
from models.bundle.adapter import PREFIX, Adapter
from models.bundle.disk import naming
from models.bundle.sources import manifest_of
from models.encoder import transform as transforms
from models.encoder.encoder import Encoder, keep_layers, linear_layers
from training.config import ConfigError, RunConfig
from training.encoding.attention import use_fast_operations

FOLDER = "adapter"
"""Name of the adapter's folder inside the run's folder."""
ALPHA = 480
"""alpha of LoRA's scaling alpha / rank, the same for every rank.

With this alpha and the presets' learning rates, an adapter learns as fast as full fine-tuning (docs/training.md). With
Adam, a larger alpha acts like a higher learning rate.
"""
NAME = "default"
"""Name of the adapter inside `peft`."""


@dataclass(frozen=True)
class Factors:
    """The matrices of a trained adapter, before they are written to a folder."""

    config: Mapping[str, Any]
    """Configuration for `peft`."""
    tensors: Mapping[str, NDArray[np.float32]]
    """The matrices A and B of each layer, by their names in `peft`'s files."""


def attach_adapter(encoder: Encoder, rank: int, *, backbone: str, layers: Sequence[int] | None = None) -> None:
    """Add an adapter to every linear layer except the pooler's, and freeze all other weights.

    Torch's generator draws the values of the matrix A of each adapter. `backbone` is the source that the encoder was
    loaded from. `layers` lists the backbone's layers that the encoder keeps, and None means all layers.

    Raises:
        ConfigError: `peft` is not installed, the backbone has no linear layers, or `rank` exceeds a layer's width.
        SourceError: the backbone is itself an adapter.
    """
    try:
        from peft import LoraConfig, inject_adapter_in_model
    except ImportError as error:
        raise ConfigError("adapter_rank: peft is not installed; `make train` installs it") from error
    sources.whole_encoder(backbone)
    widths = {name: min(module.weight.shape) for name, module in linear_layers(encoder.backbone).items()}
    if not widths:
        raise ConfigError(f"adapter_rank: {backbone} has no linear layers")
    narrowest = min(widths, key=lambda name: widths[name])
    if rank > widths[narrowest]:
        raise ConfigError(
            f"adapter_rank: {rank} is more than {widths[narrowest]}, the width of {narrowest} in {backbone}"
        )
    config = LoraConfig(
        r=rank,
        lora_alpha=ALPHA,
        target_modules=list(widths),
        base_model_name_or_path=sources.hub_id(backbone) or backbone,
    )
    inject_adapter_in_model(config, encoder.backbone, NAME)
    # Set this after the injection, which would otherwise remove the left-out layers from the encoder a second time.
    config.layer_replication = adapter.replication(layers)
    for _, layer in _adapted(encoder):
        # Otherwise peft would convert the layer's input to float32, and autocast would convert it back.
        layer.cast_input_dtype_enabled = False


def merge_adapter(encoder: Encoder) -> Factors | None:
    """Merge the adapter into the weights, remove it from the encoder, and return its matrices.

    The merged weights are computed in float64. Return None if the encoder has no adapter.
    """
    adapted = list(_adapted(encoder))
    if not adapted:
        return None
    config: Any = encoder.backbone.peft_config[NAME]
    del encoder.backbone.peft_config
    tensors: dict[str, NDArray[np.float32]] = {}
    for name, layer in adapted:
        a, b = (side[NAME].weight.detach().cpu().numpy() for side in (layer.lora_A, layer.lora_B))
        tensors |= {f"{PREFIX}{name}.lora_A.weight": a, f"{PREFIX}{name}.lora_B.weight": b}
        linear = layer.get_base_layer()
        change = layer.scaling[NAME] * (b.astype(np.float64) @ a.astype(np.float64))
        weight = linear.weight.detach().cpu().numpy() + change
        linear.weight.data.copy_(torch.from_numpy(weight))
        encoder.backbone.set_submodule(name, linear)
    described = adapter.lora_config(
        config.base_model_name_or_path,
        rank=config.r,
        target_modules=[name for name, _ in adapted],
        alpha=config.lora_alpha,
        layer_replication=config.layer_replication,
    )
    return Factors(described, tensors)


def write_adapter(factors: Factors, encoder: Encoder, folder: Path) -> Adapter:
    """Write the adapter: `peft`'s two files and, if the encoder has a transform, the weights of the transform.

    Raises:
        OSError: a file can't be written.
    """
    with naming(folder):
        if encoder.transform is not None:
            transforms.save(encoder.transform, folder)
        return adapter.write(folder, config=factors.config, tensors=factors.tensors)


def _adapted(encoder: Encoder) -> Iterator[tuple[str, Any]]:
    return ((name, layer) for name, layer in encoder.backbone.named_modules() if hasattr(layer, "lora_A"))


# Preparation of an encoder for training.


def load_for_training(config: RunConfig, device: torch.device) -> Encoder:
    """Load the run's backbone on `device`, with the layers, dropout rate and adapter of the configuration.

    Raises:
        SourceError, AdapterError: the backbone does not exist or can't be read.
        BundleError: the backbone is a bundle, and a file does not match the manifest.
        ConfigError: see `training.encoding.lora.attach_adapter`.
    """
    manifest_of(config.backbone)  # This call checks the bundle's files.
    encoder = Encoder.load(config.backbone, pooling=config.pooling if config.layers != () else None)
    if config.layers == ():
        from training.encoding.static import without_layers  # loads transformers

        encoder = without_layers(encoder)
    elif config.layers is not None:
        keep_layers(encoder.backbone, config.layers)
    if config.matryoshka is not None:
        encoder.backbone.config.matryoshka_dimensions = sorted({*config.matryoshka, encoder.dim})
    if config.dropout is not None:
        set_dropout(encoder, config.dropout)
    if config.adapter_rank is not None:
        attach_adapter(encoder, config.adapter_rank, backbone=config.backbone, layers=config.layers)
    encoder.to(device)
    if not config.compile:
        return use_fast_operations(encoder)
    encoder.backbone.compile(dynamic=True)  # The compiler has its own dropout and attention kernels.
    return encoder


def set_dropout(encoder: Encoder, rate: float) -> None:
    """Set every dropout rate of the backbone, including the rate of attention weights."""
    for module, name in _dropout_rates(encoder):
        setattr(module, name, rate)


def has_dropout(encoder: Encoder) -> bool:
    """Return whether the backbone has a dropout rate above zero, so that two training passes differ."""
    return any(getattr(module, name) for module, name in _dropout_rates(encoder))


def check_views_differ(encoder: Encoder, config: RunConfig, views: int) -> None:
    """Check that the `views` views of a sentence differ, and that the objective works with the augmentation.

    Raises:
        ConfigError: the views would be equal, or the objective does not work with the augmentation.
    """
    if config.positives is not None and views < 2:
        raise ConfigError(f"augmentation: {config.augmentation} needs two views, but {config.objective} has only one")
    for name in ("positives", "negatives"):
        kind = getattr(config.params, name, None)
        if config.positives is not None and kind in ("mean-sampling", "shared-mean"):
            raise ConfigError(
                f"augmentation: {config.augmentation} does not work with {name}={kind}, which would average the two "
                "texts of a pair"
            )
    plain = views - (config.augmentation != "none")
    if plain > 1 and config.layers == ():
        raise ConfigError(
            "layers: an encoder without layers has no dropout, so the views of a sentence would be equal: use the "
            "objective static"
        )
    if plain > 1 and not has_dropout(encoder):
        raise ConfigError(
            f"dropout: {config.backbone} has none, so the views of a sentence would be equal: --set dropout=0.1"
        )


def check_augmentation(encoder: Encoder, config: RunConfig) -> None:
    """Try the run's augmentation on the backbone.

    Raises:
        ConfigError: the backbone doesn't support the augmentation.
    """
    if config.augmented is None:
        return
    try:
        with torch.no_grad(), torch.random.fork_rng():
            config.augmented(encoder, *encoder.tensors(encoder.tokenizer.encode(["a"])))
    except ValueError as error:
        raise ConfigError(f"augmentation: {error}") from error


def _dropout_rates(encoder: Encoder) -> Iterator[tuple[nn.Module, str]]:
    """Yield each module with a dropout rate, and the name of the attribute that stores the rate."""
    for module in encoder.backbone.modules():
        if isinstance(module, nn.Dropout):
            yield module, "p"
        # ModernBERT stores this rate as a number instead of a module.
        elif isinstance(getattr(module, "attention_dropout", None), float):
            yield module, "attention_dropout"
