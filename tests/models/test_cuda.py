"""Tests of CUDA without a GPU: the requests to ONNX Runtime, and the messages if it can't start CUDA."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import onnxruntime
import pytest
from hypothesis import given
from hypothesis import strategies as st

from models.bundle.bundle import Bundle
from models.runtimes import RUNTIMES
from models.runtimes import onnxruntime as session
from models.runtimes.base import Ids, Options, RuntimeUnavailable
from models.runtimes.onnxruntime import CPU, CUDA


@given(st.integers(1, 2048))
def test_the_warm_up_meets_every_bucket_once_full_and_with_one_text_the_longest_first(longest: int) -> None:
    shapes: list[tuple[int, ...]] = []

    def run(ids: Ids, mask: Ids) -> None:
        assert ids.shape == mask.shape and (mask == 1).all() and ids.dtype == np.int64
        shapes.append(ids.shape)

    session.warm_up(run, longest)
    lengths = [length for _, length in shapes]
    assert lengths == sorted(lengths, reverse=True) and lengths[0] == longest
    full, single = shapes[::2], shapes[1::2]
    assert all(rows * length <= session.CUDA_BATCH_TOKENS < (rows + 1) * length for rows, length in full)
    assert single == [(1, length) for _, length in full]
    assert len(full) == len(set(full)), "each once"
    ascending = lengths[::-2]
    assert ascending[0] <= session.SHORTEST_BUCKET
    assert all(longer <= 2 * shorter for shorter, longer in pairwise(ascending))


@pytest.fixture
def asked(opened: Bundle, monkeypatch: pytest.MonkeyPatch) -> list[list[Any]]:
    """Return the providers that each session is opened with. Sessions run on the CPU, as if CUDA did not start."""
    calls: list[list[Any]] = []
    real = onnxruntime.InferenceSession

    def open_session(*rest: Any, providers: list[Any]) -> Any:
        calls.append(providers)
        return real(*rest, providers=[CPU])

    monkeypatch.setattr(onnxruntime, "get_available_providers", lambda: [CUDA, CPU])
    monkeypatch.setattr(onnxruntime, "InferenceSession", open_session)
    monkeypatch.setattr(session, "_load_cuda", lambda: None)
    return calls


def test_cuda_comes_first_where_it_is_there_and_float32_stays_float32(opened: Bundle, asked: list[list[Any]]) -> None:
    runtime = RUNTIMES["onnxruntime"](opened, "fp32", Options("auto", 1))
    (providers,) = asked
    assert [providers[0][0], providers[1]] == [CUDA, CPU]
    assert providers[0][1]["use_tf32"] == "0"
    assert runtime.device == "cpu", "CUDA did not start, and auto takes what there is"


def test_a_cpu_that_is_asked_for_is_what_runs(opened: Bundle, asked: list[list[Any]]) -> None:
    RUNTIMES["onnxruntime"](opened, "fp32", Options("cpu", 2, long_lived=True))
    assert asked == [[CPU], [CPU]]


def test_the_session_for_batches_alone_is_opened_with_the_first_of_them(opened: Bundle, asked: list[list[Any]]) -> None:
    runtime = RUNTIMES["onnxruntime"](opened, "fp32", Options("cpu", 2))
    batch = np.ones((1, 4), dtype=np.int64)
    for alone, sessions in ((False, 1), (True, 2), (True, 2)):
        runtime.run(batch, batch, alone=alone)
        assert len(asked) == sessions


def test_cuda_that_does_not_start_is_one_line_that_says_what_to_install(opened: Bundle, asked: list[list[Any]]) -> None:
    with pytest.raises(
        RuntimeUnavailable, match=r"could not start on it: NVIDIA's driver, .*\[cuda,cudnn\]"
    ) as refusal:
        RUNTIMES["onnxruntime"](opened, "fp32", Options("cuda", 1))
    assert "\n" not in str(refusal.value)


def test_on_cuda_there_is_one_stream_and_the_warm_up_is_over_when_it_is_loaded(
    opened: Bundle, asked: list[list[Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    class OnCuda(session.Session):
        """CPU session that reports CUDA as its provider."""

        def __init__(self, *rest: Any) -> None:
            super().__init__(*rest)
            self.device = "cuda"

        def run(self, ids: Ids, mask: Ids) -> Any:
            met.append(ids.shape)

    met: list[tuple[int, ...]] = []
    monkeypatch.setattr("models.runtimes.onnxruntime.Session", OnCuda)
    runtime = RUNTIMES["onnxruntime"](opened, "fp32", Options("cuda", 8))
    assert (runtime.device, runtime.streams, runtime.batch_tokens) == ("cuda", 1, session.CUDA_BATCH_TOKENS)
    assert [length for _, length in met[::2]] == list(session.buckets(opened.manifest.max_length))[::-1]
    assert len(asked) == 1, "one session"


class Driver:
    """CUDA driver with one GPU, or with none that works."""

    def __init__(self, name: bytes = b"", mebibytes: int = 0) -> None:
        self.name, self.mebibytes = name, mebibytes

    def cuInit(self, _: int) -> int:
        return 0 if self.name else 999

    def cuDeviceGet(self, number: Any, place: int) -> int:
        assert place == 0
        return 0

    def cuDeviceGetName(self, name: Any, length: int, number: Any) -> None:
        assert len(self.name) < length
        name.value = self.name

    def cuDeviceTotalMem_v2(self, memory: Any, number: Any) -> None:
        memory._obj.value = self.mebibytes << 20


def test_the_gpu_is_named_by_the_driver_where_it_may_be_used(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> None:
        raise OSError(f"{name}: cannot open shared object file")

    monkeypatch.setattr(session, "CDLL", lambda _: Driver(b"NVIDIA H200", 143_771))
    assert session.gpu("auto") is None, "this ONNX Runtime has no CUDA"
    monkeypatch.setattr(onnxruntime, "get_available_providers", lambda: [CUDA, CPU])
    assert session.gpu("auto") == session.gpu("cuda") == "NVIDIA H200, 143771 MiB"
    assert session.gpu("cpu") is None
    for driver in (missing, lambda _: Driver()):
        monkeypatch.setattr(session, "CDLL", driver)
        assert session.gpu("auto") is None
