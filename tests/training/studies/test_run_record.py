"""Tests of the record of runs, which several studies, processes and machines share."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.training.studies.conftest import call, line, planned
from training.studies.description import Study
from training.studies.results import RESULTS, Result, RunRecord, run_folder
from training.studies.trial import StudyError, Trial

MakeStudy = Callable[..., Path]
Capture = pytest.CaptureFixture[str]

ARMS = '[[arm]]\nname = "SimCSE"\n[[arm]]\nname = "{name}"\ntemperature = {temperature}\n[grid]\nseed = [0]\n'


def lines(file: Path) -> list[dict[str, Any]]:
    return [json.loads(each) for each in file.read_text(encoding="utf-8").splitlines()]


def test_two_studies_share_a_run(make_study: MakeStudy, tmp_path: Path, carried_out: list[str]) -> None:
    record = tmp_path / "kept" / "record.jsonl"
    for name, temperature in (("one", 0.1), ("other", 0.2)):
        file = make_study(ARMS.format(name=name, temperature=temperature), name=name)
        assert call("run", str(file), "--out", str(tmp_path / name), "--record", str(record)) == 0
    baseline, one = (trial.id for trial in Study.read(tmp_path / "one.toml").trials())
    shared, other = (trial.id for trial in Study.read(tmp_path / "other.toml").trials())
    assert shared == baseline and carried_out == [baseline, one, other]
    assert [(each["id"], each["study"], each["arm"]) for each in lines(record)] == [
        (baseline, "one", "SimCSE"),
        (one, "one", "one"),
        (other, "other", "other"),
    ]
    collected = lines(tmp_path / "other" / RESULTS)
    assert [(each["id"], each["arm"]) for each in collected] == [(baseline, "SimCSE"), (other, "other")]
    assert collected[0]["scores"] == pytest.approx(lines(tmp_path / "one" / RESULTS)[0]["scores"], rel=1e-6)


def test_a_stopped_study_goes_on_from_the_record_in_an_empty_folder(
    make_study: MakeStudy, tmp_path: Path, carried_out: list[str], capsys: Capture
) -> None:
    """The corpus, the evaluation data and the backbone are elsewhere on the other machine."""
    file, record = make_study(), tmp_path / "record.jsonl"
    first, second = Study.read(file).trials()
    assert call("run", str(file), "--set", "seed=[0]", "--out", str(tmp_path / "here"), "--record", str(record)) == 0

    elsewhere = tmp_path / "elsewhere"
    moved: dict[str, Any] = {}
    for key in ("backbone", "eval_data"):
        moved[key] = str(elsewhere / key)
        shutil.copytree(getattr(first.config, key), moved[key])
    (corpus,) = first.config.corpus
    moved["corpus"] = [str(shutil.copy(corpus, elsewhere / "another_name.txt"))]
    there, out = make_study(name="there", **moved), tmp_path / "there"
    assert call("run", str(there), "--out", str(out), "--record", str(record)) == 0
    assert carried_out == [first.id, second.id] and not run_folder(first, out).exists()
    assert "2 runs, 1 of them finished before" in capsys.readouterr().err
    assert [each["id"] for each in lines(out / RESULTS)] == [each["id"] for each in lines(record)] == carried_out


def test_runs_of_earlier_are_added_and_runs_of_other_processes_are_not_repeated(
    make_study: MakeStudy, tmp_path: Path, carried_out: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    file, out, record = make_study(), tmp_path / "out", tmp_path / "record.jsonl"
    first, second = Study.read(file).trials()
    assert call("run", str(file), "--set", "seed=[0]", "--out", str(out)) == 0
    add = RunRecord.add

    def also_elsewhere(self: RunRecord, trial: Trial, values: dict[str, Any]) -> None:
        """Add the second run, as another process could, right after the first."""
        add(self, trial, values)
        add(self, second, values)

    monkeypatch.setattr(RunRecord, "add", also_elsewhere)
    assert call("run", str(file), "--out", str(out), "--record", str(record)) == 0
    assert carried_out == [first.id]
    assert [each["id"] for each in lines(record)] == [first.id, second.id]


@pytest.mark.parametrize(
    ("broken", "said"),
    [
        (b'{"id": "cut off', "Unterminated"),
        (b'{"id": "1"}', "arm: missing"),
        (b"[1]", "not an object"),
        (b'"\xff"', "utf-8"),
        (json.dumps(line("SimCSE", 0, 70.0)).encode(), "settings: missing"),
    ],
)
def test_a_broken_line_is_named(
    broken: bytes, said: str, make_study: MakeStudy, tmp_path: Path, carried_out: list[str]
) -> None:
    file, record = make_study(), tmp_path / "record.jsonl"
    sound = json.dumps(line("SimCSE", 0, 70.0, settings="0")).encode()
    record.write_bytes(sound + b"\n" + broken)
    with pytest.raises(StudyError, match=rf"record\.jsonl:2: .*{said}"):
        call("run", str(file), "--out", str(tmp_path / "out"), "--record", str(record))
    assert not carried_out and record.read_bytes() == sound + b"\n" + broken
    with pytest.raises(StudyError, match=r"record\.jsonl:2: "):
        RunRecord(record).add(Study.read(file).trials()[0], line("", 0, 70.0))


def test_concurrent_writers_lose_and_repeat_nothing(make_study: MakeStudy, tmp_path: Path) -> None:
    trials = Study.read(make_study(f"[grid]\nseed = {list(range(20))}\n")).trials()
    record = RunRecord(tmp_path / "record.jsonl")
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda trial: record.add(trial, line("", 0, 70.0)), trials * 3))
    assert sorted(each["id"] for each in lines(record.file)) == sorted(trial.id for trial in trials)


def test_a_line_is_short_and_has_no_path(make_study: MakeStudy, tmp_path: Path, carried_out: list[str]) -> None:
    file, record = make_study("[grid]\nseed = [0]\n"), tmp_path / "record.jsonl"
    assert call("run", str(file), "--out", str(tmp_path / "out"), "--record", str(record)) == 0
    text = record.read_text()
    assert text.count("\n") == len(carried_out) == 1 and len(text) < 2000 and str(tmp_path) not in text
    (kept,), (whole,) = lines(record), lines(tmp_path / "out" / RESULTS)
    assert Result.checked(kept).label == Result.checked(whole).label
    for point, exact in zip(kept["curve"], whole["curve"], strict=True):
        assert point == pytest.approx(exact, rel=1e-6)


def test_settings_are_known_without_data(make_study: MakeStudy, corpus_file: Path, tmp_path: Path) -> None:
    """Runs on two corpora have the same settings, so the settings alone do not tell which is meant."""
    other = tmp_path / "other.txt"
    other.write_text(corpus_file.read_text() + "One more sentence.\n")
    (there,) = Study.read(make_study("", corpus=None, eval_data=None)).trials()
    (with_corpus,) = Study.read(make_study("", eval_data=None)).trials()
    (on_the_docs,) = Study.read(make_study("", corpus=None)).trials()
    runs = [Study.read(make_study("", corpus=[str(corpus)])).trials()[0] for corpus in (corpus_file, other)]
    record = RunRecord(tmp_path / "record.jsonl")
    assert len({each.id for each in (there, *runs)}) == 3 and {each.settings for each in runs} == {there.settings}
    assert replace(there, fraction=0.5).settings != there.settings
    record.add(runs[0], line("", 0, 70.0))
    assert set(record.find([there, with_corpus])) == {there.id, with_corpus.id}, "no run has their ids"
    assert not record.find([*runs[1:], on_the_docs])
    record.add(runs[1], line("", 0, 71.0))
    with pytest.raises(StudyError, match=f"{runs[0].id} and {runs[1].id} have the same settings"):
        record.find([there])
    assert record.find(runs)[runs[1].id]["scores"]["STSB"] == 71.0


def test_scored_pairs_are_known_by_their_content(make_study: MakeStudy, tmp_path: Path) -> None:
    ids = []
    for name, pair in (("a.csv", "one"), ("b.csv", "one"), ("c.csv", "other")):
        (tmp_path / name).write_text(f"{pair},two,3\n")
        ids += [trial.id for trial in Study.read(make_study("", dev_data=str(tmp_path / name))).trials()]
    assert ids[0] == ids[1] != ids[2]
    with pytest.raises(StudyError, match=r"dev_data: .*gone\.csv is not a file"):
        Study.read(make_study("", dev_data=str(tmp_path / "gone.csv"))).trials()


def test_status_and_report_read_the_record(
    make_study: MakeStudy, tmp_path: Path, carried_out: list[str], capsys: Capture
) -> None:
    file, record, out = make_study(), tmp_path / "record.jsonl", tmp_path / "none"
    with pytest.raises(StudyError, match=r"record\.jsonl: no run of tiny is in it"):
        call("report", str(file), "--out", str(out), "--record", str(record))
    assert call("run", str(file), "--out", str(tmp_path / "out"), "--record", str(record)) == 0
    capsys.readouterr()
    assert call("status", str(file), "--out", str(out), "--record", str(record)) == 0
    assert capsys.readouterr().out.splitlines()[-1] == "2 of 2 runs are finished"
    assert call("report", str(file), "--out", str(out), "--record", str(record)) == 0
    recorded = capsys.readouterr().out
    assert recorded.splitlines()[1].split()[:2] == ["all", "2"] and not out.exists()

    both = make_study("[grid]\nseed = [0, 1, 2]\n", name="both")
    only_one = record.read_text().splitlines(keepends=True)[0]
    record.write_text(only_one)
    assert call("run", str(both), "--set", "seed=[1]", "--out", str(out)) == 0
    planned(both).save(out)
    capsys.readouterr()
    assert call("status", str(out), "--record", str(record)) == 0
    assert [each.rpartition(": ")[2] for each in capsys.readouterr().out.splitlines()[:3]] == [
        "finished", "finished", "waiting"
    ]  # fmt: skip
    assert call("report", str(out), "--record", str(record)) == 0
    assert capsys.readouterr().out.splitlines()[1] == recorded.splitlines()[1]
