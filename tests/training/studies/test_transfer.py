"""Tests of studies with transfer tasks: their runs and reports."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from shutil import copytree

import numpy as np
import pytest

from models.bundle.disk import write_whole
from tests.training.conftest import WORDS
from tests.training.studies.conftest import call, line, write
from training.evaluation import transfer
from training.evaluation.bootstrap import resample_means
from training.evaluation.labelled import TRANSFER_TASKS
from training.evaluation.pairs import DataError
from training.studies.description import Study
from training.studies.page import figures, page
from training.studies.results import RESULT, RESULTS, RUNS, TRIAL, read_results, run_folder
from training.studies.scores import LABELS, PREDICTED, TRANSFER_FILE, load_arrays, save_arrays
from training.studies.summary import TRANSFER, summaries, summarise
from training.studies.table import explanation, grid, table
from training.studies.trial import StudyError
from training.studies.work import run_trial

MakeStudy = Callable[..., Path]
TASKS = tuple(TRANSFER_TASKS)
EXAMPLES = 60


@pytest.fixture
def data(stsb_data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Write STS-B and seven transfer tasks of a few sentences each."""
    place = tmp_path / "data"
    copytree(stsb_data, place)
    monkeypatch.setattr(transfer, "FOLDS", 2)
    positive, negative = (
        [f"the {word} can see {i}" for word in words for i in range(2)] for words in (WORDS[:5], WORDS[5:])
    )
    labelled = [(text, label) for label, texts in ((1, positive), (0, negative)) for text in texts]
    for name, task in TRANSFER_TASKS.items():
        folder = place / task.folder
        folder.mkdir(parents=True)
        for file in task.files:
            if name == "TREC":
                lines = [f"{'HUM' if label else 'LOC'}:x {text}" for text, label in labelled]
            elif name == "MRPC":
                lines = ["Quality", *(f"{label}\t1\t2\t{text}\ta {text}" for text, label in labelled)]
            elif name == "SST2":
                lines = [f"{text}\t{label}" for text, label in labelled]
            else:
                lines = positive if file == task.files[0] else negative
            (folder / file).write_text("\n".join(lines) + "\n")
        rows = {"SST2": (20, 20, 20), "TREC": (20, 0, 20), "MRPC": (20, 0, 20)}.get(name, (20, 0, 0))
        monkeypatch.setitem(TRANSFER_TASKS, name, replace(task, rows=rows))
    return place


@pytest.mark.slow
def test_a_run_is_judged_by_the_tasks_and_keeps_what_was_predicted(
    make_study: MakeStudy, data: Path, tmp_path: Path
) -> None:
    file = make_study("", untrained=True, transfer=True, eval_data=str(data))
    (trial,) = Study.read(file).trials()
    folder = run_folder(trial, tmp_path)
    folder.mkdir(parents=True)
    write_whole(folder / TRIAL, trial.to_json())
    run_trial(folder, io.StringIO())
    scores = json.loads((folder / RESULT).read_text())["scores"]
    assert scores.keys() == {"STSB", "STSB-dev", *TASKS}
    predicted, labels = load_arrays(folder / TRANSFER_FILE, PREDICTED, LABELS)
    assert predicted.keys() == labels.keys() == set(TASKS)
    for task in TASKS:
        assert len(labels[task]) == 20
        assert scores[task] == pytest.approx(100 * np.mean(predicted[task] == labels[task]))


def test_missing_or_broken_tasks_stop_the_study_before_anything_is_trained(
    make_study: MakeStudy, data: Path, tmp_path: Path
) -> None:
    file, out = make_study(transfer=True, eval_data=str(data)), tmp_path / "out"
    questions = data / "TREC" / "TREC_10.label"
    questions.write_text(questions.read_text().replace("LOC", "WHO", 1))
    with pytest.raises(DataError, match=r"TREC_10\.label:11: 'WHO' is not a label"):
        call("run", str(file), "--out", str(out))
    questions.unlink()
    with pytest.raises(DataError, match=r"TREC_10\.label: No such file"):
        call("run", str(file), "--out", str(out))
    assert not out.exists()


def classified(study: Path, arm: str, seed: int, share: float, labels_seed: int = 0) -> dict[str, object]:
    """Return a run whose classifiers are right for about this share of examples."""
    predicted, labels = {}, {}
    for number, task in enumerate(TASKS):
        labels[task] = np.random.default_rng([labels_seed, number]).integers(0, 2, EXAMPLES).astype(np.int8)
        wrong = np.random.default_rng([seed, number, ord(arm[0])]).random(EXAMPLES) > share
        predicted[task] = np.where(wrong, 1 - labels[task], labels[task]).astype(np.int8)
    folder = study / RUNS / f"{arm}{seed}"
    folder.mkdir(parents=True)
    save_arrays(folder / TRANSFER_FILE, {PREDICTED: predicted, LABELS: labels})
    accuracies = {task: 100 * float(np.mean(predicted[task] == labels[task])) for task in TASKS}
    whole = line(arm, seed, 70.0)
    return {**whole, "scores": {**whole["scores"], **accuracies}}


def test_the_tables_stand_beside_each_other(tmp_path: Path) -> None:
    arms = (("base", 0.7), ("good", 0.95), ("close", 0.7))
    write(tmp_path, *(classified(tmp_path, arm, seed, share) for arm, share in arms for seed in (0, 1, 2)))
    results = read_results(tmp_path / RESULTS)
    sts, found = summaries(results, tmp_path, resamples=200)
    assert found == summarise(results, tmp_path, metric=TRANSFER, resamples=200) and found.tasks == TASKS
    base, good, close = found.rows
    assert base.mean.mean == pytest.approx(
        np.mean([result.scores[task] for result in results[:3] for task in TASKS]), abs=0.01
    )
    assert base.mean.deviation and base.gain is None and base.dev is None
    assert good.gain and good.gain.low > 0 and good.verdict == "better"
    assert good.gain.difference == pytest.approx(good.mean.mean - base.mean.mean, abs=0.01)
    assert close.verdict == "interval contains 0"

    head, *lines = grid(found)
    assert head == ["arm", "seeds", "mean of 7 transfer tasks", "gain", "95 % interval", "P(better)", "verdict"]
    assert [each[0] for each in lines] == ["base", "good", "close"] and all(len(each) == len(head) for each in lines)
    assert grid(sts)[0][3] == "STS-B dev"
    assert "Accuracy × 100" in explanation(found) and "MR, CR, SUBJ, MPQA, SST2, TREC, MRPC" in explanation(found)
    both = table(sts, found)
    assert both.endswith(f"\n\n{table(found)}") and table(sts).startswith(both.removesuffix(f"\n\n{table(found)}"))
    assert both.count("effective rank") == 0 and both.count("alignment  ") == 1, "how vectors lie is told once"


def test_the_gain_is_the_bootstrap_of_the_examples_that_were_classified_right(tmp_path: Path) -> None:
    write(tmp_path, classified(tmp_path, "a", 0, 0.7), classified(tmp_path, "b", 0, 0.8))
    hits = []
    for name in ("a0", "b0"):
        predicted, labels = load_arrays(tmp_path / RUNS / name / TRANSFER_FILE, PREDICTED, LABELS)
        hits.append({task: predicted[task] == labels[task] for task in TASKS})
    a, b = (resample_means([each], resamples=100) for each in hits)
    row = summarise(read_results(tmp_path / RESULTS), tmp_path, metric=TRANSFER, resamples=100).rows[1]
    assert row.gain == b.against(a) and row.interval == b.interval()


def test_without_predictions_the_seeds_alone_speak(tmp_path: Path) -> None:
    write(tmp_path, *(classified(tmp_path, arm, seed, 0.8) for arm in "ab" for seed in (0, 1)))
    (tmp_path / RUNS / "b1" / TRANSFER_FILE).unlink()
    a, b = summaries(read_results(tmp_path / RESULTS), tmp_path, resamples=20)[1].rows
    assert a.interval and b.interval is None and b.gain and b.gain.better is None
    assert b.mean.deviation is not None and b.noise is not None


def test_runs_without_the_tasks_are_left_out_of_their_table(tmp_path: Path) -> None:
    write(tmp_path, line("a", 0, 70.0), classified(tmp_path, "b", 0, 0.8), classified(tmp_path, "c", 0, 0.9))
    sts, found = summaries(read_results(tmp_path / RESULTS), tmp_path, resamples=20)
    assert [row.label for row in sts.rows] == ["a", "b", "c"]
    assert [row.label for row in found.rows] == ["b", "c"] and found.against == "b"
    assert summaries(read_results(tmp_path / RESULTS), tmp_path, against="c", resamples=20)[1].against == "c"


def test_other_labels_are_named(tmp_path: Path) -> None:
    write(tmp_path, classified(tmp_path, "a", 0, 0.8), classified(tmp_path, "b", 0, 0.8, labels_seed=1))
    with pytest.raises(
        StudyError, match=r"b0/transfer\.npz: the human labels of MR differ from those of the first run"
    ):
        summaries(read_results(tmp_path / RESULTS), tmp_path)


def test_the_page_has_a_table_and_bars_of_each_metric(tmp_path: Path) -> None:
    write(tmp_path, *(classified(tmp_path, arm, 0, share) for arm, share in (("a", 0.7), ("b", 0.8), ("c", 0.5))))
    both = summaries(read_results(tmp_path / RESULTS), tmp_path, resamples=50)
    text = page("few", "", *both)
    assert re.findall(r'<section id="(\w+)"', text) == ["sts", "transfer", "geometry", "figures"]
    names = re.findall(r'<title id="(.*?)-title">', text)
    assert len(names) == len(set(names)) and {"sts-arms", "transfer-arms", "transfer-gains"} <= set(names)
    gains = next(each for each in figures(*both) if "gain over a" in "".join(each.itertext()))
    up, down = (part for part in gains.iter("rect") if part.get("class") == "bar mark-0 pale")
    left, width = (float(down.get(of, "")) for of in ("x", "width"))
    assert left + width == pytest.approx(float(up.get("x", "")), abs=0.2), "from zero, to either side"
    assert sum(part.get("class") == "whisker" for part in gains.iter("line")) == 6
