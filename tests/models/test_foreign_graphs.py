"""Tests of malicious graphs that refer to files outside their bundle."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from models.runtimes.onnxruntime import CPU, Session

PLACES = ["../secret", "inner/../../secret", "link", "absolute"]


def graph(folder: Path, place: str) -> Path:
    """Write a graph whose only weights are declared to be in another file."""
    (folder / "secret").write_bytes(np.arange(4, dtype=np.float32).tobytes())
    inside = folder / "onnx"
    (inside / "inner").mkdir(parents=True)
    (inside / "link").symlink_to(folder / "secret")
    weights = TensorProto(name="w", data_type=TensorProto.FLOAT, dims=[4], data_location=TensorProto.EXTERNAL)
    location = str(folder / "secret") if place == "absolute" else place
    for key, value in (("location", location), ("offset", "0"), ("length", "16")):
        weights.external_data.add(key=key, value=value)
    output = helper.make_tensor_value_info("sentence_embedding", TensorProto.FLOAT, [4])
    body = helper.make_graph(
        [helper.make_node("Identity", ["w"], ["sentence_embedding"])], "g", [], [output], [weights]
    )
    model = helper.make_model(body, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    onnx.save(model, inside / "model.onnx")
    return inside / "model.onnx"


@pytest.mark.parametrize("place", PLACES)
def test_onnxruntime_reads_no_weights_from_outside_of_the_bundle(tmp_path: Path, place: str) -> None:
    with pytest.raises(Exception, match=r"External data path (validation failed|escapes)"):
        Session(graph(tmp_path, place), [CPU], threads=1)


@pytest.mark.parametrize("place", PLACES)
def test_openvino_reads_no_weights_from_outside_of_the_bundle(tmp_path: Path, place: str) -> None:
    openvino = pytest.importorskip("openvino")
    with pytest.raises(Exception, match=r"outside the base directory|[Ii]nvalid.*data|secret"):
        openvino.Core().read_model(graph(tmp_path, place))


def test_operators_of_others_are_refused(tmp_path: Path) -> None:
    """Refuse operators of other libraries, because a bundle must not load code."""
    output = helper.make_tensor_value_info("y", TensorProto.FLOAT, [1])
    given = helper.make_tensor_value_info("x", TensorProto.FLOAT, [1])
    node = helper.make_node("Run", ["x"], ["y"], domain="evil.example")
    imports = [helper.make_opsetid("", 17), helper.make_opsetid("evil.example", 1)]
    model = helper.make_model(helper.make_graph([node], "g", [given], [output]), opset_imports=imports, ir_version=9)
    onnx.save(model, tmp_path / "model.onnx")
    with pytest.raises(Exception, match=r"evil\.example"):
        Session(tmp_path / "model.onnx", [CPU], threads=1)
