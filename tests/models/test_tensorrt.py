"""Tests of TensorRT without a GPU: requests to ONNX Runtime, division of batches, and refusals."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest

from models.bundle.bundle import ONNX, Bundle
from models.runtimes import RUNTIMES, Pair, available, tensorrt
from models.runtimes import onnxruntime as session
from models.runtimes.base import Options, RuntimeUnavailable
from models.runtimes.onnxruntime import CPU, CUDA, TENSORRT
from tests.models.runner import TEXTS, Runner


@pytest.fixture
def there(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[list[Any]]:
    """Simulate a machine with TensorRT whose sessions run on the CPU, and return the providers of each session."""
    calls: list[list[Any]] = []
    real = onnxruntime.InferenceSession

    def open_session(*rest: Any, providers: list[Any]) -> Any:
        calls.append(providers)
        return real(*rest, providers=[CPU])

    monkeypatch.setattr(onnxruntime, "get_available_providers", lambda: [TENSORRT, CUDA, CPU])
    monkeypatch.setattr(onnxruntime, "InferenceSession", open_session)
    monkeypatch.setattr(session, "_load_cuda", lambda: None)
    monkeypatch.setattr(tensorrt, "CDLL", lambda _: None)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return calls


class Started(session.Session):
    """CPU session that reports TensorRT as its provider."""

    def __init__(self, *rest: Any) -> None:
        super().__init__(*rest)
        self.provider = TENSORRT


@pytest.mark.usefixtures("there")
def test_it_is_offered_in_two_precisions_of_one_graph(opened: Bundle) -> None:
    offered = available(opened, Options(), runtimes={"tensorrt": RUNTIMES["tensorrt"]})
    assert offered == [Pair("tensorrt", "fp32"), Pair("tensorrt", "fp16")]
    with pytest.raises(RuntimeUnavailable, match="tensorrt does not support int8; available: fp32, fp16"):
        RUNTIMES["tensorrt"](opened, "int8", Options())


@pytest.mark.parametrize(("precision", "half"), [("fp32", "0"), ("fp16", "1")])
def test_tensorrt_comes_first_then_cuda_and_the_precision_is_as_asked(
    opened: Bundle, there: list[list[Any]], monkeypatch: pytest.MonkeyPatch, precision: str, half: str
) -> None:
    monkeypatch.setattr(tensorrt, "Session", Started)
    RUNTIMES["tensorrt"](opened, precision, Options("cuda", 1))
    ((first, settings), *others) = there[0]
    assert first == TENSORRT and others == [(CUDA, session.CUDA_OPTIONS), CPU]
    assert settings["trt_fp16_enable"] == half


def test_a_batch_larger_than_the_engine_has_room_for_is_cut_and_keeps_its_order(
    opened: Bundle, there: list[list[Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tensorrt, "Session", Started)
    monkeypatch.setattr(tensorrt, "ROWS", 4)
    run = Runner(opened, Pair("tensorrt", "fp32"), "cuda")
    expected = Runner(opened, Pair("onnxruntime", "fp32"))
    got = run(TEXTS * 2)
    np.testing.assert_allclose(got.vectors, expected(TEXTS * 2).vectors, atol=1e-5)
    assert got.norms.shape == (2 * len(TEXTS),)


@pytest.mark.usefixtures("there")
def test_the_compiled_shapes_hold_every_run(opened: Bundle, monkeypatch: pytest.MonkeyPatch) -> None:
    met: list[tuple[int, ...]] = []

    class Noting(Started):
        def run(self, ids: Any, mask: Any) -> Any:
            met.append(ids.shape)
            return super().run(ids, mask)

    monkeypatch.setattr(tensorrt, "Session", Noting)
    RUNTIMES["tensorrt"](opened, "fp16", Options("cuda", 1))
    settings = tensorrt.settings(opened, "fp16")
    shapes = [
        {
            name: tuple(map(int, shape.split("x")))
            for name, shape in (one.split(":") for one in settings[key].split(","))
        }
        for key in ("trt_profile_min_shapes", "trt_profile_opt_shapes", "trt_profile_max_shapes")
    ]
    assert all(shape.keys() == {"input_ids", "attention_mask"} for shape in shapes)
    least, usual, most = (shape["input_ids"] for shape in shapes)
    assert all(a <= b <= c for a, b, c in zip(least, usual, most, strict=True))
    assert all(a <= b <= c for shape in met for a, b, c in zip(least, shape, most, strict=True))


@pytest.mark.usefixtures("there")
def test_each_graph_has_a_folder_of_its_own_for_what_is_compiled(
    opened: Bundle, other_bundle: Path, tmp_path: Path
) -> None:
    from models.bundle.bundle import load

    ours, others = (tensorrt.settings(one, "fp32")["trt_engine_cache_path"] for one in (opened, load(other_bundle)))
    assert ours != others, "the same architecture, other weights"
    assert Path(ours) == tmp_path / "isosphere" / "tensorrt" / opened.manifest.files[ONNX] and Path(ours).is_dir()


@pytest.mark.usefixtures("there")
def test_a_cache_that_cannot_be_written_costs_a_compilation_not_the_start(
    opened: Bundle, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "isosphere").write_text("no folder")
    assert "trt_engine_cache_enable" not in tensorrt.settings(opened, "fp32")
    assert "the next start compiles again" in caplog.text


def test_where_it_is_not_it_says_so_in_one_line(
    opened: Bundle, there: list[list[Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing(name: str) -> None:
        raise OSError(f"{name}: cannot open shared object file")

    def refusal(device: Any = "cuda") -> str:
        with pytest.raises(RuntimeUnavailable) as refused:
            RUNTIMES["tensorrt"](opened, "fp32", Options(device, 1))
        assert "\n" not in str(refused.value)
        return str(refused.value)

    assert "could not start TensorRT" in refusal(), "the library is there, a GPU is not"
    assert "runs only on CUDA" in refusal("cpu")
    monkeypatch.setattr(tensorrt, "CDLL", missing)
    assert "libnvinfer.so.10: cannot open" in refusal() and "pip install 'tensorrt-cu13<11'" in refusal()
    monkeypatch.setattr(onnxruntime, "get_available_providers", lambda: [CPU])
    assert "`gpu` extra" in refusal()
    with pytest.raises(RuntimeUnavailable):
        RUNTIMES["tensorrt"].facts()
