"""Rewriting of an OpenVINO graph so that most operators skip padding tokens (ADR 0060).

Linear layers, norms and activations process each token independently of the other tokens. After the rewriting, they
process a list of the real tokens of a batch, except in the embeddings. Before attention, a gather copies the tokens of
each text into the text's row of the padded batch. After attention, another gather copies the real tokens back.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from models.runtimes.base import Ids

UNPAD, PAD = "unpad_indices", "pad_indices"
"""Names of the inputs that the rewriting adds. See `gather_indices`."""
STEP = 16
"""The number of real tokens is rounded up to a multiple of this number, to limit the number of shapes."""
TOKENWISE = {"Add", "Subtract", "Multiply", "Divide", "Power", "Sqrt", "Erf", "Gelu", "Relu", "Tanh", "Sigmoid"}
"""Types of elementwise operators."""
SPLIT, MERGE, KEYS = [0, 2, 1, 3], [0, 2, 1, 3], [0, 2, 3, 1]
"""Axis orders of the transpositions in attention.

`SPLIT` converts (N, L, heads, width) to (N, heads, L, width), and `MERGE` converts it back. `KEYS` converts the keys
(N, L, heads, width) to (N, heads, width, L).
"""

Node = Any
Output = Any


def gather_indices(mask: Ids) -> dict[str, NDArray[np.int32]]:
    """Return the values of the two inputs that `unpadded` adds to a graph, for an attention mask (N, L).

    The input `UNPAD` (T,) lists the positions of the real tokens among all N L tokens of the batch. Zeros follow, so
    that T is a multiple of `STEP`. The input `PAD` (N, L) has each real token's index in this list, and 0 for padding.
    """
    real = np.flatnonzero(mask)
    pad = np.zeros(mask.size, np.int32)
    pad[real] = np.arange(len(real))
    unpad = np.zeros(max(STEP, len(real) + -len(real) % STEP), np.int32)
    unpad[: len(real)] = real
    return {UNPAD: unpad, PAD: pad.reshape(mask.shape)}


def simplify(graph: Any) -> None:
    """Rewrite the attention of `graph` in place, so that OpenVINO computes the same result with fewer operators.

    Each reshape that splits or merges heads gets a constant shape. The operator before the product of queries and keys
    no longer swaps the last two axes of the keys. Instead, the product itself swaps these axes, by MatMul's attribute
    `transpose_b`. OpenVINO can then compute the swap as a part of attention.
    """
    from openvino import opset13

    for op in graph.get_ordered_ops():
        if _splits_heads(op):
            width = op.get_output_partial_shape(0)[3].get_length()
            op.input(1).replace_source_output(_constant([0, 0, -1, width]))
        elif _merges_heads(op):
            op.input(1).replace_source_output(_constant([0, 0, -1]))
        elif _is_plain_product(op) and _order(transposed := op.input_value(1).get_node()) == KEYS:
            keys = opset13.transpose(transposed.input_value(0), _constant(SPLIT))
            op.output(0).replace(opset13.matmul(op.input_value(0), keys, False, True).output(0))
    graph.validate_nodes_and_infer_types()


def unpadded(graph: Any) -> Any | None:
    """Return a copy of a simplified graph in which most operators skip padding tokens.

    In the copy, padding tokens are still processed by the embeddings and by operators that combine tokens, such as
    attention. The copy has two additional inputs. The function `gather_indices` returns the values of these inputs.

    Return None if the graph does not have the attention of BERT.
    """
    copy = graph.clone()
    ops = copy.get_ordered_ops()
    start = next((_layer_input(op.input_value(0)) for op in ops if _splits_heads(op)), None)
    if start is None:
        return None
    rewriting = _Rewriting(start)
    for op in ops:
        rewriting.visit(op)
    copy.add_parameters(rewriting.inputs)
    copy.validate_nodes_and_infer_types()
    return copy


class _Rewriting:
    """Rewriting of a graph. The caller calls `visit` for each operator, in topological order.

    `start` is the input of the linear layers in the graph's first attention layer.
    """

    def __init__(self, start: Output) -> None:
        from openvino import Type, opset13

        self._ops = opset13
        self._unpad_indices = opset13.parameter([-1], Type.i32, name=UNPAD)
        self._pad_indices = opset13.parameter([-1, -1], Type.i32, name=PAD)
        self.inputs = [self._unpad_indices, self._pad_indices]
        for one in self.inputs:
            one.output(0).get_tensor().set_names({one.get_friendly_name()})
        self._unpadded = {_key(start): self._unpad(start, start.get_partial_shape()[2].get_length())}
        """Outputs (T, H) with only real tokens, by the key of the original output (N, L, H), which has padding, too."""
        self._replaced: set[tuple[str, int]] = set()
        """Keys of outputs that no longer have padding, because their operators now process only real tokens."""
        self._padded: dict[tuple[str, int], Output] = {}
        """Padded copies (N, L, H) of outputs in `_replaced`, for operators that need padding."""

    def visit(self, op: Node) -> None:
        """Connect `op` to inputs without padding if `op` processes tokens independently, else to padded inputs."""
        if self._is_tokenwise(op):
            for value in op.inputs():
                if (unpadded := self._unpadded.get(_key(value.get_source_output()))) is not None:
                    value.replace_source_output(unpadded)
            if op.get_type_name() == "MVN":
                op.input(1).replace_source_output(_constant([-1]))
            self._unpadded[_key(op.output(0))] = op.output(0)
            self._replaced.add(_key(op.output(0)))
            return
        for value in op.inputs():
            if _key(source := value.get_source_output()) in self._replaced:
                value.replace_source_output(self._pad(source))
        width = op.get_output_partial_shape(0)[2] if _merges_heads(op) else None
        if width is not None and width.is_static:
            self._unpadded[_key(op.output(0))] = self._unpad(op.input_value(0), width.get_length())

    def _is_tokenwise(self, op: Node) -> bool:
        """Return whether `op` can run without padding.

        It must process each token independently, and each of its inputs must be constant for all tokens or available
        without padding.
        """
        kind, inputs = op.get_type_name(), op.input_values()
        real = [_key(value) in self._unpadded for value in inputs]
        if kind == "MVN":
            return real[0] and _normalises_tokens(op)
        if kind == "MatMul":
            return real[0] and _is_linear(op)
        fits = (one or _is_vector(value) for one, value in zip(real, inputs, strict=True))
        return kind in TOKENWISE and any(real) and all(fits)

    def _unpad(self, value: Output, width: int) -> Output:
        """Return the real tokens (T, width) of a padded batch (N, L, …), which has `width` numbers for each token."""
        flat = self._ops.reshape(value, _constant([-1, width]), False)
        return self._ops.gather(flat, self._unpad_indices, _constant(0)).output(0)

    def _pad(self, value: Output) -> Output:
        """Return a padded copy of `value`, which has only real tokens. Move the tensor names of `value` to the copy."""
        if (padded := self._padded.get(_key(value))) is None:
            padded = self._padded[_key(value)] = self._ops.gather(value, self._pad_indices, _constant(0)).output(0)
            names = value.get_names()
            value.get_tensor().set_names(set())
            padded.get_tensor().set_names(names)
        return padded


def _is_plain_product(op: Node) -> bool:
    return op.get_type_name() == "MatMul" and not any(op.get_attributes().values())


def _splits_heads(op: Node) -> bool:
    """Return whether `op` splits a linear layer's output (N, L, H) into heads, which are transposed next."""
    if not _reshapes(op, 3, 4) or not op.get_output_partial_shape(0)[3].is_static:
        return False
    if _layer_input(op.input_value(0)) is None:
        return False
    return all(_order(use.get_node()) in (SPLIT, KEYS) for use in op.output(0).get_target_inputs())


def _merges_heads(op: Node) -> bool:
    """Return whether `op` merges transposed heads (N, L, heads, width) into the input (N, L, H) of a linear layer."""
    if not _reshapes(op, 4, 3) or _order(op.input_value(0).get_node()) != MERGE:
        return False
    return all(_is_linear(use.get_node()) for use in op.output(0).get_target_inputs())


def _reshapes(op: Node, before: int, after: int) -> bool:
    if op.get_type_name() != "Reshape" or not op.get_attributes()["special_zero"]:
        return False
    ranks = op.get_input_partial_shape(0).rank, op.get_output_partial_shape(0).rank
    return [rank.is_static and rank.get_length() for rank in ranks] == [before, after]


def _order(op: Node) -> list[int] | None:
    """Return the order of axes of a transposition, or None for another operator."""
    if op.get_type_name() != "Transpose" or (order := op.input_value(1).get_node()).get_type_name() != "Constant":
        return None
    return [int(axis) for axis in order.data]


def _layer_input(output: Output) -> Output | None:
    """Return the input (N, L, H) of the linear layer that computes `output`, or None if no such layer computes it."""
    while (node := output.get_node()).get_type_name() in {"Add", "Multiply"}:
        variable = [value for value in node.input_values() if not _is_fixed(value)]
        if len(variable) != 1:
            return None
        (output,) = variable
    if not _is_linear(node):
        return None
    shape = node.input_value(0).get_partial_shape()
    return node.input_value(0) if len(shape) == 3 and shape[2].is_static else None


def _is_linear(op: Node) -> bool:
    """Return whether `op` multiplies its first input by a matrix of weights."""
    weights = op.input_value(1) if op.get_type_name() == "MatMul" else None
    return weights is not None and _is_fixed(weights) and len(weights.get_partial_shape()) == 2


def _normalises_tokens(op: Node) -> bool:
    """Return whether `op`, a normalisation of (N, L, H), normalises only over the last axis."""
    axes = op.input_value(1).get_node()
    first = axes.input_value(0).get_node() if axes.get_type_name() == "Range" else axes
    alone = str(op.get_input_partial_shape(1)) == "[1]" and first.get_type_name() == "Constant"
    return alone and first.data.item() in (-1, 2)


def _is_fixed(output: Output) -> bool:
    """Return whether an output is a weight or another constant."""
    while (node := output.get_node()).get_type_name() in {"Convert", "Transpose"}:
        output = node.input_value(0)
    return bool(node.get_type_name() == "Constant")


def _is_vector(output: Output) -> bool:
    """Return whether an output is the same constant for every token: one number, or a vector of H numbers."""
    return _is_fixed(output) and len(output.get_partial_shape()) < 2


def _constant(numbers: Any) -> Output:
    from openvino import opset13

    return opset13.constant(np.array(numbers, np.int64)).output(0)


def _key(output: Output) -> tuple[str, int]:
    return output.get_node().get_name(), output.get_index()
