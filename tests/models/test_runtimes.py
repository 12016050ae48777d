"""Every runtime in every precision that this machine has, held to the same contract."""

from __future__ import annotations

import builtins
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from models import bundle
from models.bundle import Bundle, BundleError
from models.graph import Graph
from models.runtimes import REFERENCE, RUNTIMES, Pair, available, openvino
from models.runtimes.base import Embedded, Options, RuntimeUnavailable
from models.runtimes.choice import Choice, choose
from models.tokenizer import Tokenizer
from models.verify import golden_cosine
from tests.conftest import WORDS

PAIRS = [Pair("onnxruntime", "fp32"), Pair("openvino", "fp32"), Pair("openvino", "bf16")]
ALIKE = {"fp32": 0.99999, "bf16": 0.9995}
"""Least cosine of a text's vectors in two batches."""
TEXTS = ["a dog", "the old man and the sea", "", "a", "the " * 200, "a red bird can sing in the morning"]


@pytest.fixture(scope="module")
def opened(tiny_bundle: Path) -> Bundle:
    return bundle.load(tiny_bundle)


class Runner:
    """Texts through one runtime, in a batch as they come."""

    def __init__(self, opened: Bundle, pair: Pair) -> None:
        self.pair = pair
        self._runtime = RUNTIMES[pair.runtime](opened, pair.precision, Options("cpu", 1))
        self._tokenizer = Tokenizer(opened.tokenizer_file, max_length=opened.manifest.max_length)

    def __call__(self, texts: list[str]) -> Embedded:
        return self._runtime.run(*self._tokenizer.pad(self._tokenizer.encode(texts)))


@pytest.fixture(scope="module", params=PAIRS, ids=str)
def run(request: pytest.FixtureRequest, opened: Bundle) -> Runner:
    pair: Pair = request.param
    try:
        there = available(opened, Options("cpu"), runtimes={pair.runtime: RUNTIMES[pair.runtime]})
    except RuntimeUnavailable as refusal:
        pytest.skip(str(refusal))
    if pair not in there:
        pytest.skip(f"no {pair} on this machine")
    return Runner(opened, pair)


def test_unit_vectors_and_the_norms_they_were_divided_by(run: Runner, opened: Bundle) -> None:
    got, reference = run(TEXTS), Runner(opened, REFERENCE)(TEXTS)
    assert got.vectors.dtype == got.norms.dtype == np.float32
    assert (got.vectors.shape, got.norms.shape) == ((len(TEXTS), opened.manifest.dim), (len(TEXTS),))
    np.testing.assert_allclose(np.linalg.norm(got.vectors, axis=1), 1, atol=1e-5)
    np.testing.assert_allclose(got.norms, reference.norms, rtol=1e-4 if run.pair.precision == "fp32" else 2e-2)


@given(texts=st.lists(st.lists(st.sampled_from(WORDS), max_size=70).map(" ".join), min_size=1, max_size=9))
def test_a_text_has_one_vector_alone_and_in_any_batch(run: Runner, texts: list[str]) -> None:
    together = run(texts).vectors
    alone = np.concatenate([run([text]).vectors for text in texts])
    assert (together * alone).sum(axis=1).min() >= ALIKE[run.pair.precision]


@pytest.mark.parametrize(("threads", "streams"), [(1, 1), (2, 2), (16, 8)])
def test_streams_side_by_side_and_all_threads_on_one_batch_give_the_same_vectors(
    run: Runner, opened: Bundle, threads: int, streams: int
) -> None:
    runtime = RUNTIMES[run.pair.runtime](opened, run.pair.precision, Options("cpu", threads))
    assert runtime.streams == streams
    if run.pair.runtime == "onnxruntime" and streams > 1:  # a pool of so many, in which each caller counts as one
        pool = runtime._side_by_side.get_session_options().intra_op_num_threads  # type: ignore[attr-defined]
        assert streams + pool - 1 == threads
    tokenizer = Tokenizer(opened.tokenizer_file, max_length=opened.manifest.max_length)
    batches = [tokenizer.pad(tokenizer.encode([text])) for text in TEXTS * 4]
    with ThreadPoolExecutor(streams) as pool:
        together = np.concatenate([one.vectors for one in pool.map(lambda batch: runtime.run(*batch), batches)])
    alone = np.concatenate([runtime.run(*batch, alone=True).vectors for batch in batches])
    expected = run(TEXTS * 4).vectors
    assert (together * expected).sum(axis=1).min() >= ALIKE[run.pair.precision]
    assert (alone * expected).sum(axis=1).min() >= ALIKE[run.pair.precision]


@given(st.integers(1, 3), st.integers(1, 200), st.integers(1, 150))
def test_batches_are_padded_in_steps_but_not_beyond_the_longest_text(rows: int, length: int, longest: int) -> None:
    batch = np.ones((rows, length), dtype=np.int64)
    wider = openvino.padded(batch, longest)
    assert wider.shape[0] == rows and (wider[:, :length] == 1).all() and (wider[:, length:] == 0).all()
    width = wider.shape[1]
    assert length <= width < length + openvino.LENGTH_STEP
    assert width % openvino.LENGTH_STEP == 0 or width == max(length, longest)
    assert width <= max(length, longest)


def test_rows_keep_their_order(run: Runner) -> None:
    forth, back = run(TEXTS).vectors, run(TEXTS[::-1]).vectors[::-1]
    cosines = forth @ back.T
    assert np.diag(cosines).min() >= ALIKE[run.pair.precision]
    assert (cosines.argmax(axis=1) == np.arange(len(TEXTS))).all()


def test_the_vectors_of_a_batch_stay_when_the_next_one_runs(run: Runner) -> None:
    first = run(TEXTS)
    kept = first.vectors.copy(), first.norms.copy()
    run(TEXTS[::-1])
    np.testing.assert_array_equal(first.vectors, kept[0])
    np.testing.assert_array_equal(first.norms, kept[1])


def test_the_golden_vectors(run: Runner, opened: Bundle) -> None:
    assert golden_cosine(opened, runtime=run.pair.runtime, precision=run.pair.precision) >= bundle.GOLDEN_COSINE


def test_a_graph_says_what_it_runs_on(run: Runner, opened: Bundle) -> None:
    graph = Graph(opened, runtime=run.pair.runtime, precision=run.pair.precision, threads=1)
    assert graph.engine == f"{run.pair.runtime} {RUNTIMES[run.pair.runtime].facts()['version']}"
    assert (graph.precision, graph.device) == (run.pair.precision, "cpu")
    assert (graph.encode(TEXTS) * run(TEXTS).vectors).sum(axis=1).min() >= ALIKE[run.pair.precision]


@pytest.fixture
def no_openvino(monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def refuse(name: str, *rest: Any, **more: Any) -> Any:
        if name.partition(".")[0] == "openvino":
            raise ImportError("No module named 'openvino'")
        return real(name, *rest, **more)

    monkeypatch.setattr(builtins, "__import__", refuse)
    monkeypatch.setattr(openvino, "_core", openvino._core.__wrapped__)


@pytest.mark.usefixtures("no_openvino")
def test_a_runtime_that_is_not_installed_is_one_line(opened: Bundle) -> None:
    with pytest.raises(RuntimeUnavailable, match="install the `cpu` extra") as refusal:
        Graph(opened, runtime="openvino")
    assert "\n" not in str(refusal.value)
    assert available(opened, Options()) == [REFERENCE]


def test_a_broken_openvino_leaves_the_others(opened: Bundle, monkeypatch: pytest.MonkeyPatch) -> None:
    class Core:
        def get_property(self, *_: str) -> list[str]:
            raise RuntimeError("no plugin for CPU\nat core.cpp:110")

    monkeypatch.setattr(openvino, "_core", Core)
    for asked in (openvino.capabilities, RUNTIMES["openvino"].facts):
        with pytest.raises(RuntimeUnavailable, match=r"^openvino does not work here: no plugin for CPU$"):
            asked()
    assert available(opened, Options()) == [REFERENCE]
    assert choose(opened, Options("cpu", 1)) == Choice(REFERENCE)


SIGNALLED = """
import os, signal, sys
from pathlib import Path
from models.bundle import load
from models.graph import Graph
graphs = [Graph(load(Path(sys.argv[1])), runtime="openvino", threads=1) for _ in range(2)]
while graphs:
    graphs.pop(0).encode(["a text"])
signal.signal(signal.SIGTERM, lambda *_: print("told", flush=True))
os.kill(os.getpid(), signal.SIGTERM)
"""


def test_a_signal_after_two_models_that_overlapped_is_heard(opened: Bundle, run: Runner) -> None:
    if run.pair.runtime != "openvino":
        pytest.skip("its CPU plugin has the thread's stack for signals in hand")
    command = [sys.executable, "-c", SIGNALLED, str(opened.folder)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (0, "told\n")


ASKED_AT_ONCE = """
import os, sys, threading
from models.runtimes import openvino
openvino._core()
sys.setswitchinterval(1e-6)
begin, ask_one = threading.Barrier(8), openvino._openvino().Type.i64.to_dtype
def ask():
    begin.wait()
    ask_one()
threads = [threading.Thread(target=ask, daemon=True) for _ in range(8)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join(5)
os._exit(any(thread.is_alive() for thread in threads))
"""


def test_the_first_batches_of_many_threads_do_not_wait_for_each_other(run: Runner) -> None:
    if run.pair.runtime != "openvino":
        pytest.skip("it makes a table of types at the first batch")
    assert subprocess.run([sys.executable, "-c", ASKED_AT_ONCE], timeout=60, check=False).returncode == 0


def test_openvino_leaves_the_choice_of_cpus_to_the_system(run: Runner, opened: Bundle) -> None:
    if run.pair.runtime != "openvino":
        pytest.skip("ONNX Runtime pins nothing by itself")
    runtime = RUNTIMES["openvino"](opened, run.pair.precision, Options("cpu", 1))
    compiled = runtime._whole.get().get_compiled_model()  # type: ignore[attr-defined]
    assert compiled.get_property("ENABLE_CPU_PINNING") is False


def test_bf16_is_offered_where_openvino_finds_it(opened: Bundle, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(openvino, "capabilities", lambda: ["FP32", "INT8"])
    assert "bf16" not in RUNTIMES["openvino"].precisions(opened, Options())
    with pytest.raises(RuntimeUnavailable, match="no bf16 on openvino here; there is fp32"):
        Graph(opened, runtime="openvino", precision="bf16")
    monkeypatch.setattr(openvino, "capabilities", lambda: ["BF16", "FP32"])
    assert "bf16" in RUNTIMES["openvino"].precisions(opened, Options())


def test_what_no_runtime_can_do_is_said_by_each(opened: Bundle, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("onnxruntime.get_available_providers", lambda: ["CPUExecutionProvider"])
    with pytest.raises(RuntimeUnavailable, match=r"`gpu` extra; .* openvino runs on CPUs only"):
        available(opened, Options("cuda"))


def test_a_graph_that_the_bundle_lacks(opened: Bundle) -> None:
    with pytest.raises(BundleError, match="no int4 graph; there is fp32"):
        Graph(opened, precision="int4")


def test_openvino_reports_no_import_to_its_makers(tmp_path: Path) -> None:
    code = (
        "import sys; from models.runtimes import RUNTIMES; RUNTIMES['openvino'].facts(); "
        "print(sys.modules['openvino_telemetry'], 'torch' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={"HOME": str(tmp_path), "PATH": ""},
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        check=False,
    )
    if "RuntimeUnavailable" in done.stderr:
        pytest.skip("no openvino on this machine")
    assert done.stdout.split() == ["None", "False"], done.stderr
    assert not (tmp_path / "intel").exists()


@pytest.mark.slow
def test_memory_stays_flat_over_10000_random_shapes(run: Runner, opened: Bundle) -> None:
    """What a server sends it: batches of at most so many padded tokens. The first tenth brings most shapes."""
    runtime = RUNTIMES[run.pair.runtime](opened, run.pair.precision, Options("cpu", 2))
    draw, longest = np.random.default_rng(0), opened.manifest.max_length

    def batches(count: int) -> None:
        for _ in range(count):
            length = int(draw.integers(1, longest + 1))
            padded = length + -length % runtime.length_step
            batch = np.ones((int(draw.integers(1, runtime.batch_tokens // padded + 1)), length), dtype=np.int64)
            runtime.run(batch, batch)

    batches(1_000)
    before = _resident()
    batches(9_000)
    assert _resident() < 1.05 * before, "MiB"


def _resident() -> float:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * 4096 / 2**20


WITHOUT_AMX = """
import logging, sys
from pathlib import Path
from models.bundle import load
from models.graph import Graph
from models.runtimes import REFERENCE
from models.runtimes.base import Options
from models.runtimes.choice import choose
from tests.models.test_runtimes import TEXTS
opened = load(Path(sys.argv[1]))
pair = choose(opened, Options("cpu", 2)).pair
vectors, reference = (
    Graph(opened, runtime=one.runtime, precision=one.precision, threads=2).encode(TEXTS) for one in (pair, REFERENCE)
)
assert (vectors * reference).sum(axis=1).min() >= 0.999, pair
print(pair)
"""


@pytest.mark.parametrize("instructions", ["AVX512_CORE", "AVX2", "SSE41"])
def test_a_cpu_without_amx_or_avx512_gets_what_runs_there_and_the_same_vectors(
    tiny_bundle: Path, tmp_path: Path, instructions: str
) -> None:
    """Emulated: OpenVINO's kernels obey the variable, though it still says what the CPU itself could do."""
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_AMX, tiny_bundle],
        env={"PATH": "", "XDG_CACHE_HOME": str(tmp_path), "ONEDNN_MAX_CPU_ISA": instructions},
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split()[0] in RUNTIMES
