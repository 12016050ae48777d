"""The template of `minilm`, written again from a bundle that torch has exported (CONTRIBUTING.md)."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import onnx
from safetensors.numpy import load_file

from models.bundle import bundle, sources
from models.bundle.bundle import ENGINES, MANIFEST, ONNX, TOKENIZER, WEIGHTS, Bundle, Manifest
from models.errors import Failed
from models.export.assembly import KEPT, TRANSPOSED, Weights

MODULE = "encoder.backbone."
"""Prefix of the names of weights in graphs that torch has exported."""


def write_template(made: Bundle, folder: Path) -> None:
    """Write a template from a bundle that torch has exported.

    Scores in the manifest of an existing template are kept.
    """
    before = folder / MANIFEST
    scores = bundle.parse_manifest(before.read_bytes(), str(before), required=()).scores if before.is_file() else None
    shutil.rmtree(folder, ignore_errors=True)
    for path in made.manifest.files.keys() - {WEIGHTS, TOKENIZER, ONNX, bundle.CARD, ENGINES}:
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(made.folder / path, folder / path)
    graph = onnx.load(made.onnx)
    empty(graph, load_file(made.folder / WEIGHTS))
    (folder / ONNX).parent.mkdir()
    (folder / ONNX).write_bytes(graph.SerializeToString(deterministic=True))
    facts = {field: getattr(made.manifest, field) for field in KEPT}
    golden = bundle.rounded(made.manifest.golden)
    fields = {"name": sources.MINILM, "files": {}, "fingerprint": made.manifest.fingerprint}
    manifest = Manifest(**{**facts, **fields, "scores": scores, "golden": golden})
    before.write_text(bundle.dumped(manifest), encoding="utf-8")


def empty(graph: onnx.ModelProto, weights: Weights) -> None:
    """Convert a graph that torch has exported to a template, in place.

    Each weight's tensor is emptied, and gets the name of its weight.

    Raises:
        Failed: a tensor matches no weight.
    """
    by_bytes = {(weight.T.shape, np.ascontiguousarray(weight.T).tobytes()): name for name, weight in weights.items()}
    names: dict[str, str] = {}
    for tensor in graph.graph.initializer:
        name = tensor.name.removeprefix(MODULE)
        if name not in weights:
            found = by_bytes.get((tuple(tensor.dims), tensor.raw_data))
            if found is None:
                raise Failed(f"{tensor.name}: equals none of the weights, neither directly nor transposed")
            name = found + TRANSPOSED
        names[tensor.name] = tensor.name = name
        tensor.ClearField("raw_data")
    for node in graph.graph.node:
        node.input[:] = [names.get(one, one) for one in node.input]
