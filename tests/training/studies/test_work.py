from __future__ import annotations

import io
import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.stats import spearmanr

from models.bundle.disk import write_whole
from models.encoder.encoder import Encoder
from tests.conftest import PATIENCE
from tests.training.conftest import WORDS
from tests.training.studies.conftest import planned
from training.checkpoints.record import METRICS
from training.config import ConfigError, RunConfig
from training.evaluation.pairs import STS_TASKS, Pair
from training.evaluation.suite import EvaluationData
from training.machine.interrupt import LockError, locked
from training.run import teacher_config
from training.studies import work
from training.studies.description import Study
from training.studies.results import RESULT, TRIAL, run_folder
from training.studies.scores import COSINES, COSINES_FILE, GOLDS, TRANSFER_FILE, evaluate, load_arrays
from training.studies.trial import StudyError, Trial
from training.studies.work import RECORD, SHARES, TEACHERS, _seconds_of_steps, run_trial

MakeStudy = Callable[..., Path]


def trials(file: Path) -> list[Trial]:
    return Study.read(file).trials()


def worked(trial: Trial, study: Path) -> tuple[dict[str, Any], str]:
    """Return the result of a run, and its output."""
    folder, said = run_folder(trial, study), io.StringIO()
    folder.mkdir(parents=True, exist_ok=True)
    write_whole(folder / TRIAL, trial.to_json())
    run_trial(folder, said)
    return json.loads((folder / RESULT).read_text()), said.getvalue()


def test_a_run_leaves_its_result_and_no_weights(make_study: MakeStudy, stsb_data: Path, tmp_path: Path) -> None:
    (trial,) = trials(make_study("[grid]\nseed = [3]\n"))
    result, _ = worked(trial, tmp_path)
    folder = run_folder(trial, tmp_path)
    cosines, golds = load_arrays(folder / COSINES_FILE, COSINES, GOLDS)
    assert golds["STSB"].tolist() == [pair.gold for pair in STS_TASKS["STSB"].load(stsb_data)["test"]]
    for task in ("STSB", "STSB-dev"):
        assert cosines[task].dtype == np.float32
        assert result["scores"][task] == pytest.approx(100 * spearmanr(cosines[task], golds[task]).statistic, abs=1e-3)
    assert [line["step"] for line in result["curve"]] == [0, 1, 2]
    best = max(line["stsb_dev_spearman"] for line in result["curve"])
    assert result["scores"]["STSB-dev"] == pytest.approx(best, abs=1e-4), "the best weights are judged"
    assert result["config"]["seed"] == 3 and result["seconds"]["steps"] > 0 and result["uniformity"] < 0
    (chosen,) = (line for line in result["curve"] if line["step"] == result["best_step"])
    assert (
        result["effective_rank"] == pytest.approx(chosen["effective_rank"], rel=1e-3) and result["effective_rank"] > 1
    )
    assert result["scores"].keys() == {"STSB", "STSB-dev"} and not (folder / TRANSFER_FILE).exists()
    assert not list(folder.rglob("*.safetensors")) and not list(folder.rglob("*.onnx"))

    written = (folder / RESULT).stat().st_mtime_ns
    (folder / RECORD / "left.safetensors").touch()  # A process that was killed after the result leaves these files.
    assert worked(trial, tmp_path)[1] == "" and (folder / RESULT).stat().st_mtime_ns == written, "not repeated"
    assert not list(folder.rglob("*.safetensors"))


def test_a_tasks_kept_cosines_and_golds_are_of_the_same_pairs_in_all_its_subsets(tiny_backbone: Path) -> None:
    def pairs(subject: str, count: int) -> list[Pair]:
        return [Pair(f"{subject} can see", f"the {word} can see", float(i)) for i, word in enumerate(WORDS[:count])]

    given = EvaluationData(sts={"STS12": {"one": pairs("a man", 10), "two": pairs("the river", 6)}})
    found = evaluate(Encoder.load(tiny_backbone, pooling="mean"), given, io.StringIO())
    score = 100 * spearmanr(found.arrays[COSINES]["STS12"], found.arrays[GOLDS]["STS12"]).statistic
    assert found.scores["STS12"] == pytest.approx(score, abs=1e-3)


@pytest.mark.slow
def test_a_run_that_was_trained_but_not_judged_is_only_judged(
    make_study: MakeStudy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (trial,) = trials(make_study("[grid]\nseed = [3]\n"))

    def broken(*_: object, **__: object) -> None:
        raise OSError("no space left")

    with monkeypatch.context() as patch, pytest.raises(OSError, match="no space"):
        patch.setattr(work, "evaluate", broken)
        worked(trial, tmp_path)
    metrics = run_folder(trial, tmp_path) / RECORD / METRICS
    trained = [line for line in metrics.read_text().splitlines() if '"train"' in line]
    result, _ = worked(trial, tmp_path)
    assert [line for line in metrics.read_text().splitlines() if '"train"' in line] == trained and len(trained) == 2
    assert result["scores"] == worked(trial, tmp_path / "whole")[0]["scores"]


@pytest.mark.slow
@pytest.mark.parametrize("damaged", ["", "null"])
def test_a_damaged_result_is_made_again(damaged: str, make_study: MakeStudy, tmp_path: Path) -> None:
    (trial,) = trials(make_study("[grid]\nseed = [3]\n"))
    first, _ = worked(trial, tmp_path)
    (run_folder(trial, tmp_path) / RESULT).write_text(damaged)
    again, _ = worked(trial, tmp_path)
    assert {**again, "seconds": None} == {**first, "seconds": None}


@pytest.mark.slow
def test_another_seed_is_another_run(make_study: MakeStudy, tmp_path: Path) -> None:
    one, other = (worked(trial, tmp_path)[0] for trial in trials(make_study("[grid]\nseed = [3, 4]\n")))
    assert one["scores"] != other["scores"] and one["curve"][0] == other["curve"][0]


def test_a_share_of_the_corpus_is_trained_on(make_study: MakeStudy, tmp_path: Path) -> None:
    (trial,) = trials(make_study("", fraction=0.25))
    result, _ = worked(trial, tmp_path)
    assert result["corpus"]["sentences"] == 60 and result["fraction"] == 0.25
    assert [file.name.partition("-")[0] for file in (tmp_path / SHARES).glob("*.txt")] == ["0.25"]


@pytest.mark.slow
def test_what_is_not_trained_is_judged_as_it_is(make_study: MakeStudy, tmp_path: Path) -> None:
    cls, mean = trials(make_study('[grid]\npooling = ["cls", "mean"]\n', untrained=True))
    results = [worked(trial, tmp_path)[0] for trial in (cls, mean)]
    (trained,) = trials(make_study("", pooling="cls"))
    begin = worked(trained, tmp_path)[0]["curve"][0]["stsb_dev_spearman"]
    assert results[0]["scores"]["STSB-dev"] == pytest.approx(begin, abs=1e-4), "as a run before its first step"
    assert results[0]["scores"] != results[1]["scores"]
    assert results[0]["curve"] == [] and results[0]["corpus"] is None and results[0]["untrained"]


@pytest.mark.slow
def test_a_teacher_is_trained_once_for_all_that_share_it(make_study: MakeStudy, tmp_path: Path) -> None:
    first, second = trials(make_study("[grid]\nnoise_ratio = [1.0, 2.0]\n", objective="dclr"))
    assert "SimCSE trains one first" in worked(first, tmp_path)[1]
    (place,) = (tmp_path / TEACHERS).iterdir()
    (bundle,) = place.glob("bundle/manifest.json")
    written = bundle.stat().st_mtime_ns
    assert "SimCSE trains one first" not in worked(second, tmp_path)[1]
    assert bundle.stat().st_mtime_ns == written and list((tmp_path / TEACHERS).iterdir()) == [place]


def test_only_what_needs_a_teacher_gets_the_named_one(
    make_study: MakeStudy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    named = trials(make_study('[grid]\nobjective = ["simcse", "dclr"]\n', objective=None, teacher="somewhere"))
    given = [work.with_teacher(trial.config, tmp_path, io.StringIO()).teacher for trial in named]
    assert given == [None, "somewhere"]

    made = []

    def is_kept(planned: RunConfig, corpus: str) -> bool:
        made.append(planned)
        return True

    monkeypatch.setattr(work, "is_published", is_kept)
    for trial in trials(make_study("[grid]\nseed = [0, 1]\nnoise_ratio = [1.0, 2.0]\n", objective="dclr")):
        config = work.with_teacher(trial.config, tmp_path, io.StringIO())
        assert config.teacher == made[-1].out
        assert made[-1].seed == trial.config.seed and made[-1].params == teacher_config(trial.config).params
    assert len({planned.out for planned in made}) == 2, "one for each seed"
    corpus = tmp_path / "corpus.txt"
    for text in ("one\n", "two\n"):
        corpus.write_text(text)
        work.with_teacher(replace(trial.config, corpus=(str(corpus),)), tmp_path, io.StringIO())
    assert made[-1].out != made[-2].out, "one for each corpus, also under one path"


@pytest.mark.slow
def test_who_trains_a_teacher_is_waited_for(
    make_study: MakeStudy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(work, "is_published", lambda *_: True)
    (trial,) = trials(make_study("", objective="dclr"))
    first = work.with_teacher(trial.config, tmp_path, io.StringIO())
    assert first.teacher
    with ThreadPoolExecutor() as pool:
        with locked(Path(first.teacher).parent):
            second = pool.submit(work.with_teacher, trial.config, tmp_path, io.StringIO())
            with pytest.raises(TimeoutError):
                second.result(timeout=0.5)
        assert second.result(PATIENCE) == first


@pytest.mark.slow
def test_one_process_at_a_time(make_study: MakeStudy, tmp_path: Path) -> None:
    (trial,) = trials(make_study(""))
    with locked(run_folder(trial, tmp_path)), pytest.raises(LockError, match="another process is using this folder"):
        worked(trial, tmp_path)


def test_what_can_not_be_done_says_why(make_study: MakeStudy, tmp_path: Path) -> None:
    with pytest.raises(StudyError, match=r"trial\.json: No such file"):
        run_trial(tmp_path, io.StringIO())
    (unjudged,) = trials(make_study("", eval_data=None))
    with pytest.raises(StudyError, match="eval_data: a study needs"):
        worked(unjudged, tmp_path)
    (narrow,) = trials(make_study("", objective="whitenedcse", groups=5))
    with pytest.raises(ConfigError, match="5"):
        worked(narrow, tmp_path)


def test_broken_cosines_are_named(make_study: MakeStudy, tmp_path: Path) -> None:
    (trial,) = trials(make_study("", untrained=True))
    worked(trial, tmp_path)
    file = run_folder(trial, tmp_path) / COSINES_FILE
    whole = file.read_bytes()
    for content in (b"nothing", whole[: len(whole) // 2], b""):
        file.write_bytes(content)
        with pytest.raises(StudyError, match=COSINES_FILE):
            load_arrays(file, COSINES, GOLDS)
    np.savez(file, other=np.zeros(1))
    with pytest.raises(StudyError, match="other: unknown"):
        load_arrays(file, COSINES, GOLDS)


def test_the_last_batch_of_an_epoch_takes_the_time_of_the_sentences_that_it_has(tmp_path: Path) -> None:
    """Divide 7 sentences into batches of 3: a step takes a second for 3 sentences, and a fifth for one."""
    lines = [{"kind": "evaluation", "step": 0}]
    lines += [{"kind": "train", "step": step, "sentences_per_s": 3 if step % 3 else 5} for step in (1, 2, 3, 4, 6)]
    (tmp_path / METRICS).write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    assert _seconds_of_steps(tmp_path / METRICS, sentences=7, batch_size=3) == pytest.approx(3.4)


def test_a_run_measures_the_nearest_in_a_batch_where_it_is_asked_to(make_study: MakeStudy, tmp_path: Path) -> None:
    """Measure GS-InfoNCE's figure 1, also for an untrained encoder."""
    file = make_study("[[arm]]\nname = 'as it was'\nuntrained = true\n", neighbours=64)
    (trial,) = trials(file)
    assert trial.neighbours == 64 and Trial.from_json(trial.to_json()) == trial
    result, _ = worked(trial, tmp_path)
    small, large = (result["nearest_cosines"][size] for size in ("32", "64"))
    assert len(small) == len(large) == 4 and sorted(small, reverse=True) == small
    assert all(a >= b for a, b in zip(large, small, strict=True)), "a larger batch has nearer neighbours"


def test_more_neighbours_than_sentences_are_refused_before_anything_is_trained(make_study: MakeStudy) -> None:
    arms = "[[arm]]\nname = 'many'\nneighbours = 6400\n[[arm]]\nname = 'none'\n"
    with pytest.raises(StudyError, match="neighbours: 6400 sentences needed, but the corpus has only 240"):
        planned(make_study(arms)).check_files()
