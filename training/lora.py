"""A low-rank adapter trained in place of the backbone's weights.

Hu et al., "LoRA: Low-Rank Adaptation of Large Language Models" (ICLR 2022): a linear layer computes W + s B A. W is
frozen, A (rank, in) and B (out, rank) are trained. B begins at zero, so a run begins with the backbone as it is.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.numpy import save_file
from torch import nn

from models.disk import make_folder, replacing, write_whole
from models.encoder import Encoder
from models.sources import hub_id
from training.config import ConfigError

FOLDER = "adapter"
"""Subfolder of a run's folder that the adapter is written to."""
SCALE = 2
"""s. `peft` writes it as `lora_alpha`, which is s times the rank."""
NAME = "default"
"""Name of the adapter inside `peft`."""


@dataclass(frozen=True)
class Adapter:
    """An adapter in the layout of `peft`."""

    config: dict[str, Any]
    """Content of adapter_config.json."""
    tensors: dict[str, NDArray[np.float32]]
    """Content of adapter_model.safetensors."""


def attach(encoder: Encoder, rank: int, *, backbone: str) -> None:
    """Add an adapter to every linear layer except the pooler's, and freeze all other weights.

    A is drawn from torch's generator. `backbone` is the source that the encoder was loaded from.

    Raises:
        ConfigError: `peft` is not installed, or the rank does not fit the layers.
    """
    try:
        from peft import LoraConfig, inject_adapter_in_model
    except ImportError as error:
        raise ConfigError("adapter_rank: peft is not installed; `make train` installs it") from error
    layers = {
        name: min(module.weight.shape)
        for name, module in encoder.backbone.named_modules()
        if isinstance(module, nn.Linear) and not name.startswith("pooler")
    }
    if not layers:
        raise ConfigError(f"adapter_rank: {backbone} has no linear layers")
    narrowest = min(layers, key=lambda name: layers[name])
    if rank > layers[narrowest]:
        raise ConfigError(
            f"adapter_rank: {rank} is more than {layers[narrowest]}, the width of {narrowest} in {backbone}"
        )
    config = LoraConfig(
        r=rank,
        lora_alpha=SCALE * rank,
        target_modules=list(layers),
        base_model_name_or_path=hub_id(backbone) or backbone,
    )
    inject_adapter_in_model(config, encoder.backbone, NAME)
    for _, layer in _adapted(encoder):
        layer.cast_input_dtype_enabled = False  # autocast narrows the input, which peft would first widen to float32


def merge(encoder: Encoder) -> Adapter | None:
    """Add s B A to the weights, in float64, and take the adapter off. Return None if the encoder has no adapter."""
    adapted = list(_adapted(encoder))
    if not adapted:
        return None
    config: Any = encoder.backbone.peft_config[NAME]
    del encoder.backbone.peft_config
    tensors: dict[str, NDArray[np.float32]] = {}
    for name, layer in adapted:
        a, b = (side[NAME].weight.detach().cpu().numpy() for side in (layer.lora_A, layer.lora_B))
        tensors |= {f"base_model.model.{name}.lora_A.weight": a, f"base_model.model.{name}.lora_B.weight": b}
        linear = layer.get_base_layer()
        change = SCALE * (b.astype(np.float64) @ a.astype(np.float64))
        weight = linear.weight.detach().cpu().numpy() + change
        linear.weight.data.copy_(torch.from_numpy(weight))
        encoder.backbone.set_submodule(name, linear)
    described = {
        "peft_type": "LORA",
        "task_type": "FEATURE_EXTRACTION",
        "base_model_name_or_path": config.base_model_name_or_path,
        "r": config.r,
        "lora_alpha": config.lora_alpha,
        "lora_dropout": 0.0,
        "bias": "none",
        "target_modules": [name for name, _ in adapted],
        "inference_mode": True,
    }
    return Adapter(described, tensors)


def save(adapter: Adapter, folder: Path) -> None:
    """Write the files that `PeftModel.from_pretrained` reads.

    Raises:
        OSError: they can't be written.
    """
    make_folder(folder)
    with replacing(folder / "adapter_model.safetensors") as beside:
        save_file(adapter.tensors, beside, metadata={"format": "pt"})
    write_whole(folder / "adapter_config.json", json.dumps(adapter.config, indent=2) + "\n")


def _adapted(encoder: Encoder) -> Iterator[tuple[str, Any]]:
    """The layers of `peft`, by name."""
    return ((name, layer) for name, layer in encoder.backbone.named_modules() if hasattr(layer, "lora_A"))
