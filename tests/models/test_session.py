"""Tests of inputs and outputs in device memory, with the CPU in place of CUDA."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
from numpy.typing import NDArray

from models.bundle.bundle import Bundle
from models.runtimes import onnxruntime as session
from models.runtimes.onnxruntime import CPU, CUDA, Session

OUTPUTS = ["sentence_embedding", "norm"]


@pytest.fixture(scope="module")
def bound(opened: Bundle) -> Session:
    return Session(opened.onnx, [CPU], threads=1)


@pytest.fixture(scope="module")
def plain(opened: Bundle) -> onnxruntime.InferenceSession:
    return onnxruntime.InferenceSession(str(opened.onnx), providers=[CPU])


def batch_of(draw: np.random.Generator, longest: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return ids and mask of a batch in which each row has another length."""
    rows, length = draw.integers(1, 20), draw.integers(1, longest + 1)
    mask = (np.arange(length) < draw.integers(1, length + 1, (rows, 1))).astype(np.int64)
    return draw.integers(5, 90, (rows, length)) * mask, mask


@pytest.mark.slow
def test_200_random_shapes_give_what_a_plain_run_gives_row_by_row(
    bound: Session, plain: onnxruntime.InferenceSession, opened: Bundle
) -> None:
    draw = np.random.default_rng(0)
    for _ in range(200):
        ids, mask = batch_of(draw, opened.manifest.max_length)
        vectors, norms = plain.run(OUTPUTS, {"input_ids": ids, "attention_mask": mask})
        got = bound.run(ids, mask)
        np.testing.assert_allclose(got.vectors, vectors, atol=1e-6)
        np.testing.assert_allclose(got.norms, norms, rtol=1e-5)


def test_what_came_out_is_no_view_of_what_comes_next(bound: Session) -> None:
    ids = np.full((2, 5), 7, dtype=np.int64)
    first = bound.run(ids, np.ones_like(ids))
    kept = first.vectors.copy()
    bound.run(ids + 1, np.ones_like(ids))
    np.testing.assert_array_equal(first.vectors, kept)


def test_a_caller_may_give_a_part_of_its_batch_and_write_over_it_afterwards(bound: Session) -> None:
    whole = np.arange(5, 45, dtype=np.int64).reshape(4, 10)
    mask = np.ones_like(whole)
    expected = bound.run(whole[::2, :6].copy(), mask[::2, :6].copy()).vectors
    got = bound.run(whole[::2, :6], mask[::2, :6])
    whole[:] = 0
    np.testing.assert_allclose(got.vectors, expected, atol=1e-6)


def test_token_types_that_a_graph_asks_for_are_all_zero(tmp_path: Path) -> None:
    from onnx import TensorProto, helper, save

    inputs = [
        helper.make_tensor_value_info(name, TensorProto.INT64, ["n", "l"])
        for name in ("input_ids", "attention_mask", "token_type_ids")
    ]
    outputs = [
        helper.make_tensor_value_info("sentence_embedding", TensorProto.FLOAT, ["n", "l"]),
        helper.make_tensor_value_info("norm", TensorProto.FLOAT, ["n"]),
    ]
    nodes = [
        helper.make_node("Sub", ["input_ids", "token_type_ids"], ["difference"]),
        helper.make_node("Cast", ["difference"], ["sentence_embedding"], to=TensorProto.FLOAT),
        helper.make_node("ReduceSum", ["sentence_embedding", "last"], ["norm"], keepdims=0),
    ]
    last = helper.make_tensor("last", TensorProto.INT64, [1], [1])
    graph = helper.make_graph(nodes, "typed", inputs, outputs, [last])
    save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), tmp_path / "typed.onnx")
    ids = np.array([[3, 4], [5, 6]], dtype=np.int64)
    got = Session(tmp_path / "typed.onnx", [CPU], threads=1).run(ids, np.ones_like(ids))
    assert got.vectors.tolist() == [[3, 4], [5, 6]] and got.norms.tolist() == [7, 11]


def test_cudas_libraries_are_looked_for_where_a_gpu_comes_first_and_what_that_says_is_logged(
    opened: Bundle,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(onnxruntime, "preload_dlls", lambda: sys.stdout.write("Failed to load libcublas.so.13\n"))
    monkeypatch.setattr(session, "_load_cuda", session._load_cuda.__wrapped__)
    Session(opened.onnx, [CPU], threads=1)
    assert "libcublas" not in caplog.text
    real = onnxruntime.InferenceSession
    monkeypatch.setattr(onnxruntime, "InferenceSession", lambda *rest, **_: real(*rest, providers=[CPU]))
    fallen_back = Session(opened.onnx, [(CUDA, {}), CPU], threads=1)
    assert "Failed to load libcublas.so.13" in caplog.text and capsys.readouterr().out == ""
    assert (fallen_back.provider, fallen_back.device) == (CPU, "cpu")
