"""Contract tests of every runtime in every precision that this machine supports."""

from __future__ import annotations

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from models.bundle import bundle
from models.bundle.bundle import Bundle, BundleError
from models.runtimes import REFERENCE, RUNTIMES, available
from models.runtimes.base import Options, RuntimeUnavailable
from models.runtimes.graph import Graph, golden_cosine_of
from tests.conftest import WORDS
from tests.models.runner import ALIKE, TEXTS, Runner


def test_unit_vectors_and_the_norms_they_were_divided_by(run: Runner) -> None:
    got, reference = run(TEXTS), Runner(run.bundle, REFERENCE)(TEXTS)
    assert got.vectors.dtype == got.norms.dtype == np.float32
    assert (got.vectors.shape, got.norms.shape) == ((len(TEXTS), run.bundle.manifest.dim), (len(TEXTS),))
    np.testing.assert_allclose(np.linalg.norm(got.vectors, axis=1), 1, atol=1e-5)
    np.testing.assert_allclose(got.norms, reference.norms, rtol=1e-4 if run.pair.precision == "fp32" else 2e-2)


@given(texts=st.lists(st.lists(st.sampled_from(WORDS), max_size=70).map(" ".join), min_size=1, max_size=9))
def test_a_text_has_one_vector_alone_and_in_any_batch(run: Runner, texts: list[str]) -> None:
    together = run(texts).vectors
    alone = np.concatenate([run([text]).vectors for text in texts])
    assert (together * alone).sum(axis=1).min() >= ALIKE[run.pair.precision]


@pytest.mark.parametrize("long_lived", [False, True])
@pytest.mark.parametrize(
    ("threads", "streams"), [(2, 2), *(pytest.param(*few, marks=pytest.mark.slow) for few in ((1, 1), (16, 8)))]
)
def test_streams_side_by_side_and_all_threads_on_one_batch_give_the_same_vectors(
    run: Runner, threads: int, streams: int, long_lived: bool
) -> None:
    if run.device == "cuda":
        streams = 1
    runtime = run.load(threads=threads, long_lived=long_lived)
    assert runtime.streams == streams
    # The pool has as many threads, and each caller counts as one of them.
    if run.pair.runtime == "onnxruntime" and streams > 1:
        pool = runtime._concurrent._session.get_session_options().intra_op_num_threads  # type: ignore[attr-defined]
        assert streams + pool - 1 == threads
    batches = [run.tokenizer.pad(run.tokenizer.encode([text])) for text in TEXTS * 4]
    with ThreadPoolExecutor(streams) as pool:
        together = np.concatenate([one.vectors for one in pool.map(lambda batch: runtime.run(*batch), batches)])
    alone = np.concatenate([runtime.run(*batch, alone=True).vectors for batch in batches])
    expected = run(TEXTS * 4).vectors
    assert (together * expected).sum(axis=1).min() >= ALIKE[run.pair.precision]
    assert (alone * expected).sum(axis=1).min() >= ALIKE[run.pair.precision]


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


def test_the_golden_vectors(run: Runner) -> None:
    graph = Graph(run.bundle, runtime=run.pair.runtime, precision=run.pair.precision, threads=1, device=run.device)
    assert golden_cosine_of(graph.encode, run.bundle) >= bundle.GOLDEN_COSINE


def test_a_graph_says_what_it_runs_on(run: Runner) -> None:
    graph = Graph(run.bundle, runtime=run.pair.runtime, precision=run.pair.precision, threads=1, device=run.device)
    assert graph.engine == f"{run.pair.runtime} {RUNTIMES[run.pair.runtime].facts()['version']}"
    assert (graph.precision, graph.device) == (run.pair.precision, run.device)
    assert (graph.encode(TEXTS) * run(TEXTS).vectors).sum(axis=1).min() >= ALIKE[run.pair.precision]


def test_what_no_runtime_can_do_is_said_by_each(opened: Bundle, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("onnxruntime.get_available_providers", lambda: ["CPUExecutionProvider"])
    with pytest.raises(RuntimeUnavailable, match=r"`gpu` extra; .* openvino runs only on CPUs; .* no TensorRT"):
        available(opened, Options("cuda"))


def test_a_graph_that_the_bundle_lacks(opened: Bundle) -> None:
    with pytest.raises(BundleError, match="no int4 graph; available: fp32"):
        Graph(opened, precision="int4")


@pytest.mark.parametrize(
    "number", [pytest.param(3_000, marks=pytest.mark.slow), pytest.param(10_000, marks=pytest.mark.nightly)]
)
def test_memory_stays_flat_over_random_shapes(number: int, run: Runner) -> None:
    """Run batches like a server's, of at most this many padded tokens. Most shapes occur in the first thousand."""
    runtime = run.load(threads=2)
    draw, longest = np.random.default_rng(0), run.bundle.manifest.max_length

    def batches(count: int) -> None:
        for _ in range(count):
            length = int(draw.integers(1, longest + 1))
            padded = length + -length % runtime.length_step
            batch = np.ones((int(draw.integers(1, runtime.batch_tokens // padded + 1)), length), dtype=np.int64)
            runtime.run(batch, batch)

    batches(1_000)
    before = _resident()
    batches(number - 1_000)
    assert _resident() < 1.05 * before, "MiB"


def _resident() -> float:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * 4096 / 2**20


WITHOUT_AMX = """
import sys
from pathlib import Path
from models.bundle.bundle import load
from models.runtimes.graph import Graph
from models.runtimes import REFERENCE
from models.runtimes.base import Options
from models.runtimes.choice import choose
from tests.models.runner import TEXTS
opened = load(Path(sys.argv[1]))
pair = choose(opened, Options("cpu", 2)).pair
vectors, reference = (
    Graph(opened, runtime=one.runtime, precision=one.precision, threads=2).encode(TEXTS) for one in (pair, REFERENCE)
)
assert (vectors * reference).sum(axis=1).min() >= 0.999, pair
print(pair)
"""


@pytest.mark.parametrize(
    "instructions", ["AVX2", *(pytest.param(one, marks=pytest.mark.slow) for one in ("AVX512_CORE", "SSE41"))]
)
def test_a_cpu_without_amx_or_avx512_gets_what_runs_there_and_the_same_vectors(
    tiny_bundle: Path, tmp_path: Path, instructions: str
) -> None:
    """Emulate such a CPU by a variable that OpenVINO's kernels obey, although it reports the real CPU."""
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
