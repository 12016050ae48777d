"""Files that allow sentence-transformers (from 2.0), text-embeddings-inference and infinity to open a bundle."""

from __future__ import annotations

import json
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import nn

from models.bundle.prompts import DOCUMENT, prompt_for
from models.encoder.config import FLAGS
from models.encoder.encoder import Encoder
from models.encoder.pooling import AVERAGED_LAYERS, parts
from models.encoder.transform import Affine, Dense, Flow, Layers, Normalize, Transform, Truncate
from models.names import STATIC

UNKNOWN_MODULE = "isosphere.transform.Flow"
"""Name of a module that can't be imported, so that sentence-transformers fails with an error.

Without `modules.json`, sentence-transformers would silently average the last layer.
"""
OLD_FLAGS = ("cls_token", "mean_tokens", "max_tokens", "mean_sqrt_len_tokens")
"""Flags of poolings that every version of sentence-transformers knows."""


def write(encoder: Encoder, folder: Path) -> None:
    """Write the files with which sentence-transformers can open the bundle in `folder`.

    A pooling that averages two layers becomes `WeightedLayerPooling`, with weight 1 for these layers and 0 for all
    other layers, followed by the mean over tokens. An affine transform becomes `Dense` without an activation function.
    A static encoder becomes `StaticEmbedding`, which reads no special tokens and does not truncate long texts.

    sentence-transformers has no module for a `Flow`. For an encoder with a `Flow`, only a modules.json is written, and
    programs that read this file fail with an error.
    """
    if isinstance(encoder.transform, Flow):
        _write_modules(folder, [("", UNKNOWN_MODULE)])
        return
    if encoder.backbone.config.model_type == STATIC:
        modules = [("", "StaticEmbedding")]
    else:
        modules = [("", "Transformer")]
        if encoder.pooling in AVERAGED_LAYERS:
            modules.append(("1_WeightedLayerPooling", "WeightedLayerPooling"))
            _write_layer_weights(encoder, folder)
        modules.append(("1_Pooling", "Pooling"))
        _write_pooling(encoder, folder)
    for number, layer in enumerate([*_layers(encoder.transform), Normalize()], 2):
        path = f"{number}_{type(layer).__name__}"
        modules.append((path, type(layer).__name__))
        (folder / path).mkdir()
        if isinstance(layer, Dense):
            _write_dense(layer, folder / path)
    _write_modules(folder, [(path, f"sentence_transformers.models.{name}") for path, name in modules])
    _write_settings(encoder, folder)


def _layers(transform: Transform | None) -> Iterator[nn.Module]:
    """Yield the modules between pooling and normalisation that represent `transform`.

    A truncation is left out, because sentence-transformers has a setting for it.
    """
    if isinstance(transform, Affine):
        affine = Dense(dim=transform.dim, out=transform.out, bias=True, activation="Identity")
        affine.linear.load_state_dict({"weight": transform.matrix.T, "bias": transform.bias()})
        yield affine
    elif isinstance(transform, Layers):
        yield from (layer for layer in transform.layers if not isinstance(layer, Truncate))


def _cut(transform: Transform | None) -> int | None:
    """Return the dimension to which the transform's last layer truncates vectors, or None."""
    last = transform.layers[-1] if isinstance(transform, Layers) else None
    return last.out if isinstance(last, Truncate) else None


def _write_modules(folder: Path, modules: list[tuple[str, str]]) -> None:
    described = [{"idx": i, "name": str(i), "path": path, "type": kind} for i, (path, kind) in enumerate(modules)]
    _write_json(folder / "modules.json", described)


def _write_pooling(encoder: Encoder, folder: Path) -> None:
    modes = ["mean"] if encoder.pooling in AVERAGED_LAYERS else parts(encoder.pooling)
    # This is the order in which sentence-transformers concatenates poolings.
    in_order = [mode for mode in FLAGS.values() if mode in modes]
    _write_json(
        folder / "1_Pooling" / "config.json",
        {
            "word_embedding_dimension": int(encoder.backbone.config.hidden_size),
            **{f"pooling_mode_{flag}": FLAGS[f"pooling_mode_{flag}"] in modes for flag in OLD_FLAGS},
            **{flag: True for flag, mode in FLAGS.items() if mode in modes},
            **({} if modes == in_order else {"pooling_mode": modes}),
        },
    )


def _write_settings(encoder: Encoder, folder: Path) -> None:
    _write_json(folder / "sentence_bert_config.json", {"max_seq_length": encoder.max_length, "do_lower_case": False})
    document = prompt_for(
        encoder.prompts, DOCUMENT
    )  # The document prompt has the name that sentence-transformers' `encode_document` looks for.
    versions = {"transformers": version("transformers"), "pytorch": torch.__version__}
    _write_json(
        folder / "config_sentence_transformers.json",
        {
            "__version__": versions,
            "prompts": encoder.prompts | ({DOCUMENT[0]: document} if document else {}),
            "default_prompt_name": None,
            "similarity_fn_name": "cosine",
            **({"truncate_dim": cut} if (cut := _cut(encoder.transform)) else {}),
        },
    )


def _write_layer_weights(encoder: Encoder, folder: Path) -> None:
    depth = int(encoder.backbone.config.num_hidden_layers)
    weights = torch.zeros(depth + 1)
    weights[list(AVERAGED_LAYERS[encoder.pooling])] = 1
    target = folder / "1_WeightedLayerPooling"
    _write_json(
        target / "config.json",
        {"word_embedding_dimension": encoder.pooled_dim, "layer_start": 0, "num_hidden_layers": depth},
    )
    save_file({"layer_weights": weights}, target / "model.safetensors")
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    _write_json(folder / "config.json", {**config, "output_hidden_states": True})


def _write_dense(dense: Dense, target: Path) -> None:
    linear, activation = dense.linear, type(dense.activation)
    _write_json(
        target / "config.json",
        {
            "in_features": linear.in_features,
            "out_features": linear.out_features,
            "bias": linear.bias is not None,
            "activation_function": f"{activation.__module__}.{activation.__name__}",
        },
    )
    weights = {f"linear.{name}": weight.detach().cpu().contiguous() for name, weight in linear.named_parameters()}
    save_file(weights, target / "model.safetensors")


def _write_json(file: Path, content: Any) -> None:
    file.parent.mkdir(exist_ok=True)
    file.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
