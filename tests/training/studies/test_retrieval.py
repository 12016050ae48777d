"""Tests of studies with retrieval scores: their runs and reports."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from models.bundle.disk import write_whole
from models.encoder.encoder import Encoder
from tests.training.conftest import WORDS
from tests.training.studies.conftest import call, line, planned, write
from training.evaluation import beir, retrieval
from training.evaluation.bootstrap import resample_means
from training.evaluation.pairs import DataError
from training.evaluation.retrieval import MEASURES
from training.evaluation.suite import EvaluationData
from training.studies.description import Study
from training.studies.page import page
from training.studies.results import RESULT, RESULTS, RUNS, TRIAL, read_results, run_folder
from training.studies.scores import (
    COSINES_FILE,
    DEV,
    FOUND,
    RELEVANT,
    RETRIEVAL_FILE,
    evaluate,
    load_arrays,
    save_arrays,
)
from training.studies.summary import summaries
from training.studies.table import grid, table
from training.studies.trial import StudyError, Trial
from training.studies.work import run_trial

MakeStudy = Callable[..., Path]
QUERIES = 40


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Write one collection, `zoo`, whose test split has all queries and whose training split has a few, without STS."""
    folder = tmp_path / "data" / "retrieval" / "zoo"
    (folder / "qrels").mkdir(parents=True)
    documents = [{"_id": word, "title": f"the {word}", "text": f"a {word} can see"} for word in WORDS]
    queries = [{"_id": f"q-{word}", "text": f"who sees the {word}"} for word in WORDS]
    for name, rows in (("corpus", documents), ("queries", queries)):
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    for split, words in (("test", WORDS), ("train", WORDS[:3])):
        judged = "".join(f"q-{word}\t{word}\t1\nq-{word}\t{words[0]}\t{int(word != words[0])}\n" for word in words[1:])
        (folder / "qrels" / f"{split}.tsv").write_text(f"{beir.HEADER}\nq-{words[0]}\t{words[0]}\t1\n{judged}")
    return tmp_path / "data"


def carried_out(trial: Trial, study: Path) -> dict[str, Any]:
    folder = run_folder(trial, study)
    folder.mkdir(parents=True)
    write_whole(folder / TRIAL, trial.to_json())
    run_trial(folder, io.StringIO())
    result: dict[str, Any] = json.loads((folder / RESULT).read_text())
    return result


def test_a_run_is_judged_by_the_collection_and_keeps_what_each_query_found(
    make_study: MakeStudy, data: Path, tiny_backbone: Path, tmp_path: Path
) -> None:
    file = make_study("", untrained=True, sts=False, retrieval=["zoo", "zoo:train"], eval_data=str(data))
    (trial,) = Study.read(file).trials()
    result = carried_out(trial, tmp_path)
    found, relevant = load_arrays(run_folder(trial, tmp_path) / RETRIEVAL_FILE, FOUND, RELEVANT)
    assert result["scores"].keys() == {f"{name} {measure}" for name in ("zoo", "zoo:train") for measure in MEASURES}
    for split, queries in (("test", 10), ("train", 3)):
        name = {"test": "zoo", "train": "zoo:train"}[split]
        collection = beir.load(data / "retrieval" / "zoo", split)
        score = retrieval.evaluate(Encoder.load(str(tiny_backbone), pooling=trial.config.pooling).encode, collection)
        for measure, expected in zip(MEASURES, (score.ndcg10, score.mrr10, score.recall100), strict=True):
            assert result["scores"][f"{name} {measure}"] == pytest.approx(expected, abs=1e-4)
            assert 100 * found[f"{name} {measure}"].mean() == pytest.approx(expected, abs=1e-4)
            assert relevant[f"{name} {measure}"].tolist() == [1] + [2] * (queries - 1)
    assert result["alignment"] is None and not (run_folder(trial, tmp_path) / COSINES_FILE).exists()


def test_an_encoder_is_judged_behind_its_prompts(data: Path, tiny_backbone: Path) -> None:
    collection = beir.load(data / "retrieval" / "zoo", "test")
    encoder = Encoder.load(tiny_backbone, pooling="mean", prompts={"query": f"{WORDS[5]} {WORDS[6]} "})
    judgement = evaluate(encoder, EvaluationData(retrieval={"zoo": collection}), io.StringIO())
    prompted, bare = (retrieval.evaluate(encoder.encode, collection, prompts=p).ndcg10 for p in (encoder.prompts, {}))
    assert judgement.scores["zoo nDCG@10"] == pytest.approx(prompted, abs=1e-4)
    assert abs(prompted - bare) > 1e-3, "they tell"


def test_without_sts_no_label_chooses_the_weights(make_study: MakeStudy, data: Path, tmp_path: Path) -> None:
    (trial,) = Study.read(make_study("", sts=False, retrieval=["zoo"], eval_data=str(data))).trials()
    result = carried_out(trial, tmp_path)
    assert [line["step"] for line in result["curve"]] == [0, 1, 2]
    assert all("self_retrieval_mrr10" in line and "stsb_dev_spearman" not in line for line in result["curve"])
    assert result["corpus"]["held_out"] > 0 and result["config"]["eval_data"] == str(data)


def test_sts_and_retrieval_go_together(make_study: MakeStudy, data: Path, stsb_data: Path, tmp_path: Path) -> None:
    (data / "STS").symlink_to(stsb_data / "STS")
    (trial,) = Study.read(make_study("", untrained=True, retrieval=["zoo"], eval_data=str(data))).trials()
    assert carried_out(trial, tmp_path)["scores"].keys() == {"STSB", DEV, *(f"zoo {each}" for each in MEASURES)}


def test_what_a_run_is_judged_by_is_part_of_its_id(make_study: MakeStudy, data: Path, tmp_path: Path) -> None:
    asked: list[Mapping[str, Any]] = [
        {"retrieval": ["zoo"]}, {"retrieval": ["zoo:train"]}, {"retrieval": ["zoo"], "sts": False},
    ]  # fmt: skip

    def ids() -> list[str]:
        files = [make_study("", name=f"s{n}", eval_data=str(data), **each) for n, each in enumerate(asked)]
        return [trial.id for file in files for trial in Study.read(file).trials()]

    before = ids()
    assert len(set(before)) == 3 and before == ids()
    with (data / "retrieval" / "zoo" / "qrels" / "train.tsv").open("a") as file:
        file.write("q-man\tdog\t1\n")
    after = ids()
    assert [one == other for one, other in zip(before, after, strict=True)] == [True, False, True]
    (trial,) = Study.read(make_study("", eval_data=str(data), **asked[2])).trials()
    assert Trial.from_json(trial.to_json()) == trial


def test_what_is_missing_or_broken_stops_the_study_before_anything_is_trained(
    make_study: MakeStudy, data: Path, tmp_path: Path
) -> None:
    def plan(**settings: Any) -> None:
        planned(make_study("", eval_data=str(data), **settings)).check_files()

    with pytest.raises(DataError, match=r"retrieval: no collection 'farm' in BEIR's layout; there is zoo"):
        plan(sts=False, retrieval=["farm"])
    with pytest.raises(DataError, match=r"qrels/dev\.tsv: No such file"):
        plan(sts=False, retrieval=["zoo:dev"])
    with pytest.raises(StudyError, match="sts: a run without STS tasks needs retrieval or transfer"):
        plan(sts=False)
    with pytest.raises(StudyError, match="retrieval: expected a list whose elements are text, got 'zoo'"):
        plan(retrieval="zoo")
    with pytest.raises(DataError, match="STSBenchmark: no such folder"):
        plan(retrieval=["zoo"])
    out = tmp_path / "out"
    (data / "retrieval" / "zoo" / "queries.jsonl").write_text("{}\n")
    with pytest.raises(DataError, match=r"queries\.jsonl:1: _id is missing"):
        call("run", str(make_study("", sts=False, retrieval=["zoo"], eval_data=str(data))), "--out", str(out))
    assert not out.exists()


def answered(study: Path, arm: str, seed: int, share: float, relevant: int = 1) -> dict[str, Any]:
    """Return a run whose queries find this share of their relevant documents."""
    draw = np.random.default_rng([seed, ord(arm[0])])
    found = {f"zoo {measure}": np.minimum(1, 2 * share * draw.random(QUERIES)) for measure in MEASURES}
    folder = study / RUNS / f"{arm}{seed}"
    folder.mkdir(parents=True)
    save_arrays(folder / RETRIEVAL_FILE, {FOUND: found, RELEVANT: {task: np.full(QUERIES, relevant) for task in found}})
    scores = {task: 100 * float(values.mean()) for task, values in found.items()}
    curve = [{"step": step, "self_retrieval_mrr10": share} for step in (0, 5)]
    return line(arm, seed, 0.0, scores=scores, alignment=None, uniformity=None, curve=curve)


def test_a_table_for_each_measure_compares_the_queries(tmp_path: Path) -> None:
    arms = (("base", 0.3), ("good", 0.5), ("close", 0.3))
    write(tmp_path, *(answered(tmp_path, arm, seed, share) for arm, share in arms for seed in (0, 1, 2)))
    results = read_results(tmp_path / RESULTS)
    found = summaries(results, tmp_path, resamples=200)
    assert [summary.metric.unit for summary in found] == [f"{measure} × 100" for measure in MEASURES]
    base, good, close = found[0].rows
    assert good.verdict == "better" and close.verdict == "interval contains 0" and base.gain is None
    assert base.mean.mean == pytest.approx(np.mean([each.scores["zoo nDCG@10"] for each in results[:3]]), abs=0.01)
    assert grid(found[0])[0] == ["arm", "seeds", "zoo nDCG@10", "gain", "95 % interval", "P(better)", "verdict"]
    assert "a paired bootstrap of the queries" in table(*found)
    runs = [
        [load_arrays(tmp_path / RUNS / f"{arm}{seed}" / RETRIEVAL_FILE, FOUND, RELEVANT)[0] for seed in (0, 1, 2)]
        for arm in ("base", "good")
    ]
    mine, theirs = (
        resample_means([{"zoo nDCG@10": each["zoo nDCG@10"]} for each in of], resamples=200) for of in reversed(runs)
    )
    assert good.gain == mine.against(theirs)


def test_the_page_goes_without_what_sts_would_show(tmp_path: Path) -> None:
    write(tmp_path, *(answered(tmp_path, arm, 0, share) for arm, share in (("a", 0.3), ("b", 0.4))))
    text = page("few", "", *summaries(read_results(tmp_path / RESULTS), tmp_path, resamples=50))
    assert re.findall(r'<section id="(\w+)"', text) == ["ndcg", "mrr", "recall", "figures"]
    names = re.findall(r'<title id="(.*?)-title">', text)
    assert len(names) == len(set(names)) == 7 and names[-1] == "curve-self_retrieval_mrr10"


def test_other_judgements_are_named(tmp_path: Path) -> None:
    write(tmp_path, answered(tmp_path, "a", 0, 0.3), answered(tmp_path, "b", 0, 0.3, relevant=2))
    with pytest.raises(StudyError, match=r"the human judgements of zoo nDCG@10 differ from those of the first run"):
        summaries(read_results(tmp_path / RESULTS), tmp_path)


def test_a_measure_without_a_task_in_common_is_left_out_by_name(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    scores = [{f"{name} {measure}": 50.0 for measure in MEASURES} for name in ("one", "two")]
    write(tmp_path, *(line(arm, 0, 70.0, scores={DEV: 70.0, **of}) for arm, of in zip("ab", scores, strict=True)))
    assert [summary.metric.name for summary in summaries(read_results(tmp_path / RESULTS), tmp_path, resamples=10)] == [
        "sts"
    ]
    html = tmp_path / "page.html"
    assert call("report", str(tmp_path), "--html", str(html)) == 0
    out = capsys.readouterr().out
    for measure in MEASURES:
        said = f"Retrieval, {measure}: left out, because its runs share no task."
        assert said in out.splitlines() and said in html.read_text()
    write(tmp_path, *(line(arm, 0, 0.0, scores=of) for arm, of in zip("ab", scores, strict=True)))
    with pytest.raises(StudyError, match="share no task"):
        summaries(read_results(tmp_path / RESULTS), tmp_path)


def test_results_without_any_task_are_named(tmp_path: Path) -> None:
    write(tmp_path, line("a", 0, 0.0, scores={}))
    with pytest.raises(StudyError, match="share no task"):
        summaries(read_results(tmp_path / RESULTS), tmp_path)
