"""Tests of graphs that compute only attention for padding. `test_families.py` compares the vectors of more families."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from models.bundle.bundle import Bundle
from models.runtimes import openvino as module
from models.runtimes.base import Options, RuntimeUnavailable
from models.runtimes.openvino import OpenVino
from models.runtimes.unpadding import PAD, STEP, UNPAD, gather_indices, unpadded


@pytest.fixture(scope="module")
def runtime(opened: Bundle) -> OpenVino:
    try:
        return OpenVino(opened, "fp32", Options("cpu", 2, long_lived=True))
    except RuntimeUnavailable as refusal:
        pytest.skip(str(refusal))


@given(st.lists(st.integers(0, 40), min_size=1, max_size=9))
def test_padding_and_unpadding_are_inverse(lengths: Sequence[int]) -> None:
    mask = (np.arange(40) < np.array(lengths)[:, None]).astype(np.int64)
    indices = gather_indices(mask)
    tokens = np.arange(mask.size).reshape(mask.shape)
    real = tokens.reshape(-1)[indices[UNPAD]]
    assert (real[indices[PAD]] == tokens)[mask > 0].all()
    assert len(real) % STEP == 0 and 0 <= len(real) - sum(lengths) <= STEP
    assert set(real) <= {0, *tokens[mask > 0]}


def test_no_linear_layer_of_the_graph_gets_padding(runtime: OpenVino) -> None:
    rewritten = unpadded(runtime._graph)
    assert rewritten is not None
    layers = [
        op for op in rewritten.get_ordered_ops() if op.get_type_name() == "MatMul" and is_weight(op.input_value(1))
    ]
    assert layers
    assert {len(layer.get_input_partial_shape(0)) for layer in layers} == {2}


def is_weight(output: Any) -> bool:
    return output.get_node().get_type_name() in {"Constant", "Convert"}


def test_every_compiled_graph_computes_the_same(runtime: OpenVino) -> None:
    mask = np.ones((2, 64), np.int64)
    before = runtime.run(mask, mask).vectors
    assert runtime._compiled is not None
    runtime._compiled.result()
    np.testing.assert_allclose(runtime.run(mask, mask).vectors, before, atol=1e-6)
    np.testing.assert_allclose(runtime.run(mask, mask, alone=True).vectors, before, atol=1e-6)
    mask[1, 20:] = 0
    both = runtime.run(mask, mask).vectors
    np.testing.assert_allclose(both[0], before[0], atol=1e-6)
    np.testing.assert_allclose(both[1], runtime.run(mask[1:, :32], mask[1:, :32], alone=True).vectors[0], atol=1e-5)


def test_a_failed_compilation_in_the_background_leaves_the_vectors(
    opened: Bundle, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    try:
        runtime = OpenVino(opened, "fp32", Options("cpu", 2, long_lived=True))
    except RuntimeUnavailable as refusal:
        pytest.skip(str(refusal))

    report, reported = module._report, threading.Event()

    def fail(graph: Any, streams: int) -> Any:
        raise RuntimeError("out of memory")

    def report_and_tell(compiled: Any) -> None:
        report(compiled)
        reported.set()

    monkeypatch.setattr(module, "_report", report_and_tell)
    monkeypatch.setattr(runtime, "_requests", fail)
    mask = np.ones((2, 64), np.int64)
    before = runtime.run(mask, mask).vectors
    assert reported.wait(30)
    np.testing.assert_array_equal(runtime.run(mask, mask).vectors, before)
    assert [record.levelname for record in caplog.records] == ["WARNING"]


def test_a_graph_without_attention_is_not_rewritten() -> None:
    ov = pytest.importorskip("openvino")
    ids = ov.opset13.parameter([-1, -1], np.float32)
    assert unpadded(ov.Model([ov.opset13.relu(ids)], [ids], "relu")) is None
