"""Tests of behaviour that only OpenVINO has."""

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

from models.bundle.bundle import Bundle
from models.runtimes import REFERENCE, RUNTIMES, Pair, available, openvino
from models.runtimes.base import Options, RuntimeUnavailable
from models.runtimes.choice import Choice, choose
from models.runtimes.graph import Graph
from tests.conftest import PATIENCE
from tests.models.runner import Runner


@pytest.fixture(scope="module")
def run(opened: Bundle) -> Runner:
    try:
        return Runner(opened, Pair("openvino", "fp32"))
    except RuntimeUnavailable as refusal:
        pytest.skip(str(refusal))


@given(st.integers(1, 3), st.integers(1, 200), st.integers(1, 150))
def test_batches_are_padded_in_steps_but_not_beyond_the_longest_text(rows: int, length: int, longest: int) -> None:
    batch = np.ones((rows, length), dtype=np.int64)
    wider = openvino.padded(batch, longest)
    assert wider.shape[0] == rows and (wider[:, :length] == 1).all() and (wider[:, length:] == 0).all()
    width = wider.shape[1]
    assert length <= width < length + openvino.LENGTH_STEP
    assert width % openvino.LENGTH_STEP == 0 or width == max(length, longest)
    assert width <= max(length, longest)


def test_weights_take_half_where_products_are_in_bfloat16(opened: Bundle) -> None:
    pytest.importorskip("openvino")
    graph = openvino._core().read_model(opened.onnx)

    def weights() -> int:
        return sum(op.get_byte_size() for op in graph.get_ops() if op.get_type_name() == "Constant")

    whole = weights()
    openvino.halve(graph)
    assert weights() < 0.6 * whole


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
from models.bundle.bundle import load
from models.runtimes.graph import Graph
graphs = [Graph(load(Path(sys.argv[1])), runtime="openvino", threads=1) for _ in range(2)]
while graphs:
    graphs.pop(0).encode(["a text"])
signal.signal(signal.SIGTERM, lambda *_: print("told", flush=True))
os.kill(os.getpid(), signal.SIGTERM)
"""


@pytest.mark.slow
def test_a_signal_after_two_models_that_overlapped_is_heard(opened: Bundle, run: Runner) -> None:
    command = [sys.executable, "-c", SIGNALLED, str(opened.folder)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, timeout=PATIENCE, check=False)
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
    assert subprocess.run([sys.executable, "-c", ASKED_AT_ONCE], timeout=PATIENCE, check=False).returncode == 0


def test_openvino_leaves_the_choice_of_cpus_to_the_system(run: Runner, opened: Bundle) -> None:
    runtime = RUNTIMES["openvino"](opened, run.pair.precision, Options("cpu", 1))
    compiled = runtime._alone.get().get_compiled_model()  # type: ignore[attr-defined]
    assert compiled.get_property("ENABLE_CPU_PINNING") is False


def test_bf16_is_offered_where_openvino_finds_it(opened: Bundle, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(openvino, "capabilities", lambda: ["FP32", "INT8"])
    assert "bf16" not in RUNTIMES["openvino"].precisions(opened, Options())
    with pytest.raises(RuntimeUnavailable, match="openvino does not support bf16 on this machine; available: fp32"):
        Graph(opened, runtime="openvino", precision="bf16")
    monkeypatch.setattr(openvino, "capabilities", lambda: ["BF16", "FP32"])
    assert "bf16" in RUNTIMES["openvino"].precisions(opened, Options())


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


def test_a_batch_alone_waits_for_no_stream(run: Runner) -> None:
    runtime = run.load(threads=1)
    batch = run.tokenizer.pad(run.tokenizer.encode(["a short text"]))
    runtime._concurrent.get()  # type: ignore[attr-defined]  # the only stream is taken
    with ThreadPoolExecutor(1) as pool:
        found = pool.submit(runtime.run, *batch, alone=True).result(PATIENCE)
    np.testing.assert_allclose(found.vectors, run(["a short text"]).vectors, atol=1e-5)
