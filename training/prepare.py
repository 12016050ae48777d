"""Preparation of an encoder for training."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import nn

from models.bundle.sources import manifest_of
from models.encoder.encoder import Encoder
from training import lora
from training.config import ConfigError, RunConfig
from training.passes.acceleration import swift


def prepared(config: RunConfig, device: torch.device) -> Encoder:
    """Load the run's backbone with its dropout on `device`.

    Raises:
        SourceError: there is no such backbone.
        BundleError: the backbone is a bundle, and a file does not match the manifest.
        ConfigError: see `training.lora.attach`.
    """
    manifest_of(config.backbone)  # This call checks the bundle's files.
    encoder = Encoder.load(config.backbone, pooling=config.pooling)
    if config.dropout is not None:
        set_dropout(encoder, config.dropout)
    if config.adapter_rank is not None:
        lora.attach(encoder, config.adapter_rank, backbone=config.backbone)
    encoder.to(device)
    if not config.compile:
        return swift(encoder)
    encoder.backbone.compile(dynamic=True)  # The compiler has its own dropout and attention kernels.
    return encoder


def set_dropout(encoder: Encoder, rate: float) -> None:
    """Set every dropout rate of the backbone, that of attention weights included."""
    for module, name in _rates(encoder):
        setattr(module, name, rate)


def has_dropout(encoder: Encoder) -> bool:
    """Return whether two training passes of the backbone differ."""
    return any(getattr(module, name) for module, name in _rates(encoder))


def check_views_differ(encoder: Encoder, config: RunConfig, views: int) -> None:
    """Check that the dropout views of a sentence differ.

    Raises:
        ConfigError: the views would be equal.
    """
    if config.positives is not None and views < 2:
        raise ConfigError(f"augmentation: {config.objective} has one view, and {config.augmentation} is for two")
    if config.positives is not None and getattr(config.params, "positives", None) == "mean-sampling":
        raise ConfigError(f"augmentation: {config.augmentation} pairs are lost in means over views (mean-sampling)")
    plain = views - (config.augmentation != "none")
    if plain > 1 and not has_dropout(encoder):
        raise ConfigError(
            f"dropout: {config.backbone} has none, so the views of a sentence would be equal: --set dropout=0.1"
        )


def check_augmentation(encoder: Encoder, config: RunConfig) -> None:
    """Try the run's augmentation on the backbone.

    Raises:
        ConfigError: the backbone doesn't support it.
    """
    if config.augmented is None:
        return
    try:
        with torch.no_grad(), torch.random.fork_rng():
            config.augmented(encoder, *encoder.tensors(encoder.tokenizer.encode(["a"])))
    except ValueError as error:
        raise ConfigError(f"augmentation: {error}") from error


def _rates(encoder: Encoder) -> Iterator[tuple[nn.Module, str]]:
    """Yield modules with the name of their dropout attribute."""
    for module in encoder.backbone.modules():
        if isinstance(module, nn.Dropout):
            yield module, "p"
        # ModernBERT stores this rate as a number instead of a module.
        elif isinstance(getattr(module, "attention_dropout", None), float):
            yield module, "attention_dropout"
