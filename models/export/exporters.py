"""Exporters from a torch module to an ONNX file: torch's exporter, or optimum's (see ADR 0013).

The graphs of both exporters have the same interface. The inputs are `input_ids` and `attention_mask` (N, L). The
outputs are `sentence_embedding` (N, D), `norm` (N,) and `token_embeddings` (N, L, H) in float32. N and L are dynamic.
Importing this module does not load torch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING

from models.errors import Refused

if TYPE_CHECKING:
    from torch import Tensor, nn

    from models.encoder.encoder import UnitVector

OPSET = 17
Axes = Mapping[str, Mapping[int, str]]
"""Names of inputs or outputs, with their dynamic axes."""
INPUTS: Axes = {"input_ids": {0: "batch", 1: "length"}, "attention_mask": {0: "batch", 1: "length"}}
OUTPUTS: Axes = {
    "sentence_embedding": {0: "batch"},
    "norm": {0: "batch"},
    "token_embeddings": {0: "batch", 1: "length"},
}


def by_torch(graph: UnitVector, file: Path) -> None:
    encoder = graph.encoder
    example = encoder.tensors(encoder.tokenizer.encode(["an example of two texts", "short"]))
    trace(graph, example, file, inputs=INPUTS, outputs=OUTPUTS)


def trace(module: nn.Module, example: tuple[Tensor, ...], file: Path, *, inputs: Axes, outputs: Axes) -> None:
    """Export `module` to the ONNX file `file`, with torch's TorchScript exporter.

    ADR 0003 has the reasons for this exporter.
    """
    import torch

    torch.onnx.export(
        module,
        example,
        str(file),
        dynamo=False,
        opset_version=OPSET,
        input_names=list(inputs),
        output_names=list(outputs),
        dynamic_axes={**inputs, **outputs},
    )


def by_optimum(graph: UnitVector, file: Path) -> None:
    """Export `graph` to the ONNX file `file`, with optimum's configuration for the backbone's model family.

    The ONNX graph has the inputs `INPUTS` and the outputs `OUTPUTS`. Optimum's patches of transformers for the model
    family are applied. Pooling, transform and normalisation are traced together with the backbone. Token types are not
    an input, because the backbone sets them to zero.

    Raises:
        Refused: optimum's exporter is not installed, or does not know the model family.
    """
    require_optimum()
    from optimum.exporters.onnx import export
    from optimum.exporters.tasks import TasksManager

    config = graph.encoder.backbone.config
    try:
        families = TasksManager.get_supported_tasks_for_model_type(
            config.model_type, "onnx", library_name="transformers"
        )
        family = families["feature-extraction"].func
    except KeyError as error:
        raise Refused(f"optimum has no exporter for {config.model_type}: use --exporter torch") from error
    described = type("UnitVectorOnnxConfig", (family,), {"inputs": INPUTS, "outputs": OUTPUTS})
    export(graph, described(config, task="feature-extraction"), file, opset=OPSET)


def require_optimum() -> None:
    """Raise an error if optimum's exporter is not installed. The check does not load torch.

    Raises:
        Refused: optimum's exporter is not installed.
    """
    try:
        version("optimum-onnx")
    except PackageNotFoundError:
        raise Refused(
            "optimum's exporter does not support this environment's version of transformers: run "
            "`make optimum`, then repeat the command with .venv-optimum/bin/python"
        ) from None


EXPORTERS: dict[str, Callable[[UnitVector, Path], None]] = {"torch": by_torch, "optimum": by_optimum}
