"""Indexes on a CUDA device: what can be said of them without one, around a copy that stays on the CPU; and on one."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import faiss
import numpy as np
import pytest

from serving.corpora.opening import Indexes
from serving.indexes import gpu
from serving.indexes.flat import Flat
from serving.indexes.gpu import GPU_KINDS, MOST_CANDIDATES, OnGpu, trouble
from serving.indexes.ivf import Ivf
from serving.indexes.kind import Candidates
from serving.ports import Floats, StoreError

DIM = 8
PROBE = gpu.PROBE


class Device:
    """Counts searches, and how many were under way at once."""

    def __init__(self, index: faiss.Index) -> None:
        self._index = index
        self.searches = self.at_once = self.most = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._index, name)

    def search(self, *given: Any, **named: Any) -> Any:
        self.searches += 1
        self.at_once += 1
        self.most = max(self.most, self.at_once)
        try:
            threading.Event().wait(0.01)
            return self._index.search(*given, **named)
        finally:
            self.at_once -= 1


class Resources:
    """What FAISS sets aside, by default and as it is told."""

    temporary, pinned = 1536 << 20, 256 << 20

    def setTempMemory(self, size: int) -> None:
        self.temporary = size

    def setPinnedMemory(self, size: int) -> None:
        self.pinned = size


@pytest.fixture
def _device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu, "PROBE", "")
    monkeypatch.setattr(faiss, "get_num_gpus", lambda: 1, raising=False)
    monkeypatch.setattr(faiss, "StandardGpuResources", Resources, raising=False)
    monkeypatch.setattr(faiss, "index_cpu_to_gpu", lambda *given: Device(given[-1]), raising=False)


@pytest.fixture(scope="module")
def vectors() -> Floats:
    drawn = np.random.default_rng(0).standard_normal((3000, DIM)).astype(np.float32)
    return drawn / np.linalg.norm(drawn, axis=1, keepdims=True)  # type: ignore[no-any-return]


@pytest.mark.usefixtures("_device")
@pytest.mark.parametrize("kind", [Flat(), Ivf("flat"), Ivf("sq8")], ids=lambda kind: kind.name)
def test_it_finds_what_the_cpu_finds_and_filters_there(kind: Any, vectors: Floats, tmp_path: Path) -> None:
    on_gpu = OnGpu(kind)
    assert on_gpu.name in GPU_KINDS
    parameters = on_gpu.parameters(*vectors.shape)
    index = on_gpu.build(vectors, parameters, lambda: None)
    on_gpu.write(index, str(tmp_path / "index"))
    index = on_gpu.read(str(tmp_path / "index"), vectors)
    bitmap = np.packbits(np.arange(len(vectors)) % 2 == 0, bitorder="little")
    effort = on_gpu.efforts(parameters)[0]
    for wanted, on_device in (
        (Candidates(10, effort, None), True),
        (Candidates(10, effort, bitmap), False),
        (Candidates(MOST_CANDIDATES + 1, effort, None), False),
    ):
        before = index.gpu.searches
        found = on_gpu.search(index, vectors[:5], wanted)
        np.testing.assert_array_equal(found, kind.search(index.cpu, vectors[:5], wanted))
        assert (index.gpu.searches > before) == on_device
        assert wanted.bitmap is None or not (found % 2).any()


@pytest.mark.usefixtures("_device")
def test_one_search_at_a_time(vectors: Floats) -> None:
    kind = OnGpu(Flat())
    index = kind.build(vectors, {}, lambda: None)
    assert index._resources.temporary + index._resources.pinned <= 512 << 20, "twenty corpora have one each"
    ask = [threading.Thread(target=kind.search, args=(index, vectors[:1], Candidates(3, 1, None))) for _ in range(4)]
    for each in ask:
        each.start()
    for each in ask:
        each.join()
    assert (index.gpu.searches, index.gpu.most) == (4, 1)


def test_a_gpu_that_is_asked_for_without_its_faiss_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(faiss, "StandardGpuResources", raising=False)
    with pytest.raises(StoreError, match="--index gpu: FAISS knows no CUDA device here; it needs faiss-gpu"):
        Indexes(tmp_path, gpu=True)


SAID = """Faiss assertion 'err__ == cudaSuccess' failed in runL2Norm; details: CUDA error 209 no kernel image
is available for execution on the device"""


@pytest.mark.parametrize(
    ("probe", "message"),
    [
        (
            f"import os, sys; sys.stderr.write({SAID!r}); sys.stderr.flush(); os.abort()",
            "details: CUDA error 209 no kernel",
        ),
        ("raise SystemExit('out of memory')", "on the CUDA device: out of memory"),
        ("import os; os._exit(3)", "on the CUDA device: exit code 3"),
        ("import time; time.sleep(60)", "not answered from the CUDA device within 0.2 seconds"),
    ],
)
@pytest.mark.usefixtures("_device")
def test_a_device_that_ends_the_process_ends_another_one(
    probe: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpu, "PROBE", probe)
    monkeypatch.setattr(gpu, "PATIENCE", 0.2 if "sleep" in probe else gpu.PATIENCE)
    with pytest.raises(StoreError, match=f"--index gpu: FAISS .*{message}"):
        Indexes(tmp_path, gpu=True)


@pytest.mark.usefixtures("_device")
def test_the_probe_searches_on_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """As it is, with a device that is the CPU."""
    exec(PROBE, {})
    monkeypatch.setattr(faiss, "index_cpu_to_gpu", lambda *_: faiss.IndexFlatIP(8))
    with pytest.raises(SystemExit, match="finds what is not there"):
        exec(PROBE, {})
    monkeypatch.setattr(faiss, "get_num_gpus", lambda: 0)
    with pytest.raises(SystemExit, match="it finds none"):
        exec(PROBE, {})


@pytest.mark.usefixtures("_device")
def test_a_gpu_is_tried_before_the_cpu_where_it_is_asked_for(tmp_path: Path) -> None:
    asked, unasked = Indexes(tmp_path, gpu=True), Indexes(tmp_path)
    assert asked._plan.kinds == (*GPU_KINDS, *unasked._plan.kinds)
    assert GPU_KINDS.keys() <= asked._kinds.keys()
    assert not GPU_KINDS.keys() & {*unasked._plan.kinds, *unasked._kinds}, "nor is one read that another server kept"


real = pytest.mark.skipif(trouble() is not None, reason="FAISS finds no CUDA device")


@real
@pytest.mark.parametrize("kind", GPU_KINDS.values(), ids=GPU_KINDS.keys())
def test_on_a_device_it_finds_what_the_cpu_finds(kind: Any, tmp_path: Path) -> None:
    drawn = np.random.default_rng(1).standard_normal((20_000, 96)).astype(np.float32)
    corpus = drawn / np.linalg.norm(drawn, axis=1, keepdims=True)
    queries = corpus[:300] + np.random.default_rng(2).standard_normal((300, 96)).astype(np.float32) * 0.05
    parameters = kind.parameters(*corpus.shape)
    index = kind.build(corpus, parameters, lambda: None)
    kind.write(index, str(tmp_path / "index"))
    index = kind.read(str(tmp_path / "index"), corpus)
    effort = kind.efforts(parameters)[-1]
    for rows in (1, 10, MOST_CANDIDATES):
        wanted = Candidates(rows, effort, None)
        found = kind.search(index, queries, wanted)
        same = kind._kind.search(index.cpu, queries, wanted)
        assert found.shape == same.shape
        alike = np.mean([len(set(one) & set(other)) / len(set(other)) for one, other in zip(found, same, strict=True)])
        assert alike > 0.99, "but for those whose scores are equal to the last digits"
    assert (kind.search(index, queries, Candidates(1, effort, None))[:, 0] == np.arange(300)).mean() > 0.99


@real
def test_on_a_device_the_flat_index_is_exact_for_many_at_once() -> None:
    corpus = np.random.default_rng(3).standard_normal((5_000, 64)).astype(np.float32)
    kind = GPU_KINDS["gpu-flat"]
    index = kind.build(corpus, kind.parameters(*corpus.shape), lambda: None)
    queries = np.random.default_rng(4).standard_normal((64, 64)).astype(np.float32)
    scores = queries.astype(np.float64) @ corpus.astype(np.float64).T
    best = np.argsort(-scores, axis=1)[:, :5]
    with ThreadPoolExecutor(8) as pool:
        ask = [pool.submit(kind.search, index, queries[i : i + 1], Candidates(5, 1, None)) for i in range(64)]
    found = np.concatenate([each.result() for each in ask])
    assert (found == best).mean() > 0.99
