from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from models.__main__ import main as export
from models.bundle.bundle import FP32, BundleError, load
from models.bundle.sources import SourceError
from models.encoder.encoder import Encoder
from models.errors import Failed
from models.runtimes import REFERENCE, available
from models.runtimes import Pair as Engines
from models.runtimes.base import Options
from models.runtimes.graph import Graph
from models.runtimes.onnxruntime import OnnxRuntime
from training.cli import main
from training.evaluation import subjects
from training.evaluation.beir import Collection
from training.evaluation.labelled import TRANSFER_TASKS, Example, Labelled
from training.evaluation.pairs import STS_TASKS, DataError, Pair
from training.evaluation.report.page import render
from training.evaluation.subjects import OtherGraph, Subject, SubjectError, open_subject
from training.evaluation.suite import EvaluationData, aligned, evaluate, load_data, tables
from training.evaluation.vectors import EvaluationError, cached

PAIRS = [
    Pair("the man can play a guitar", "a man will play the guitar", 4.8),
    Pair("the dog and the cat sleep", "a cat and a dog sleep", 4.2),
    Pair("the market was hot", "the river is cold", 1.0),
    Pair("a child can read", "the bird will sing", 0.4),
    Pair("the teacher can speak", "a student will write", 2.2),
    Pair("red flower", "green tree", 2.0),
]
TEXTS = [f"{a} {b} {c}" for a in ("the", "a") for b in ("cat", "dog", "bird") for c in ("sleep", "eat", "run", "sing")]
GIVEN = EvaluationData(
    sts={**{task: {"test": PAIRS} for task in STS_TASKS}, "STS12": {"one": PAIRS[:3], "two": PAIRS[3:]}},
    transfer={task: Labelled([Example((text,), "the" in text) for text in TEXTS]) for task in TRANSFER_TASKS},
    retrieval={"tiny": Collection({"d": TEXTS[0], "e": TEXTS[1]}, {"q": TEXTS[2]}, {"q": {"d": 1}})},
    geometry={"dev": PAIRS},
)
PAIRS_ALONE = EvaluationData(sts=GIVEN.sts)


@pytest.mark.slow
def test_a_bundle_is_judged_by_its_graph_on_everything(tiny_bundle: Path) -> None:
    judged = open_subject(str(tiny_bundle), key=None)
    found = evaluate(judged, GIVEN, command="the command")
    assert found["subject"]["kind"] == "bundle" and found["subject"]["precision"] == "fp32"
    assert found["sts"]["tasks"]["STS12"]["subsets"].keys() == {"one", "two"}
    assert 0 <= found["transfer"]["mean"] <= 100
    assert found["retrieval"]["tiny"]["through"] == "exact search"
    assert found["geometry"]["alignment"] > 0
    assert found["speed"]["texts"] == len({text for pair in PAIRS for text in (pair.a, pair.b)} | {*TEXTS})
    json.dumps(found, allow_nan=False)
    assert "STS12" in tables(found) and "nDCG@10" in tables(found)
    assert "<svg" in render([found])


@pytest.mark.slow
def test_torch_and_graph_agree(tiny_bundle: Path) -> None:
    by_graph, by_torch = (open_subject(str(tiny_bundle), by_torch=flag, key=None) for flag in (False, True))
    assert by_torch.facts["engine"].startswith("torch") and by_graph.facts["engine"].startswith("onnxruntime")
    first, second = (evaluate(each, PAIRS_ALONE, command="")["sts"]["mean"] for each in (by_graph, by_torch))
    assert first == pytest.approx(second, abs=0.01)


def test_another_pooling_is_another_encoder(tiny_bundle: Path) -> None:
    judged = open_subject(str(tiny_bundle), pooling="cls", key=None)
    assert judged.facts["pooling"] == "cls" and judged.facts["fingerprint"] is None
    expected = Encoder.load(tiny_bundle, pooling="cls").encode(TEXTS)
    np.testing.assert_allclose(judged.encode(TEXTS), expected, rtol=1e-4, atol=1e-5)


def test_bf16_is_near_float32_and_not_it(tiny_backbone: Path) -> None:
    wide, narrow = (
        open_subject(str(tiny_backbone), precision=name, key=None).encode(TEXTS) for name in ("fp32", "bf16")
    )
    cosines = (wide * narrow).sum(1) / np.linalg.norm(wide, axis=1) / np.linalg.norm(narrow, axis=1)
    assert cosines.min() > 0.99 and not np.array_equal(wide, narrow)
    with pytest.raises(SubjectError, match="torch evaluates in fp32 or bf16, not in int8"):
        open_subject(str(tiny_backbone), precision="int8", key=None)


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"source": "http://127.0.0.1:1", "pooling": "cls"}, SubjectError),
        ({"source": "http://127.0.0.1:1"}, EvaluationError),
        ({"source": "http://[::1"}, EvaluationError),
        ({"source": "no-such-encoder/at-all"}, SourceError),
    ],
)
def test_what_cannot_be_judged_is_named(options: dict[str, Any], error: type[Exception]) -> None:
    with pytest.raises(error, match=re.escape(options["source"]) if error is not SubjectError else None):
        open_subject(**options, key=None)


def test_a_bundle_is_judged_by_the_engine_that_is_named(tiny_bundle: Path) -> None:
    if "openvino" not in {pair.runtime for pair in available(load(tiny_bundle), Options("cpu", 1))}:
        pytest.skip("openvino is for x86-64")
    judged = open_subject(str(tiny_bundle), engine="openvino", key=None)
    assert str(judged.facts["engine"]).startswith("openvino ") and judged.variant == "openvino fp32"
    assert FP32 in judged.others and "openvino fp32" not in judged.others
    np.testing.assert_allclose(judged.encode(TEXTS), judged.others[FP32].encode(TEXTS), atol=1e-5)
    with pytest.raises(
        SubjectError, match="no runtime of this machine supports int4; available: onnxruntime fp32, openvino fp32"
    ):
        open_subject(str(tiny_bundle), precision="int4", key=None)
    with pytest.raises(SubjectError, match="this encoder runs on torch, so --engine openvino"):
        open_subject(str(tiny_bundle), engine="openvino", by_torch=True, key=None)


def test_how_else_this_machine_runs_a_bundle_is_compared(tiny_bundle: Path) -> None:
    pairs = [pair for pair in available(load(tiny_bundle), Options("cpu", 1)) if pair.precision != FP32]
    assert list(open_subject(str(tiny_bundle), key=None).others) == [str(pair) for pair in pairs]


def test_a_pair_that_does_not_load_is_named_only_where_it_is_compared(
    tiny_bundle: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(subjects, "available", lambda *_: [REFERENCE, Engines("onnxruntime", "int4")])
    judged = open_subject(str(tiny_bundle), key=None)
    assert list(judged.others) == ["int4"]
    assert "precisions" not in evaluate(judged, EvaluationData(geometry=GIVEN.geometry), command="")
    with pytest.raises(SubjectError, match=r"onnxruntime int4 does not run: .*no int4 graph"):
        evaluate(replace(judged, encode=_never), PAIRS_ALONE, command="")


def _never(texts: Sequence[str]) -> NDArray[np.float32]:
    raise AssertionError(f"{len(texts)} texts encoded before the others were tried")


def test_the_other_graphs_of_a_bundle_are_compared(tiny_bundle: Path) -> None:
    judged = open_subject(str(tiny_bundle), key=None)
    rough = OtherGraph(_rounded(judged.encode), 7)
    found = evaluate(replace(judged, others={"int8": rough}), PAIRS_ALONE, command="")["precisions"]
    assert found["fp32"]["least_cosine"] == pytest.approx(1, abs=1e-6)
    assert found["int8"]["least_cosine"] < 0.9999
    assert (found["fp32"]["bytes"], found["int8"]["bytes"]) == (judged.facts["bytes"], 7)


def test_cosines_are_to_fp32_whichever_is_judged_and_else_to_the_judged_one(tiny_bundle: Path) -> None:
    whole = open_subject(str(tiny_bundle), key=None)
    rough = replace(whole, encode=_rounded(whole.encode), facts={**whole.facts, "precision": "int8"})
    found = evaluate(replace(rough, others={"fp32": OtherGraph(whole.encode, 9)}), PAIRS_ALONE, command="")
    assert {one["cosine_to"] for one in found["precisions"].values()} == {"fp32"}
    assert found["precisions"]["int8"]["least_cosine"] < 0.9999
    assert found["precisions"]["fp32"]["least_cosine"] == pytest.approx(1, abs=1e-6)
    found = evaluate(replace(rough, others={"bf16": OtherGraph(whole.encode, 9)}), PAIRS_ALONE, command="")
    assert {one["cosine_to"] for one in found["precisions"].values()} == {"int8"}
    assert found["precisions"]["bf16"]["least_cosine"] < 0.9999
    assert "to" in tables(found) and "int8" in render([found])


def test_sentences_of_the_geometry_are_the_different_first_ones_of_the_pairs() -> None:
    def encode(texts: Sequence[str]) -> NDArray[np.float32]:
        return np.array([np.random.default_rng(list(text.encode())).normal(size=8) for text in texts], dtype=np.float32)

    twice = EvaluationData(geometry={"dev": [*PAIRS, Pair(PAIRS[0].a, "another", 1.0)]})
    found = evaluate(Subject({"name": "drawn"}, encode), twice, command="")["geometry"]
    assert (found["sentences"], found["sentences_of"]) == (len(PAIRS), "STS-B dev, first of each pair")
    assert found["pairs"] == len(PAIRS) + 1


def test_retrieval_alone_is_judged_behind_the_prompts() -> None:
    seen: list[str] = []

    def encode(texts: Sequence[str]) -> NDArray[np.float32]:
        seen.extend(texts)
        return np.random.default_rng(0).normal(size=(len(texts), 8)).astype(np.float32)

    prompted = Subject({"name": "drawn"}, encode, prompts={"query": "q: ", "document": "d: "})
    evaluate(prompted, replace(GIVEN, sts={}, transfer={}, geometry={}), command="")
    assert set(seen) >= {f"d: {TEXTS[0]}", f"d: {TEXTS[1]}", f"q: {TEXTS[2]}"}
    seen.clear()
    evaluate(prompted, replace(GIVEN, retrieval={}, transfer={"MR": GIVEN.transfer["MR"]}), command="")
    assert not [text for text in seen if text.startswith(("d: ", "q: "))]


def test_prompts_are_the_subjects_however_it_is_run(tiny_bundle: Path, tmp_path: Path) -> None:
    given = ["--prompt", "query=q: ", "--prompt", "clustering="]
    assert export(["export", str(tiny_bundle), "--out", str(tmp_path / "one"), "--no-measure", *given]) == 0
    for by_torch in (False, True):
        prompted = open_subject(str(tmp_path / "one"), by_torch=by_torch, key=None)
        assert prompted.prompts == {"query": "q: ", "clustering": ""}
        assert prompted.facts["prompts"] == {"query": "q: "}
        assert "prompts" not in open_subject(str(tiny_bundle), by_torch=by_torch, key=None).facts


def test_nothing_encoded_is_no_speed() -> None:
    def encode(texts: Sequence[str]) -> NDArray[np.float32]:
        raise AssertionError(f"the server's own search was to be asked, not {len(texts)} vectors")

    served = Subject({"name": "served"}, encode, rankings=lambda _collection: {"q": ["d"]})
    found = evaluate(served, replace(GIVEN, sts={}, transfer={}, geometry={}), command="")
    assert "speed" not in found
    assert found["retrieval"]["tiny"]["ndcg10"] == 100
    assert "the server's index" in tables(found) and "the server&#39;s index" in render([found]).replace("'", "&#39;")


def _rounded(encode: Callable[[Sequence[str]], NDArray[np.float32]]) -> Callable[[Sequence[str]], NDArray[np.float32]]:
    def encode_roughly(texts: Sequence[str]) -> NDArray[np.float32]:
        rough = np.round(encode(texts), 1)
        unit: NDArray[np.float32] = rough / np.linalg.norm(rough, axis=1, keepdims=True)
        return unit

    return encode_roughly


def test_no_text_is_encoded_twice() -> None:
    asked: list[str] = []

    def encode(texts: Sequence[str]) -> NDArray[np.float32]:
        asked.extend(texts)
        return np.array([[len(text), 1] for text in texts], dtype=np.float32)

    once = cached(encode)
    np.testing.assert_array_equal(once(["a", "bcd", "a"]), [[1, 1], [3, 1], [1, 1]])
    np.testing.assert_array_equal(once(["bcd", "ef"]), [[3, 1], [2, 1]])
    assert asked == ["a", "bcd", "ef"]


def test_a_vector_too_few_is_an_error() -> None:
    with pytest.raises(EvaluationError, match="2 texts"):
        cached(lambda _texts: np.ones((1, 3), dtype=np.float32))(["a", "b"])


def test_data_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no collection"):
        load_data(tmp_path, ["retrieval"])
    with pytest.raises(DataError, match="no such folder"):
        load_data(tmp_path / "nowhere", ["sts"])


def test_columns_are_aligned() -> None:
    assert aligned([["a", "b"], ["long", "1.25"]]) == ["a        b", "long  1.25"]


def test_the_command_writes_what_it_measured(
    test_data: Path, tiny_bundle: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = {"json": tmp_path / "e.json", "html": tmp_path / "e.html"}
    arguments = ["evaluate", str(tiny_bundle), "--data", str(test_data), "--tasks", "geometry"]
    assert main([*arguments, "--json", str(files["json"]), "--html", str(files["html"])]) == 0
    found = json.loads(files["json"].read_text())
    assert 1300 < found["geometry"]["sentences"] < 1500 and "sts" not in found
    assert f"{found['geometry']['uniformity']:.4f}" in capsys.readouterr().out
    assert main([*arguments, "--beside", str(files["json"]), "--html", str(tmp_path / "both.html")]) == 0
    assert (tmp_path / "both.html").read_text().count("tiny #2") > 0
    (tmp_path / "e.json").write_text("{}")
    assert main([*arguments, "--beside", str(files["json"]), "--html", str(files["html"])]) == 2
    assert str(files["json"]) in capsys.readouterr().err


@pytest.mark.parametrize("option", ["--json", "--html"])
@pytest.mark.parametrize("place", ["nowhere/e", "file/e", "folder", "pipe", "/dev/null"])
def test_a_file_that_cannot_be_written_is_refused_before_anything_is_read(
    option: str, place: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("")
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe")
    target = tmp_path / place
    assert main(["evaluate", "no-such-encoder", "--data", str(tmp_path / "none"), option, str(target)]) == 2
    said = capsys.readouterr().err
    assert str(target) in said and said.count("\n") == 1


@pytest.mark.parametrize("other", ["e", "folder/../e", "link"])
def test_one_file_for_numbers_and_page_is_refused_before_anything_is_read(
    other: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "link").symlink_to("e")
    files = ["--json", str(tmp_path / "e"), "--html", str(tmp_path / other)]
    assert main(["evaluate", "no-such-encoder", "--data", str(tmp_path / "none"), *files]) == 2
    said = capsys.readouterr().err
    assert f"{tmp_path / 'e'}: is named by both --json and --html" in said and said.count("\n") == 1


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[]", "not an object"),
        ("null", "not an object"),
        ("{", "Expecting property name"),
        ("[" * 10000, "too deep"),
        ('{"format": 1, "subject": {"bytes": "many"}}', "subject bytes is not a number"),
    ],
)
def test_an_evaluation_beside_that_is_none_is_one_line(
    text: str, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "e.json"
    file.write_text(text)
    files = ["--beside", str(file), "--html", str(tmp_path / "e.html")]
    assert main(["evaluate", "no-such-encoder", "--data", str(tmp_path / "none"), *files]) == 2
    line = capsys.readouterr().err
    assert line.count("\n") == 1 and str(file) in line and said in line


@pytest.mark.parametrize("step", ["__init__", "run"])
def test_an_engine_that_fails_is_a_failure_that_names_the_encoder(
    tiny_bundle: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    class OwnError(Exception):
        """Error of an engine, which has no base class of ours."""

    def fail(*_: Any, **__: Any) -> Any:
        raise OwnError("no kernel")

    monkeypatch.setattr(OnnxRuntime, step, fail)
    with pytest.raises(Failed, match=f"{tiny_bundle}.*no kernel"):
        open_subject(str(tiny_bundle), key=None).encode(TEXTS)


def test_the_graph_refuses_a_precision_it_lacks(tiny_bundle: Path) -> None:
    with pytest.raises(BundleError, match="no int4 graph; available: fp32"):
        Graph(load(tiny_bundle), precision="int4")
