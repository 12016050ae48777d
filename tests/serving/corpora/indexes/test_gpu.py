"""Tests of indexes on a CUDA device: with a substitute on the CPU, and on a real device."""

from __future__ import annotations

import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import faiss
import numpy as np
import pytest

from models.runtimes.base import Floats
from serving.corpora.corpora import Corpora
from serving.corpora.indexes import KINDS, gpu
from serving.corpora.indexes.approximate import Flat, Ivf
from serving.corpora.indexes.building import Plan
from serving.corpora.indexes.gpu import GPU_KINDS, MOST_CANDIDATES, trouble
from serving.corpora.indexes.kind import BuildError, Candidates
from serving.corpora.indexes.live import LiveIndex
from serving.corpora.open_corpus import Indexes
from serving.corpora.ports import StoreError
from serving.inference.fake_engine import FakeEngine
from serving.service import Service
from tests.serving.corpora.indexes.following import IDENTITY, Turns, check, put
from tests.serving.corpora.indexes.sources import DictSource
from tests.serving.engines import model

MakeService = Callable[..., Service]
Run = Callable[[Service, Callable[[], Coroutine[Any, Any, None]]], None]
DIM = 8
PROBE = gpu.PROBE
FULL = "StandardGpuResources: alloc fail type TemporaryMemoryOverflow (cudaMalloc error out of memory [2])"


class Device:
    """Index on a device. It counts searches and concurrent searches, and calls the test before each search."""

    held = 0
    """Number of existing copies."""
    before: Callable[[], None] = staticmethod(lambda: None)

    def __init__(self, index: faiss.Index) -> None:
        self._index = index
        self.searches = self.at_once = self.most = 0
        Device.held += 1

    def __del__(self) -> None:
        Device.held -= 1

    def __getattr__(self, name: str) -> Any:
        return getattr(self._index, name)

    def search(self, *given: Any, **named: Any) -> Any:
        assert "params" not in named or named["params"].sel is None, "a device knows no filter"
        self.searches += 1
        self.at_once += 1
        self.most = max(self.most, self.at_once)
        try:
            self.before()
            threading.Event().wait(0.01)
            return self._index.search(*given, **named)
        finally:
            self.at_once -= 1


class Resources:
    """Memory that FAISS reserves, by default or as requested."""

    temporary, pinned = 1536 << 20, 256 << 20
    made: ClassVar[Resources]

    def __init__(self) -> None:
        Resources.made = self

    def setTempMemory(self, size: int) -> None:
        self.temporary = size

    def setPinnedMemory(self, size: int) -> None:
        self.pinned = size


@pytest.fixture
def _device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu, "PROBE", "")
    monkeypatch.setattr(faiss, "get_num_gpus", lambda: 1, raising=False)
    monkeypatch.setattr(faiss, "StandardGpuResources", Resources, raising=False)
    monkeypatch.setattr(faiss, "GpuClonerOptions", lambda: SimpleNamespace(use_cuvs=True), raising=False)
    monkeypatch.setattr(faiss, "index_cpu_to_gpu", copied, raising=False)


def copied(resources: Resources, device: int, index: faiss.Index, options: SimpleNamespace) -> Device:
    assert device == 0 and not options.use_cuvs
    return Device(index)


def out_of_memory(*_: Any) -> Any:
    raise RuntimeError(FULL)


@pytest.fixture(scope="module")
def vectors() -> Floats:
    drawn = np.random.default_rng(0).standard_normal((3000, DIM)).astype(np.float32)
    return drawn / np.linalg.norm(drawn, axis=1, keepdims=True)  # type: ignore[no-any-return]


@pytest.mark.usefixtures("_device")
@pytest.mark.parametrize("kind", [Flat(), Ivf("flat"), Ivf("sq8")], ids=lambda kind: kind.name)
def test_it_finds_what_the_cpu_finds_and_filters_there(kind: Any, vectors: Floats, tmp_path: Path) -> None:
    on_gpu = GPU_KINDS[f"gpu-{kind.name}"]
    assert on_gpu.name in GPU_KINDS
    parameters = on_gpu.parameters(*vectors.shape)
    index = on_gpu.build(vectors, parameters, lambda: None)
    on_gpu.write(index, str(tmp_path / "index"))
    index = on_gpu.read(str(tmp_path / "index"), vectors)
    effort = on_gpu.efforts(parameters)[-1]
    row = np.arange(len(vectors))
    for passing, rows, on_device in (
        (None, 10, True),
        (row % 2 == 0, 10, True),
        (row % 30 == 0, 10, True),
        (row % 600 == 0, 10, False),
        (row != 7, 10, True),
        (row != 7, 2000, True),
        (row % 2 == 0, MOST_CANDIDATES // 2, False),
        (None, MOST_CANDIDATES + 1, False),
    ):
        filtered = None if passing is None else np.packbits(passing, bitorder="little")
        wanted, before = Candidates(rows, effort, filtered), index.gpu.searches
        found = on_gpu.search(index, vectors[:5], wanted)
        np.testing.assert_array_equal(found, kind.search(index.cpu, vectors[:5], wanted))
        assert (index.gpu.searches > before) == on_device
        assert passing is None or passing[found[found >= 0]].all()


@pytest.mark.usefixtures("_device")
def test_a_filter_that_keeps_out_all_that_is_near_is_answered_in_full(vectors: Floats) -> None:
    kind = GPU_KINDS["gpu-flat"]
    index = kind.build(vectors, {}, lambda: None)
    query = vectors[:1]
    nearest_first = np.argsort(-(vectors @ query[0]))
    far = np.zeros(len(vectors), np.bool_)
    far[nearest_first[1500:]] = True
    queries = np.concatenate([query, -query])
    found = kind.search(index, queries, Candidates(4, 1, np.packbits(far, bitorder="little")))
    assert found[0].tolist() == nearest_first[1500:1504].tolist()
    assert found[1].tolist() == nearest_first[:-5:-1].tolist()
    assert index.gpu.searches == 1


@pytest.mark.usefixtures("_device")
def test_a_device_holds_one_copy_of_what_is_built(vectors: Floats, tmp_path: Path) -> None:
    kind, before = GPU_KINDS["gpu-ivf-flat"], Device.held
    built = kind.build(vectors[:2900], kind.parameters(*vectors.shape), lambda: None)
    assert Device.held == before + 1, "to be measured"
    whole = kind.complete(built, vectors)
    assert Device.held == before
    kind.write(whole, str(tmp_path / "index"))
    read = kind.read(str(tmp_path / "index"), vectors)
    assert Device.held == before + 1 and read.gpu.ntotal == 3000


@pytest.mark.usefixtures("_device")
def test_a_search_that_the_device_has_no_room_for_is_the_cpus_and_so_is_every_later_one(
    vectors: Floats, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    kind = GPU_KINDS["gpu-flat"]
    before = Device.held
    index = kind.read(str(tmp_path / "index"), vectors)
    wanted = Candidates(5, 1, None)
    monkeypatch.setattr(Device, "before", staticmethod(out_of_memory))
    with ThreadPoolExecutor(4) as pool:
        ask = [pool.submit(kind.search, index, vectors[i : i + 1], wanted) for i in range(8)]
    found = np.concatenate([each.result() for each in ask])
    np.testing.assert_array_equal(found, Flat().search(index.cpu, vectors[:8], wanted))
    assert Device.held == before, "its memory is the encoder's again"
    (said,) = caplog.messages
    assert said == f"searches of gpu-flat use the CPU until another index is built: {FULL}"


@pytest.mark.usefixtures("_device")
def test_what_is_wrong_with_a_search_and_not_with_the_device_is_raised(
    vectors: Floats, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kind = GPU_KINDS["gpu-flat"]
    index = kind.read(str(tmp_path / "index"), vectors)

    def wrong() -> None:
        raise RuntimeError("Error: 'k > 0' failed")

    monkeypatch.setattr(Device, "before", staticmethod(wrong))
    with pytest.raises(RuntimeError, match="k > 0"):
        kind.search(index, vectors[:1], Candidates(5, 1, None))
    assert index.gpu is not None and not index.fell_back


@pytest.mark.usefixtures("_device")
@pytest.mark.parametrize("said", ["by FAISS", "by the driver"])
def test_what_does_not_fit_is_not_built_and_what_was_kept_serves_on_the_cpu(
    said: str, vectors: Floats, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    built: list[Floats] = []

    def build(_: Ivf, vectors: Floats, *rest: Any) -> faiss.Index:
        built.append(vectors)
        return Flat().build(vectors, *rest)

    monkeypatch.setattr(Ivf, "build", build)
    if said == "by FAISS":
        monkeypatch.setattr(faiss, "index_cpu_to_gpu", out_of_memory)
        message = "can't be copied to the CUDA device: .*out of memory"
    else:
        monkeypatch.setattr(gpu, "free_memory", lambda: 100 << 20)
        message = "takes 512 MiB of the CUDA device, which has 100 MiB left"
    kind = GPU_KINDS["gpu-ivf-sq8"]
    with pytest.raises(BuildError, match=f"gpu-ivf-sq8 {message}"):
        kind.build(vectors, kind.parameters(*vectors.shape), lambda: None)
    assert bool(built) == (said == "by FAISS"), "where it is known before, nothing is built in vain"
    index = GPU_KINDS["gpu-flat"].read(str(tmp_path / "index"), vectors)
    found = GPU_KINDS["gpu-flat"].search(index, vectors[:3], Candidates(1, 1, None))
    assert found.ravel().tolist() == [0, 1, 2] and index.fell_back
    assert len(caplog.messages) == 1


def test_without_a_driver_nobody_knows_how_much_is_free(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu, "DRIVER", "libno-such-driver.so.1")
    assert gpu.free_memory() is None


@pytest.mark.usefixtures("_device", "approximate")
def test_an_index_whose_device_failed_is_built_again_for_what_is_left(
    builder: Turns, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Let a search find that the device failed. Then restart with a full device, which serves the stored index."""

    def opened() -> LiveIndex:
        kinds = {**KINDS, **GPU_KINDS}
        plan = Plan(least=500, kinds=("gpu-flat", "hnsw"))
        return LiveIndex(source, "c", IDENTITY, builder, folder=tmp_path, target=lambda: 0.9, plan=plan, kinds=kinds)

    source = DictSource()
    with closing(opened()) as index:
        put(index, source, 600)
        builder.build()
        assert index.kind == "gpu-flat"
        check(index, source)
        assert not builder.waiting
    with monkeypatch.context() as patch:
        patch.setattr(Device, "before", staticmethod(out_of_memory))
        with closing(opened()) as index:
            assert index.kind == "gpu-flat" and not builder.waiting
            check(index, source)
            assert len(builder.waiting) == 1 and index.report.state == "building"
            builder.build()
            assert (index.kind, index.report.state) == ("hnsw", "ready")
            check(index, source)
            assert not builder.waiting
    with closing(opened()) as index:
        index._plan = Plan(least=500, kinds=("gpu-flat",))
        index.build_now()
    monkeypatch.setattr(faiss, "index_cpu_to_gpu", out_of_memory)
    with closing(opened()) as index:
        assert index.kind == "gpu-flat" and len(builder.waiting) == 1
        check(index, source)
        builder.build()
        assert index.kind == "hnsw"


@pytest.mark.usefixtures("_device", "approximate")
def test_a_device_that_fails_while_it_is_measured_is_left_to_the_next_kind(
    builder: Turns, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(Device, "before", staticmethod(out_of_memory))
    source, plan = DictSource(), Plan(least=500, kinds=("gpu-flat", "hnsw"))
    kinds = {**KINDS, **GPU_KINDS}
    live = LiveIndex(source, "c", IDENTITY, builder, folder=tmp_path, target=lambda: 0.9, plan=plan, kinds=kinds)
    with closing(live) as index:
        put(index, source, 600)
        builder.build()
        assert index.kind == "hnsw"
    (said,) = caplog.messages
    assert said == f"the index gpu-flat could not be built: {FULL}"


@pytest.mark.usefixtures("_device")
def test_one_search_at_a_time(vectors: Floats) -> None:
    kind = GPU_KINDS["gpu-flat"]
    index = kind.build(vectors, {}, lambda: None)
    assert Resources.made.temporary + Resources.made.pinned <= 512 << 20, "twenty corpora have one each"
    ask = [threading.Thread(target=kind.search, args=(index, vectors[:1], Candidates(3, 1, None))) for _ in range(4)]
    for each in ask:
        each.start()
    for each in ask:
        each.join()
    assert (index.gpu.searches, index.gpu.most) == (4, 1)


def test_a_gpu_that_is_asked_for_without_its_faiss_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(faiss, "StandardGpuResources", raising=False)
    with pytest.raises(StoreError, match="--index gpu: FAISS found no CUDA device; searching on a GPU needs faiss-gpu"):
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
    """Run the probe with the CPU as the device, beside an encoder that left little memory."""
    exec(PROBE, {})
    assert Resources.made.temporary <= 64 << 20
    monkeypatch.setattr(faiss, "index_cpu_to_gpu", lambda *_: faiss.IndexFlatIP(8))
    with pytest.raises(SystemExit, match="returned wrong neighbours"):
        exec(PROBE, {})
    monkeypatch.setattr(faiss, "get_num_gpus", lambda: 0)
    with pytest.raises(SystemExit, match="FAISS finds no CUDA device"):
        exec(PROBE, {})


@pytest.mark.usefixtures("_device")
def test_a_gpu_is_tried_before_the_cpu_where_it_is_asked_for(tmp_path: Path) -> None:
    asked, unasked = Indexes(tmp_path, gpu=True), Indexes(tmp_path)
    assert asked._plan.kinds == (*GPU_KINDS, *unasked._plan.kinds)
    assert GPU_KINDS.keys() <= asked._kinds.keys()
    assert not GPU_KINDS.keys() & {*unasked._plan.kinds, *unasked._kinds}, "nor is one read that another server kept"


class OnCuda(FakeEngine):
    device = "cuda"


NO_ROOM = "FAISS can't search on the CUDA device: out of memory"


@pytest.mark.parametrize(
    "server",
    [
        (OnCuda, "auto", None),
        (OnCuda, "auto", NO_ROOM),
        (OnCuda, "cpu", None),
        (OnCuda, "exact", None),
        (FakeEngine, "auto", None),
    ],
)
def test_a_device_searches_where_it_embeds_and_is_asked_for_nothing_elsewhere(
    server: tuple[type[FakeEngine], str, str | None],
    make_service: MakeService,
    run: Run,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    engine, index, trouble = server
    asked: list[None] = []

    def probe() -> str | None:
        asked.append(None)
        return trouble

    monkeypatch.setattr(gpu, "trouble", probe)
    service = make_service(model(lambda _: engine()), index=index)

    async def work() -> None:
        await service.loaded.wait()
        assert service.health.state == "ready"

    run(service, work)
    tried = engine is OnCuda and index == "auto"
    assert len(asked) == tried
    corpora = service.library.corpora
    assert isinstance(corpora, Corpora)
    assert (corpora._indexes._plan.kinds[:1] == ("gpu-flat",)) == (tried and not trouble)
    warned = [record.message for record in caplog.records if record.levelname == "WARNING"]
    assert warned == ([f"indexes stay on the CPU: {trouble}"] if trouble else [])


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
    half = np.packbits(np.random.default_rng(5).random(len(corpus)) < 0.5, bitorder="little")
    for rows, bitmap in ((1, None), (10, None), (10, half), (MOST_CANDIDATES, None)):
        wanted = Candidates(rows, effort, bitmap)
        found = kind.search(index, queries, wanted)
        same = kind._kind.search(index.cpu, queries, wanted)
        assert found.shape == same.shape
        alike = np.mean([len(set(one) & set(other)) / len(set(other)) for one, other in zip(found, same, strict=True)])
        assert alike > 0.99, "but for those whose scores are equal to the last digits"
    assert index.gpu is not None and not index.fell_back, "it was the device that searched"
    assert (kind.search(index, queries, Candidates(1, effort, None))[:, 0] == np.arange(300)).mean() > 0.99


@real
def test_on_a_device_the_driver_tells_what_a_copy_takes_and_that_is_given_back() -> None:
    corpus, kind = np.ones((400_000, 256), np.float32), GPU_KINDS["gpu-flat"]
    kind.build(corpus[:100], {}, lambda: None)  # The first search loads kernels, which stay in memory.
    before = gpu.free_memory()
    index = kind.build(corpus, {}, lambda: None)
    between = gpu.free_memory()
    assert before is not None and between is not None
    assert corpus.nbytes <= before - between <= corpus.nbytes + gpu.SPARE
    index.release()
    after = gpu.free_memory()
    assert after is not None and after - between >= corpus.nbytes


@real
def test_on_a_device_without_room_faiss_throws_and_does_not_end_the_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Request 256 GiB, none of it on the disk: FAISS allocates all memory before it reads a vector."""
    monkeypatch.setattr(gpu, "free_memory", lambda: None)
    vast = np.memmap(tmp_path / "vast", np.float32, "w+", shape=(1 << 26, 1 << 10))
    with pytest.raises(BuildError, match=r"gpu-flat can't be copied to the CUDA device: .*out of memory"):
        GPU_KINDS["gpu-flat"].build(vast, {}, lambda: None)


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
