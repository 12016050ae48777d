"""The files by which others open a bundle: sentence-transformers from 2.0 on, text-embeddings-inference, infinity."""

from __future__ import annotations

import json
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from models.encoder import Encoder
from models.flow import Flow
from models.pooling import AVERAGED_LAYERS
from models.prompts import DOCUMENT, of_role
from models.transform import Affine

UNKNOWN_MODULE = "isosphere.transform.Flow"
"""Nobody can import it. Without a `modules.json`, sentence-transformers would take the mean of the last layer."""


def can_say(encoder: Encoder) -> bool:
    """Whether these files have words for what the encoder computes: they have none for a flow."""
    return not isinstance(encoder.transform, Flow)


def write(encoder: Encoder, folder: Path) -> None:
    """Writes them; where they can't say what the encoder computes, only one, at which readers stop with an error.

    A pooling over two layers is `WeightedLayerPooling` with weight 1 on those and 0 elsewhere, then the mean. An
    affine transform is `Dense` without an activation.
    """
    if not can_say(encoder):
        _write_modules(folder, [("", UNKNOWN_MODULE)])
        return
    modules = [("", "Transformer")]
    if encoder.pooling in AVERAGED_LAYERS:
        modules.append(("1_WeightedLayerPooling", "WeightedLayerPooling"))
        _write_layer_weights(encoder, folder)
    modules.append(("1_Pooling", "Pooling"))
    _write_pooling(encoder, folder)
    if isinstance(encoder.transform, Affine):
        modules.append(("2_Dense", "Dense"))
        _write_dense(encoder.transform, folder / "2_Dense")
    modules.append(("2_Normalize" if encoder.transform is None else "3_Normalize", "Normalize"))
    (folder / modules[-1][0]).mkdir()
    _write_modules(folder, [(path, f"sentence_transformers.models.{name}") for path, name in modules])
    _write_settings(encoder, folder)


def _write_modules(folder: Path, modules: list[tuple[str, str]]) -> None:
    described = [{"idx": i, "name": str(i), "path": path, "type": kind} for i, (path, kind) in enumerate(modules)]
    _write_json(folder / "modules.json", described)


def _write_pooling(encoder: Encoder, folder: Path) -> None:
    _write_json(
        folder / "1_Pooling" / "config.json",
        {
            "word_embedding_dimension": encoder.pooled_dim,
            "pooling_mode_cls_token": encoder.pooling == "cls",
            "pooling_mode_mean_tokens": encoder.pooling != "cls",
            "pooling_mode_max_tokens": False,
            "pooling_mode_mean_sqrt_len_tokens": False,
        },
    )


def _write_settings(encoder: Encoder, folder: Path) -> None:
    _write_json(folder / "sentence_bert_config.json", {"max_seq_length": encoder.max_length, "do_lower_case": False})
    document = of_role(encoder.prompts, DOCUMENT)  # under the one name at which its `encode_document` always looks
    versions = {"transformers": version("transformers"), "pytorch": torch.__version__}
    _write_json(
        folder / "config_sentence_transformers.json",
        {
            "__version__": versions,
            "prompts": encoder.prompts | ({DOCUMENT[0]: document} if document else {}),
            "default_prompt_name": None,
            "similarity_fn_name": "cosine",
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


def _write_dense(affine: Affine, target: Path) -> None:
    _write_json(
        target / "config.json",
        {
            "in_features": affine.dim,
            "out_features": affine.out,
            "bias": True,
            "activation_function": "torch.nn.modules.linear.Identity",
        },
    )
    weights = {"linear.weight": affine.matrix.T.contiguous(), "linear.bias": affine.bias()}
    save_file({name: tensor.cpu() for name, tensor in weights.items()}, target / "model.safetensors")


def _write_json(file: Path, content: Any) -> None:
    file.parent.mkdir(exist_ok=True)
    file.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
