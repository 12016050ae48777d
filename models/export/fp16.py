"""Optimisation of a float32 graph for GPUs: attention is fused, and the backbone is converted to half precision.

Pooling, transform, normalisation, inputs and outputs stay in float32, so the graph's interface does not change.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from transformers import PretrainedConfig

BACKBONE = "/backbone/"
"""Prefix of the names of the backbone's nodes, because exporters name a node by the path of its module."""


def fuse(graph: Path, file: Path, config: PretrainedConfig) -> None:
    """Write `graph` to `file` with operators fused by ONNX Runtime's optimiser.

    `config` is the backbone's configuration.
    """
    from onnxruntime.transformers.optimizer import optimize_model

    # Texts are padded on the right, so a length can replace the mask. The fast attention kernels need a length.
    fused = optimize_model(
        str(graph), model_type="bert", num_heads=config.num_attention_heads, hidden_size=config.hidden_size, opt_level=1
    )
    fused.save_model_to_file(str(file))


def halve(file: Path) -> None:
    """Convert the backbone's weights and operators in the graph `file` to float16, in place."""
    import onnx
    from onnxruntime.transformers.onnx_model import OnnxModel

    model = OnnxModel(onnx.load(file))
    named = [node.name for node in model.nodes() if node.name.startswith("/")]
    ours = [name for name in named if not name.startswith(BACKBONE)]
    model.convert_float_to_float16(keep_io_types=True, node_block_list=ours)
    # An output that several float32 nodes read gets one cast node for each of them, all with the same name.
    nodes = {tuple(node.output): node for node in model.nodes()}
    del model.graph().node[:]
    model.graph().node.extend(nodes.values())
    model.save_model_to_file(str(file))
