"""Fixtures: studies that run in seconds."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from models.bundle.disk import write_whole
from training.cli.options import parse
from training.evaluation.pairs import STS_TASKS
from training.studies.description import Study
from training.studies.plan import Plan
from training.studies.results import RESULTS, TRIAL, run_folder
from training.studies.schedule import Processes
from training.studies.scores import DEV
from training.studies.trial import Trial
from training.studies.work import run_trial

MakeStudy = Callable[..., Path]


@pytest.fixture
def make_study(tiny_backbone: Path, corpus_file: Path, stsb_data: Path, tmp_path: Path) -> MakeStudy:
    """Return a function that writes a study file: two steps of the tiny backbone, and further settings."""

    def make(text: str = "[grid]\nseed = [0, 1]\n", name: str = "tiny", **base: Any) -> Path:
        values: Mapping[str, Any] = {
            "objective": "simcse",
            "backbone": str(tiny_backbone),
            "corpus": [str(corpus_file)],
            "eval_data": str(stsb_data),
            "max_steps": 2,
            "batch_size": 8,
            "eval_every": 1,
            "precision": "fp32",
            "device": "cpu",
            **base,
        }
        kept = {key: value for key, value in values.items() if value is not None}
        file = tmp_path / f"{name}.toml"
        file.write_text("[base]\n" + "".join(f"{key} = {_toml(value)}\n" for key, value in kept.items()) + text)
        return file

    return make


@pytest.fixture
def carried_out(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Carry out runs in this process instead of one of their own, and return the list of their ids."""
    ids: list[str] = []

    def here(_self: Processes, trial: Trial, study: Path) -> None:
        folder = run_folder(trial, study)
        folder.mkdir(parents=True, exist_ok=True)
        write_whole(folder / TRIAL, trial.to_json())
        run_trial(folder, io.StringIO())
        ids.append(trial.id)

    monkeypatch.setattr(Processes, "__call__", here)
    return ids


def _toml(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else repr(value)


def call(*arguments: str) -> int:
    """Return the exit code of `study`, or raise its error."""
    options = parse(["study", *arguments])
    return int(options.load()(options))


def planned(file: Path) -> Plan:
    """Return the plan of a study's file."""
    study = Study.read(file)
    return Plan(study.name, study.about, study.trials())


def line(arm: str, seed: int, score: float, **more: Any) -> dict[str, Any]:
    """Return a line of results with the same score for every STS task."""
    return {
        "id": f"{arm}{seed}",
        "arm": arm,
        "axes": {"seed": seed},
        "scores": dict.fromkeys((*STS_TASKS, DEV), score),
        "alignment": 0.2,
        "uniformity": -2.5,
        "curve": [{"step": 0, "stsb_dev_spearman": 70.0}, {"step": 5, "stsb_dev_spearman": score}],
        "seconds": {"steps": 1.0, "judging": 1.0},
        "best_step": 5,
        **more,
    }


def write(study: Path, *lines: Mapping[str, Any]) -> None:
    """Write the results of a study."""
    (study / RESULTS).write_text("".join(json.dumps(each) + "\n" for each in lines))
