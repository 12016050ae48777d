"""Tests of an objective's teacher, which is named, or trained first and kept."""

from __future__ import annotations

import io
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import torch
from torch import Tensor

from models.bundle import bundle
from models.bundle.sources import SourceError
from training import run
from training.checkpoints import checkpoint, record
from training.checkpoints.publish import Outcome
from training.checkpoints.record import RunError
from training.config import ConfigError, RunConfig, from_preset
from training.machine import state_file
from training.objectives import OBJECTIVES
from training.objectives.base import Needs, Objective, Views
from training.run import teacher_config

Fit = Callable[..., tuple[Outcome, str]]
MakeConfig = Callable[..., RunConfig]


class Imitation(Objective):
    """Objective with the teacher's vectors as targets, which a test may inspect."""

    needs = Needs(teacher=True)
    seen: list[Tensor]

    def __init__(self, params: Any, dim: int) -> None:
        super().__init__()

    def forward(self, views: Views, rng: torch.Generator) -> dict[str, Tensor]:
        assert views.teacher is not None
        self.seen.append(views.teacher)
        return {"distance": (views.noisy - views.teacher).square().mean()}


@pytest.fixture
def imitation(monkeypatch: pytest.MonkeyPatch) -> type[Imitation]:
    monkeypatch.setitem(OBJECTIVES, "imitation", replace(OBJECTIVES["simcse"], build=Imitation))
    monkeypatch.setattr(Imitation, "seen", [], raising=False)
    return Imitation


@pytest.fixture
def make_taught(imitation: type[Imitation], make_config: MakeConfig) -> MakeConfig:
    def make(name: str = "one", **changes: Any) -> RunConfig:
        return replace(make_config(name, **{"max_steps": 4, "eval_every": 2, **changes}), objective="imitation")

    return make


def test_a_named_teacher_is_used_and_nothing_is_trained_first(
    make_taught: MakeConfig, fitted: Fit, tiny_bundle: Path, imitation: type[Imitation], sentences: list[str]
) -> None:
    config = make_taught(teacher=str(tiny_bundle))
    _, said = fitted(config)
    assert "teacher" not in said and not Path(teacher_config(config).run).exists()
    assert [len(vectors) for vectors in imitation.seen] == [16] * 4, "once a step"
    assert not any(vectors.requires_grad for vectors in imitation.seen)


def test_a_changed_teacher_is_refused(
    make_taught: MakeConfig, fitted: Fit, tiny_bundle: Path, other_bundle: Path, tmp_path: Path
) -> None:
    teacher = shutil.copytree(tiny_bundle, tmp_path / "teacher")
    config = make_taught(teacher=str(teacher), max_steps=2)
    fitted(config)
    fitted(config, resume=True)
    shutil.rmtree(teacher)
    shutil.copytree(other_bundle, teacher)
    with pytest.raises(checkpoint.CheckpointError, match="the teacher changed since the checkpoint"):
        fitted(config, resume=True)


def test_a_teacher_that_is_not_there_leaves_no_run_in_the_way(
    make_taught: MakeConfig, fitted: Fit, tiny_bundle: Path
) -> None:
    with pytest.raises(SourceError, match="nowhere"):
        fitted(make_taught(teacher="nowhere"))
    fitted(make_taught(teacher=str(tiny_bundle)))


def test_a_place_for_the_teacher_that_is_taken_is_refused_before_the_run_has_a_folder(
    make_taught: MakeConfig, fitted: Fit
) -> None:
    config = make_taught()
    Path(teacher_config(config).out).mkdir(parents=True)
    (Path(teacher_config(config).out) / "thesis.txt").write_text("dear")
    with pytest.raises(RunError, match=r"one-teacher: exists and is not a bundle"):
        fitted(config)
    assert not Path(config.run).exists()


def test_the_teacher_of_a_large_backbone_is_a_base_model(tmp_path: Path) -> None:
    """Check footnote 2 of DCLR. The preset shows that a folder has SimCSE's large weights."""
    large = from_preset("dclr", backbone=str(tmp_path), preset="bert-large-uncased+random-noise")
    planned = teacher_config(large)
    assert (planned.backbone, planned.preset) == ("bert-base-uncased", "bert-base-uncased")
    assert (planned.learning_rate, planned.batch_size) == (3e-5, 64)


def test_dclr_from_simcses_large_weights_has_the_large_preset_and_the_base_teacher() -> None:
    """The paper's start of its large models, by the name that it has on the hub, without `--preset`."""
    for family, uncased in (("bert", "-uncased"), ("roberta", "")):
        large = from_preset("dclr", backbone=f"princeton-nlp/unsup-simcse-{family}-large{uncased}")
        assert large.params == OBJECTIVES["dclr"].presets[f"{family}-large{uncased}"].params
        assert teacher_config(large).backbone == f"{family}-base{uncased}"


def test_a_base_model_that_is_not_there_is_said_before_the_run_has_a_folder(
    make_config: MakeConfig, fitted: Fit, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "models.bundle.sources._from_hub", Mock(side_effect=SourceError("bert-base-uncased: no such thing"))
    )
    large = from_preset("dclr", preset="bert-large-uncased")
    config = replace(make_config(), objective="dclr", preset=large.preset, params=large.params)
    with pytest.raises(
        ConfigError, match=r"teacher: SimCSE can't train the teacher from bert-base-uncased: .* with --teacher"
    ):
        fitted(config)
    assert not Path(config.run).exists()


@pytest.mark.parametrize("preset", ["minilm", "minilm-cls", "roberta-base"])
def test_the_teacher_has_simcses_preset_of_the_runs_name(tmp_path: Path, preset: str) -> None:
    """Use the preset of the run's name, not the one that the folder's name or pooling would select."""
    planned = teacher_config(from_preset("dclr", backbone=str(tmp_path), preset=preset))
    assert (planned.backbone, planned.preset) == (str(tmp_path), preset)
    assert planned.learning_rate == OBJECTIVES["simcse"].presets[preset].learning_rate


def test_a_teacher_nobody_needs_is_refused(make_config: MakeConfig, fitted: Fit, tiny_bundle: Path) -> None:
    with pytest.raises(ConfigError, match="teacher: simcse with these settings uses no teacher"):
        fitted(make_config(teacher=str(tiny_bundle)))


def test_the_teacher_of_a_run_on_sentences_is_trained_on_sentences() -> None:
    passages = from_preset("dclr", preset="minilm-passages")
    assert teacher_config(passages).augmentation == passages.augmentation == "cloze"
    assert teacher_config(passages.override({"augmentation": "none"})).augmentation == "none"


@pytest.mark.slow
def test_without_one_simcse_trains_it_first_and_keeps_it(
    make_taught: MakeConfig, fitted: Fit, imitation: type[Imitation]
) -> None:
    config = make_taught()
    _, said = fitted(config)
    planned = teacher_config(config)
    assert said.startswith(f"no --teacher: SimCSE trains a teacher first, in {planned.out}")
    assert (planned.out, planned.run) == (f"{config.out}-teacher", f"{config.run}-teacher")
    manifest = bundle.load(Path(planned.out)).manifest
    assert manifest.objective == "simcse" and manifest.run is not None
    assert manifest.run["config"]["max_steps"] == config.max_steps


@pytest.mark.slow
def test_a_teacher_of_another_run_is_not_taken_for_this_ones(make_taught: MakeConfig, fitted: Fit) -> None:
    fitted(make_taught())
    other = make_taught(seed=1)
    Path(other.run, "config.json").unlink()
    with pytest.raises(RunError, match=r"runs/one-teacher contains the teacher of another run or corpus: .* --teacher"):
        fitted(other)


def test_force_replaces_a_teacher_of_an_earlier_state_of_the_corpus(
    make_taught: MakeConfig, fitted: Fit, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = make_taught(max_steps=1)
    planned = teacher_config(config)
    Path(planned.run).mkdir(parents=True)
    record.create_run(planned, {})
    facts = {"step": 1, "best": {"step": 0, "score": 0.0}, "corpus": "another"}
    state_file.save_state(Path(planned.run) / checkpoint.CHECKPOINT, {}, facts)
    with pytest.raises(RunError, match=r"runs/one-teacher contains the teacher of another run or corpus: .*--force"):
        fitted(config)
    assert not Path(config.run).exists()
    Path(config.run).mkdir(parents=True)
    record.create_run(config, {})
    note = Path(config.run, "notes.txt")
    note.touch()
    with pytest.raises(RunError, match=r"notes\.txt: is not a file of the run"):
        fitted(config, force=True)
    assert record.has_run(Path(planned.run))
    note.unlink()
    monkeypatch.setattr(run, "_trained_teacher", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        fitted(config, force=True)
    assert not record.has_run(Path(planned.run)), "it would be trained again"


@pytest.mark.slow
def test_a_run_stopped_while_its_teacher_trained_is_taken_up_there(
    make_taught: MakeConfig, fitted: Fit, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = make_taught()
    with monkeypatch.context() as patch, pytest.raises(ZeroDivisionError):
        patch.setattr(run, "publish", lambda *_: 1 / 0)
        fitted(config)
    assert not Path(teacher_config(config).out).exists()
    said = io.StringIO()
    outcome = run.fit(config, said, resume=True)
    assert "from step 4" in said.getvalue(), "the teacher had all its steps"
    assert outcome.best.step >= 0 and Path(teacher_config(config).out).exists()


@pytest.mark.slow
def test_the_result_is_the_same_whether_the_teacher_was_kept_or_trained(make_taught: MakeConfig, fitted: Fit) -> None:
    config = make_taught()
    first, _ = fitted(config)
    for file in Path(config.run).iterdir():
        file.unlink()
    Path(config.run).rmdir()
    second, said = fitted(config)
    assert "from an earlier run" in said
    pairs = zip(first.encoder.state_dict().values(), second.encoder.state_dict().values(), strict=True)
    assert all(torch.equal(a, b) for a, b in pairs)
