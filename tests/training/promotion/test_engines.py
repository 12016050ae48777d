"""Tests of engines: they must reproduce the scores, and the bundle's graphs of reduced precision must be faster."""

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

from models.bundle import bundle
from models.bundle.bundle import FP32, Bundle
from models.bundle.prompts import NO_PROMPTS
from models.runtimes import REFERENCE, RUNTIMES, Pair, choice, measurement
from models.runtimes.base import Options
from models.runtimes.choice import barred
from models.runtimes.measurement import Encode, Open
from models.runtimes.openvino import OpenVino
from training.evaluation.bootstrap import Comparison
from training.evaluation.vectors import EvaluationError
from training.promotion.checks import Decision
from training.promotion.engines import LEAST_GAIN, Machine
from training.promotion.place import Place
from training.promotion.promote import Terms, promote
from training.promotion.yardsticks import Scored

Rewritten = Callable[..., Bundle]
OTHER = Pair("openvino", "bf16")
REDUCED = {precision: Pair("onnxruntime", precision) for precision in ("bf16", "fp16")}


class Told:
    """Yardstick with given scores for one encoder after another."""

    metric = sample = "told"

    def __init__(self, *scores: float | Exception) -> None:
        self.named: str | None = None
        self.limits: Mapping[str, float] = {"told": 0.2}
        self._scores = list(scores)
        self.behind: list[Mapping[str, str]] = []

    def judge(self, encode: Encode, prompts: Mapping[str, str] = NO_PROMPTS) -> Scored:
        return Scored(80.0, np.zeros(2))

    def compare(self, a: Scored, b: Scored) -> Comparison:
        return Comparison(0.0, 0.0, 0.0, 0.5)

    def scores(self, encode: Encode, prompts: Mapping[str, str] = NO_PROMPTS) -> dict[str, float]:
        self.behind.append(prompts)
        score = self._scores.pop(0)
        if isinstance(score, Exception):
            raise score
        return {"told": score}


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def machine(seconds: Mapping[Pair, float], others: Mapping[Pair, Callable[[Encode], Encode]] | None = None) -> Machine:
    """Return a machine with these durations. `others` map pairs to changes of the float32 graph's vectors."""
    clock = Clock()

    def timed(load: Open, pair: Pair) -> Open:
        def opened() -> Encode:
            encode = load()

            def encoding(texts: Sequence[str]) -> Any:
                clock.now += seconds[pair]
                return encode(texts)

            return encoding

        return opened

    def graphs(source: Bundle, options: Options) -> dict[Pair, Open]:
        found = measurement.graphs(source, options)
        for pair, change in (others or {}).items():
            found[pair] = lambda change=change: change(found[REFERENCE]())  # type: ignore[misc]
        return {pair: timed(load, pair) for pair, load in found.items()}

    return Machine(graphs=graphs, clock=clock)


def noisy(relative: float) -> Callable[[Encode], Encode]:
    """Return a function that adds noise of this relative length to each vector."""

    def changed(encode: Encode) -> Encode:
        def noise(texts: Sequence[str]) -> Any:
            vectors = encode(texts)
            drawn = np.random.default_rng(0).standard_normal(vectors.shape)
            moved = vectors + relative * drawn / np.linalg.norm(drawn, axis=1, keepdims=True)
            return (moved / np.linalg.norm(moved, axis=1, keepdims=True)).astype(np.float32)

        return noise

    return changed


@pytest.fixture
def tiny(artifacts: Path) -> Bundle:
    return bundle.load(artifacts / "tiny")


@pytest.fixture
def reduced(artifacts: Path, rewritten: Rewritten) -> Bundle:
    """Return `tiny` with graphs of two further precisions, which are copies of the float32 graph."""
    for precision in REDUCED:
        shutil.copy(artifacts / "tiny" / bundle.ONNX, artifacts / "tiny" / f"onnx/model_{precision}.onnx")
    return rewritten(artifacts / "tiny")


def promoted(source: Bundle, yardstick: Told, on: Machine | None = None) -> Decision:
    place = Place(source.folder.parent / "default")
    return promote(source.folder, place, Terms(), lambda: yardstick, stream=io.StringIO(), machine=on or Machine())


def rows(decision: Decision) -> dict[Pair, dict[str, Any]]:
    """Return the rows of the ledger's line, by pair."""
    (check,) = (check for check in decision.to_json()["checks"] if check["name"] == "engines")
    return {Pair(row["runtime"], row["precision"]): row for row in check["numbers"]["engines"]}


def carried(folder: Path) -> dict[Pair, dict[str, Any]]:
    """Return the rows of the served bundle's table, by pair."""
    table = json.loads((folder / bundle.ENGINES).read_text())
    return {Pair(row["runtime"], row["precision"]): row for row in table["measured"]}


def test_each_engine_is_judged_by_the_candidates_prompts(reduced: Bundle, rewritten: Rewritten) -> None:
    prompted, yardstick = rewritten(reduced.folder, prompts={"query": "q: "}), Told(80, 80, 80)
    assert promoted(prompted, yardstick, machine({REFERENCE: 0.2, REDUCED["bf16"]: 0.1, REDUCED["fp16"]: 0.1}))
    assert yardstick.behind == [{"query": "q: "}] * 3


def test_a_slower_graph_is_left_out_of_the_copy(reduced: Bundle) -> None:
    seconds = {REFERENCE: 0.2, REDUCED["bf16"]: 0.1, REDUCED["fp16"]: 0.2 / 1.04}
    decision = promoted(reduced, Told(80, 80, 80), machine(seconds))
    assert decision.outcome == "promoted", decision.failed
    served = bundle.load(reduced.folder.parent / "default")
    assert list(served.graphs) == [FP32, "bf16"]
    assert not (served.folder / "onnx" / "model_fp16.onnx").exists()
    assert list(bundle.load(reduced.folder).graphs) == [FP32, "bf16", "fp16"], "the candidate keeps its own"
    found = rows(decision)
    assert {pair: row["kept"] for pair, row in found.items()} == {
        REFERENCE: True,
        REDUCED["bf16"]: True,
        REDUCED["fp16"]: False,
    }
    assert found[REDUCED["bf16"]]["times_reference"] == pytest.approx(2)
    assert found[REDUCED["fp16"]]["times_reference"] == pytest.approx(1.04)
    assert set(carried(served.folder)) == {REFERENCE, REDUCED["bf16"]}
    assert carried(served.folder)[REDUCED["bf16"]]["chosen"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("drift", "outcome"), [(-0.19, "promoted"), (-0.21, "refused"), (0.21, "refused"), (np.nan, "refused")]
)
def test_a_graph_that_scores_otherwise_is_refused(reduced: Bundle, drift: float, outcome: str) -> None:
    decision = promoted(reduced, Told(80, 80, 80 + drift))
    assert decision.outcome == outcome
    assert [check.name for check in decision.failed] == ([] if outcome == "promoted" else ["engines"])
    json.dumps(decision.to_json(), allow_nan=False)


def test_a_graph_far_from_the_golden_vectors_is_refused(reduced: Bundle, artifacts: Path, rewritten: Rewritten) -> None:
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
        warnings.simplefilter("ignore")  # The warning recommends a preparation that this graph does not need.
        quantize_dynamic(source, target, weight_type=QuantType.QInt8, op_types_to_quantize=["Gather"])
    assert target.read_bytes() != source.read_bytes()
    decision = promoted(rewritten(artifacts / "tiny"), Told(80, 80.1))
    assert decision.outcome == "promoted", decision.failed
    row = rows(decision)[Pair("onnxruntime", "int8")]
    assert row["kept"] == (row["times_reference"] >= LEAST_GAIN)
    assert ("int8" in bundle.load(artifacts / "default").graphs) == row["kept"]


def test_a_pair_that_says_the_same_may_be_chosen_and_the_ledger_has_its_figures(tiny: Bundle) -> None:
    decision = promoted(tiny, Told(80, 80.15), machine({REFERENCE: 0.4, OTHER: 0.1}, {OTHER: noisy(1e-4)}))
    assert decision.outcome == "promoted", decision.failed
    row = rows(decision)[OTHER]
    assert row["drifts"] == {"told": pytest.approx(0.15)} and row["barred"] is None
    assert row["golden_cosine"] > 0.9999 and row["times_reference"] == pytest.approx(4)
    assert carried(tiny.folder.parent / "default")[OTHER]["chosen"]


def test_a_pair_of_other_vectors_is_passed_over_without_asking_for_its_score(tiny: Bundle) -> None:
    decision = promoted(tiny, Told(80), machine({REFERENCE: 0.4, OTHER: 0.1}, {OTHER: noisy(0.1)}))
    assert decision.outcome == "promoted", decision.failed
    assert rows(decision)[OTHER]["drifts"] == {}
    found = carried(tiny.folder.parent / "default")
    assert found[REFERENCE]["chosen"] and found[OTHER]["why_not"].startswith("cosine 0.99")


def wrong_on_golden(tiny: Bundle) -> Callable[[Encode], Encode]:
    known = {golden.text for golden in tiny.manifest.golden}
    return lambda encode: lambda texts: encode([text if text not in known else "a" for text in texts])


@pytest.mark.parametrize(
    ("score", "says"),
    [
        (79.7, "differs from float32 by -0.30 points of told, more than 0.2"),
        (80.3, "differs from float32 by +0.30"),
        (np.nan, "differs from float32 by +nan"),
        (EvaluationError("a vector holds NaN"), "can't be evaluated: a vector holds NaN"),
    ],
    ids=str,
)
def test_a_pair_that_scores_otherwise_is_barred_for_good(
    tiny: Bundle, score: float | Exception, says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    decision = promoted(tiny, Told(80, score), machine({REFERENCE: 0.4, OTHER: 0.1}, {OTHER: noisy(1e-4)}))
    assert decision.outcome == "promoted", "float32 is left"
    json.dumps(decision.to_json(), allow_nan=False)
    served = bundle.load(tiny.folder.parent / "default")
    assert carried(served.folder)[OTHER]["barred"].startswith(says) and carried(served.folder)[REFERENCE]["chosen"]
    monkeypatch.setattr(choice, "available", lambda *_, **__: [REFERENCE, OTHER])
    monkeypatch.setattr(choice, "recall", lambda *_: [])
    quick = measurement.Measured(*OTHER, 40.0, 4.0, 1.0, 0.0)
    monkeypatch.setattr(choice, "measure", lambda *_: [measurement.Measured(*REFERENCE, 10.0, 1.0, 1.0, 0.0), quick])
    chosen = choice.choose(served, Options("cpu", 7))
    assert chosen.pair == REFERENCE, "not even on a host where it is quick"
    assert {row["precision"]: row["why_not"] for row in chosen.table()}["bf16"].startswith(says)
    assert choice.choose(tiny, Options("cpu", 7)).pair == OTHER, "of the same encoder, which nobody promoted"


def test_what_another_machine_barred_stays_barred_until_it_is_judged(tiny: Bundle, rewritten: Rewritten) -> None:
    elsewhere = Pair("tensorrt", "fp16")
    told = [{**pair._asdict(), "barred": "drifts there"} for pair in (elsewhere, OTHER)]
    (tiny.folder / bundle.ENGINES).write_text(json.dumps({"host": {}, "measured": told}))
    decision = promoted(
        rewritten(tiny.folder), Told(80, 80), machine({REFERENCE: 0.4, OTHER: 0.1}, {OTHER: noisy(1e-4)})
    )
    assert decision.outcome == "promoted"
    assert barred(bundle.load(tiny.folder.parent / "default")) == {elsewhere: "drifts there"}


def test_a_pair_far_from_the_golden_vectors_is_barred(tiny: Bundle) -> None:
    others = {OTHER: wrong_on_golden(tiny)}
    decision = promoted(tiny, Told(80, 80), machine({REFERENCE: 0.4, OTHER: 0.1}, others))
    assert decision.outcome == "promoted"
    assert "to a golden vector, below 0.999" in rows(decision)[OTHER]["barred"]


def test_what_was_promoted_here_is_not_measured_again(tiny: Bundle, monkeypatch: pytest.MonkeyPatch) -> None:
    here = machine({REFERENCE: 0.4, OTHER: 0.1}, {OTHER: noisy(1e-4)})
    monkeypatch.setattr(choice, "available", lambda *_, **__: [REFERENCE, OTHER])
    assert promoted(tiny, Told(80, 79.7), here).outcome == "promoted"
    monkeypatch.setattr(choice, "measure", lambda *_: pytest.fail("measured under traffic"))
    served = bundle.load(tiny.folder.parent / "default")
    assert choice.choose(served, here.options).pair == REFERENCE, "by the bar, which no cache holds"


@pytest.mark.slow
def test_openvino_itself_is_judged(tiny: Bundle) -> None:
    RUNTIMES[OpenVino.name] = OpenVino  # `_onnxruntime_alone` undoes this change, too.
    pairs = list(measurement.graphs(tiny, Options("cpu", 1)))
    if len(pairs) == 1:
        pytest.skip("there is no other runtime on this machine")
    decision = promoted(tiny, Told(*[80.0] * len(pairs)), Machine(Options("cpu", 1)))
    assert decision.outcome == "promoted", decision.failed
    found = rows(decision)
    assert list(found) == pairs
    assert all(row["golden_cosine"] >= bundle.GOLDEN_COSINE for row in found.values() if row["drifts"])
    assert all(row["times_reference"] > 0 for row in found.values())
