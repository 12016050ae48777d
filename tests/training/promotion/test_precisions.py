"""A reduced precision is served only if it says the same and was measured to be quicker here."""

from __future__ import annotations

import io
import json
import shutil
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from models import bundle
from models.bundle import FP32, Bundle
from models.graph import Graph
from training.corpus import open_corpus
from training.evaluation.bootstrap import Comparison
from training.evaluation.self_retrieval import halves, mrr10, reciprocal_ranks
from training.evaluation.vectors import Encode
from training.promotion import pace
from training.promotion.decision import Decision
from training.promotion.pace import LEAST_GAIN, LENGTHS, Timings
from training.promotion.place import Place
from training.promotion.promote import Terms, promote
from training.promotion.yardsticks import Judged, Unlabelled

Rewritten = Callable[..., Bundle]


class Told:
    """A yardstick that says of one encoder after another what it was told."""

    metric = drift_metric = sample = "told"

    def __init__(self, *drifts: float) -> None:
        self._drifts = list(drifts)

    def judge(self, encode: Encode) -> Judged:
        return Judged(80.0, np.zeros(2))

    def compare(self, a: Judged, b: Judged) -> Comparison:
        return Comparison(0.0, 0.0, 0.0, 0.5)

    def drift(self, encode: Encode) -> float:
        return self._drifts.pop(0)


def timed(**seconds: float) -> Timings:
    def timings(graphs: Mapping[str, Encode], texts: Sequence[str]) -> dict[str, list[float]]:
        assert list(graphs) == list(seconds) and texts
        return {precision: [100.0, one, one, one, 0.0] for precision, one in seconds.items()}

    return timings


@pytest.fixture
def reduced(artifacts: Path, rewritten: Rewritten) -> Bundle:
    """`tiny` with graphs of two further precisions, which are the float32 one by other names."""
    for precision in ("bf16", "fp16"):
        shutil.copy(artifacts / "tiny" / bundle.ONNX, artifacts / "tiny" / f"onnx/model_{precision}.onnx")
    return rewritten(artifacts / "tiny")


def promoted(source: Bundle, yardstick: Told, timings: Timings = pace.interleaved) -> Decision:
    place = Place(source.folder.parent / "default")
    return promote(source.folder, place, Terms(), lambda: yardstick, stream=io.StringIO(), timings=timings)


def test_a_slower_precision_is_left_out_of_the_copy(reduced: Bundle) -> None:
    decision = promoted(reduced, Told(80, 80, 80), timed(fp32=0.2, bf16=0.1, fp16=0.2 / 1.04))
    assert decision.outcome == "promoted"
    served = bundle.load(reduced.folder.parent / "default")
    assert list(served.graphs) == [FP32, "bf16"]
    assert not (served.folder / "onnx" / "model_fp16.onnx").exists()
    assert list(bundle.load(reduced.folder).graphs) == [FP32, "bf16", "fp16"], "the candidate keeps its own"
    report = json.loads((served.folder / bundle.REPORT).read_text())
    assert report["promotion"]["precisions"] == {
        "fp32": {"seconds": 0.2, "rounds": 5, "kept": True},
        "bf16": {"seconds": 0.1, "rounds": 5, "times_as_fast": 2.0, "kept": True},
        "fp16": {
            "seconds": pytest.approx(0.1923, abs=1e-4),
            "rounds": 5,
            "times_as_fast": pytest.approx(1.04),
            "kept": False,
        },
    }


@pytest.mark.parametrize(
    ("drift", "outcome"), [(-0.19, "promoted"), (-0.21, "refused"), (0.21, "refused"), (np.nan, "refused")]
)
def test_a_precision_that_scores_otherwise_is_refused(reduced: Bundle, drift: float, outcome: str) -> None:
    decision = promoted(reduced, Told(80, 80, 80 + drift), timed(fp32=0.3, bf16=0.1, fp16=0.1))
    assert decision.outcome == outcome
    assert [check.name for check in decision.failed] == ([] if outcome == "promoted" else ["reduced precisions"])
    json.dumps(decision.to_json(), allow_nan=False)


def test_a_precision_far_from_the_golden_vectors_is_refused(
    reduced: Bundle, artifacts: Path, rewritten: Rewritten
) -> None:
    shutil.copy(artifacts / "other" / bundle.ONNX, reduced.graphs["fp16"])
    decision = promoted(rewritten(reduced.folder), Told(80, 80, 80))
    assert [check.name for check in decision.failed] == ["golden vectors"]
    assert "fp16 is below 0.999" in decision.failed[0].says


def test_a_graph_that_does_not_run_is_refused(reduced: Bundle, rewritten: Rewritten) -> None:
    reduced.graphs["bf16"].write_bytes(b"no graph")
    decision = promoted(rewritten(reduced.folder), Told(80, 80, 80))
    assert decision.outcome == "refused"
    assert "bf16: " in decision.failed[0].says


def test_a_quantised_graph_is_kept_exactly_if_it_was_quicker(artifacts: Path, rewritten: Rewritten) -> None:
    from onnxruntime.quantization import QuantType, quantize_dynamic

    source, target = (artifacts / "tiny" / bundle.ONNX, artifacts / "tiny" / "onnx" / "model_int8.onnx")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it recommends a preparation that this graph does not need
        quantize_dynamic(source, target, weight_type=QuantType.QInt8, op_types_to_quantize=["Gather"])
    assert target.read_bytes() != source.read_bytes()
    decision = promoted(rewritten(artifacts / "tiny"), Told(80, 80.1))
    assert decision.outcome == "promoted", decision.failed
    facts = decision.precisions["int8"]
    assert facts["rounds"] == pace.ROUNDS and facts["seconds"] > 0
    assert facts["kept"] == (facts["times_as_fast"] >= LEAST_GAIN)
    assert ("int8" in bundle.load(artifacts / "default").graphs) == facts["kept"]


def test_rounds_are_interleaved_and_the_first_is_not_counted() -> None:
    called: list[str] = []

    def encoder(name: str) -> Encode:
        def encode(texts: Sequence[str]) -> Any:
            called.append(name)

        return encode

    seconds = pace.interleaved({"fp32": encoder("fp32"), "int8": encoder("int8")}, ["a"])
    assert called[:6] == ["fp32", "int8", "int8", "fp32", "fp32", "int8"]
    assert len(called) == 2 * (pace.ROUNDS + 1)
    assert {name: len(rounds) for name, rounds in seconds.items()} == {"fp32": pace.ROUNDS, "int8": pace.ROUNDS}


def test_the_mix_has_every_length_equally_often() -> None:
    lengths = [len(text.split()) for text in pace.length_mix(["a", "b"])]
    assert {length: lengths.count(length) for length in LENGTHS} == dict.fromkeys(LENGTHS, pace.TEXTS_OF_EACH)
    assert pace.length_mix(["a", "b"]) == pace.length_mix(["a", "b"])


@given(st.lists(st.floats(0.01, 10), min_size=1, max_size=9), st.floats(0.1, 10))
def test_a_graph_is_judged_by_the_ratio_of_medians(base: list[float], factor: float) -> None:
    found = pace.judged({FP32: base, "int8": [one / factor for one in base]})["int8"]
    assert found["times_as_fast"] == pytest.approx(factor)
    assert found["kept"] == (found["times_as_fast"] >= LEAST_GAIN)


def test_reciprocal_ranks_are_those_of_self_retrieval(artifacts: Path, corpus: Path) -> None:
    opened = open_corpus([str(corpus)])
    pairs = [pair for pair in map(halves, opened.census.held_out) if pair]
    tiny, other = (Graph(bundle.load(artifacts / name)).encode for name in ("tiny", "other"))
    assert reciprocal_ranks(tiny, pairs).mean() == pytest.approx(mrr10(tiny, pairs))
    yardstick = Unlabelled(opened)
    a, b = yardstick.judge(tiny), yardstick.judge(other)
    forth, back = yardstick.compare(a, b), yardstick.compare(b, a)
    assert forth.difference == pytest.approx(100 * (mrr10(tiny, pairs) - mrr10(other, pairs)))
    assert (back.difference, back.low, back.high) == pytest.approx((-forth.difference, -forth.high, -forth.low))
    same = yardstick.compare(a, a)
    assert (same.difference, same.low, same.high, same.better) == (0, 0, 0, 0.5)
