"""Assembly of a bundle of `minilm` or of one of its adapters, without torch.

`graphs/minilm/` is a template: a bundle that was exported with torch, but has no weights. The template has the
configuration files, and the ONNX graph with empty tensors. Each empty tensor has the name of its weight. NumPy
merges the adapter into the base's weights, and `onnx` puts the merged weights into the graph. For an encoder with fewer
layers, layers are removed from the graph. Finally, the golden vectors verify that the bundle reproduces the trained
encoder.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np
import onnx
from numpy.typing import NDArray
from safetensors.numpy import load_file, save_file
from tokenizers import Tokenizer

from models.bundle import bundle, origin, sources
from models.bundle.bundle import CONFIG, INT8, MANIFEST, ONNX, TOKENIZER, WEIGHTS, Bundle
from models.bundle.disk import naming
from models.bundle.sources import MODULES, TEMPLATE
from models.errors import Failed
from models.export import destination
from models.runtimes.base import Options
from models.runtimes.choice import Choice
from models.runtimes.graph import golden_cosine

TRANSPOSED = ".T"
"""Suffix of the names of weights that the exporter stores transposed."""
FAITHFUL = 0.9999
"""Minimum cosine between an assembled bundle's vectors and the golden vectors from torch."""
UNUSED = "embeddings.position_ids"
"""Name of a tensor in the published weight file of `minilm`. Current versions of transformers don't read it."""
LAYER = re.compile(r"(encoder\.layer\.)(\d+)(\..+)")
"""Pattern of the names of a layer's weights."""
KEPT = ("objective", "backbone", "dim", "max_length", "pooling", "prompts", "transform", "run", "scores", "golden")
"""Fields of a bundle's manifest, copied from the adapter's manifest or, for `minilm`, from the template's manifest."""

Weights = Mapping[str, NDArray[np.float32]]


def assemble(
    source: str,
    folder: Path,
    *,
    name: str,
    measure_with: Options | None = None,
    on_choice: Callable[[Choice], object] = lambda _: None,
) -> Bundle:
    """Write the bundle of `source` to `folder`, atomically. `source` is the encoder `minilm` or an adapter for it.

    With `measure_with`, the runtimes of this machine are compared under these options, `on_choice` is called with the
    result, and the bundle contains the measurements.

    Raises:
        SourceError, AdapterError: `minilm` or the adapter can't be read, or the adapter does not fit `minilm`.
        Failed: a weight is missing or has a different shape, or the bundle does not reproduce the golden vectors.
        BundleError: `folder` contains files that are not part of a bundle.
        OSError: the bundle can't be written; the message names `folder`.
    """
    said, found = sources.manifest_without_torch(source), sources.resolve(source)
    assert said is not None, "the caller has called `manifest_without_torch`"
    adapter = sources.opened_adapter(found)
    base = sources.minilm()
    weights = {name: tensor for name, tensor in load_file(base / WEIGHTS).items() if name != UNUSED}
    layers = adapter.layers if adapter else None
    graph = onnx.load(TEMPLATE / ONNX)
    if layers is not None:
        weights = keep_layers(weights, layers)
        shorten(graph.graph, len(layers))
    if adapter:
        weights |= adapter.updates(weights)
    with naming(folder), destination.writing(folder) as draft:
        _copy_small_files(draft)
        if layers is not None:
            config = json.loads((draft / CONFIG).read_text(encoding="utf-8"))
            (draft / CONFIG).write_text(json.dumps({**config, "num_hidden_layers": len(layers)}, indent=2) + "\n")
        if adapter:
            shutil.copyfile(found / INT8, draft / INT8)
        Tokenizer.from_file(str(base / TOKENIZER)).save(str(draft / TOKENIZER))
        save_file(weights, draft / WEIGHTS, metadata={"format": "pt"})
        fill(graph, weights)
        (draft / ONNX).parent.mkdir()
        (draft / ONNX).write_bytes(graph.SerializeToString(deterministic=True))
        facts = {field: getattr(said, field) for field in KEPT}
        identity = adapter.identity(sources.MINILM, sources.MINILM_SHA256) if adapter else None
        destination.seal(
            draft,
            {"name": name, "adapter": identity, **facts},
            origin.read(source, found),
            measure_with=measure_with,
            on_choice=on_choice,
        )
        cosine = golden_cosine(bundle.load(draft))
        if not cosine >= FAITHFUL:  # This form of the comparison also refuses NaN.
            raise Failed(f"{source}: cosine {cosine:.6f} to a golden vector, below {FAITHFUL}: its files are damaged")
    return bundle.load(folder)


def keep_layers(weights: Weights, kept: Sequence[int]) -> dict[str, NDArray[np.float32]]:
    """Return the weights of the layers `kept`, renumbered from 0, and all weights that are not part of a layer."""
    places = {layer: place for place, layer in enumerate(kept)}
    left: dict[str, NDArray[np.float32]] = {}
    for name, weight in weights.items():
        layer = LAYER.match(name)
        if layer is None:
            left[name] = weight
        elif (place := places.get(int(layer[2]))) is not None:
            left[f"{layer[1]}{place}{layer[3]}"] = weight
    return left


def shorten(graph: onnx.GraphProto, layers: int) -> None:
    """Remove all but the last `layers` layers from `graph` in place, and number the remaining layers from 0.

    `graph` has no weights yet, and all its layers have the same operators. It therefore does not matter which layers
    are kept.
    """
    numbers = {int(layer[2]) for tensor in graph.initializer if (layer := LAYER.match(tensor.name))}
    dropped = len(numbers) - layers
    if dropped <= 0:
        return
    reader = {name: node for node in graph.node for name in node.input}
    first, last = (f"{part}LayerNorm.bias" for part in ("embeddings.", f"encoder.layer.{dropped - 1}.output."))
    before, after = reader[first].output[0], reader[last].output[0]
    names = {
        tensor.name: f"{layer[1]}{int(layer[2]) - dropped}{layer[3]}"
        for tensor in graph.initializer
        if (layer := LAYER.match(tensor.name))
    } | {after: before}
    needed = {output.name for output in graph.output}
    for place in reversed(range(len(graph.node))):
        node = graph.node[place]
        if needed.isdisjoint(node.output):
            del graph.node[place]
            continue
        node.input[:] = [names.get(name, name) for name in node.input]
        needed.update(node.input)
    for place in reversed(range(len(graph.initializer))):
        tensor = graph.initializer[place]
        tensor.name = names.get(tensor.name, tensor.name)
        if tensor.name not in needed:
            del graph.initializer[place]


def fill(graph: onnx.ModelProto, weights: Weights) -> None:
    """Put the weights into `graph`, whose tensors are empty.

    Each tensor has the name of its weight. If this name is followed by the suffix `TRANSPOSED`, the tensor gets the
    transposed weight.

    Raises:
        Failed: a weight is missing, or its shape differs from the shape of its tensor.
    """
    for tensor in graph.graph.initializer:
        weight = tensor.name.removesuffix(TRANSPOSED)
        if weight not in weights:
            raise Failed(f"{TEMPLATE / ONNX}: the weights have no {weight}")
        array = weights[weight].T if tensor.name.endswith(TRANSPOSED) else weights[weight]
        if array.shape != tuple(tensor.dims):
            raise Failed(f"{TEMPLATE / ONNX}: {weight} is {array.shape}, expected {tuple(tensor.dims)}")
        tensor.raw_data = np.ascontiguousarray(array, dtype="<f4").tobytes()


def _copy_small_files(draft: Path) -> None:
    for file in TEMPLATE.rglob("*"):
        path = file.relative_to(TEMPLATE)
        if file.is_file() and str(path) not in (MANIFEST, ONNX):
            (draft / path).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(file, draft / path)
    for module in json.loads((TEMPLATE / MODULES).read_text(encoding="utf-8")):
        # git does not store empty folders, but sentence-transformers needs this folder.
        (draft / module["path"]).mkdir(exist_ok=True)
