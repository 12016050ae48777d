"""Tests of distillation: the isometry to the teacher's space, and the student's targets."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.nn.functional import cosine_similarity

from models.encoder.encoder import Encoder
from training import cli
from training.config import from_preset
from training.objectives import OBJECTIVES
from training.objectives.base import Views
from training.objectives.distillation import Distillation, DistillationParams

RNG = torch.Generator()
Capture = pytest.CaptureFixture[str]


def turned(dim: int, out: int, rng: torch.Generator) -> Tensor:
    """Return a matrix (D, D') with orthonormal rows, where D' is at least D."""
    rows: Tensor = torch.linalg.qr(torch.randn(out, dim, generator=rng, dtype=torch.float64)).Q.T
    return rows


def views(own: Tensor, start: Tensor, teacher: Tensor) -> Views:
    return Views(noisy=own[None], teacher=teacher, start=start)


@given(st.integers(2, 8), st.integers(0, 5), st.integers(0, 99))
def test_a_teacher_that_is_the_encoder_turned_teaches_nothing(dim: int, more: int, seed: int) -> None:
    rng = torch.Generator().manual_seed(seed)
    turn, start = turned(dim, dim + more, rng), torch.randn(4 * dim, dim, generator=rng, dtype=torch.float64)
    objective = Distillation(DistillationParams(), dim).double()
    terms = objective(views(start, start, start @ turn), RNG)
    assert [value.item() for value in terms.values()] == pytest.approx([0, 0], abs=1e-9)
    torch.testing.assert_close(objective.isometry, turn, atol=1e-6, rtol=0)


@given(st.integers(2, 8), st.integers(0, 5), st.integers(0, 99))
def test_cosines_are_the_same_in_the_teachers_space(dim: int, more: int, seed: int) -> None:
    """Check the cosines, because the isometry is discarded after training."""
    rng = torch.Generator().manual_seed(seed)
    start, teacher = (torch.randn(4 * dim, d, generator=rng, dtype=torch.float64) for d in (dim, dim + more))
    objective = Distillation(DistillationParams(), dim).double()
    objective(views(start, start, teacher), RNG)
    there = start @ objective.isometry
    for a, b in ((0, 1), (2, 3)):
        assert cosine_similarity(there[a], there[b], dim=0) == pytest.approx(
            float(cosine_similarity(start[a], start[b], dim=0)), abs=1e-9
        )


def test_without_an_isometry_the_teacher_must_be_as_wide_and_no_start_is_needed(
    other_bundle: Path, corpus_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    assert not Distillation(DistillationParams(share=1, aligned=0), 4).needs.start
    monkeypatch.chdir(tmp_path)
    command = ["train", "distillation", "--backbone", str(other_bundle), "--corpus", str(corpus_file)]
    command += ["--teacher", str(other_bundle), "--preset", "minilm", "--set", "aligned=0", "--set", "share=1"]
    assert cli.main([*command, "--set", "matryoshka=4"]) == 2, "a prefix is narrower than the teacher"
    assert "aligned: 0 needs vectors of the teacher's" in capsys.readouterr().err
    assert not Path("runs").exists()


def test_it_is_sought_until_so_many_sentences_were_seen_and_stays() -> None:
    rng = torch.Generator().manual_seed(0)
    objective = Distillation(DistillationParams(aligned=20), 4)
    found = []
    for _ in range(4):
        own, start, teacher = (torch.randn(10, d, generator=rng) for d in (4, 4, 6))
        objective(views(own, start, teacher), RNG)
        found.append(objective.isometry.clone())
    assert not torch.equal(found[0], found[1])
    assert torch.equal(found[1], found[2]) and torch.equal(found[2], found[3])


def test_its_state_goes_on_where_it_was() -> None:
    rng = torch.Generator().manual_seed(0)
    batches = [[torch.randn(10, d, generator=rng) for d in (4, 4, 6)] for _ in range(3)]
    whole, cut = (Distillation(DistillationParams(aligned=15), 4) for _ in range(2))
    for batch in batches[:1]:
        whole(views(*batch), RNG)
        cut(views(*batch), RNG)
    resumed = Distillation(DistillationParams(aligned=15), 4)
    resumed.load_state_dict(cut.state_dict())
    for batch in batches[1:]:
        assert resumed(views(*batch), RNG) == whole(views(*batch), RNG)
    assert torch.equal(resumed.isometry, whole.isometry)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"share": 0.0}, "share 0.0 is not above 0"),
        ({"share": 1.5}, "share 1.5"),
        ({"aligned": -1}, "aligned -1"),
        ({"similarity": -1.0}, "similarity -1.0"),
    ],
)
def test_what_is_no_share_is_refused(values: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        replace(OBJECTIVES["distillation"].presets["minilm"].params, **values)


@pytest.mark.slow
def test_a_student_comes_nearer_to_its_teacher_and_keeps_its_space(
    tiny_backbone: Path, other_bundle: Path, corpus_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    command = ["train", "distillation", "--backbone", str(tiny_backbone), "--corpus", str(corpus_file)]
    command += ["--teacher", str(other_bundle), "--preset", "minilm", "--max-steps", "40", "--seed", "0"]
    command += ["--set", "learning_rate=1e-3", "--set", "batch_size=16", "--set", "eval_every=20"]
    assert cli.main([*command, "--set", "precision=fp32"]) == 0
    lines = [json.loads(line) for line in Path("runs/distillation/metrics.jsonl").read_text().splitlines()]
    losses, left = ([line[term] for line in lines if line["kind"] == "train"] for term in ("teacher", "start"))
    assert left[0] == pytest.approx(0, abs=1e-5) and left[-1] > 1e-4, "it begins where it was, by the run's own pooling"
    assert sum(losses[-5:]) < 0.8 * max(losses) * 5
    manifest = json.loads(Path("artifacts/distillation/manifest.json").read_text())
    assert manifest["transform"] is None and manifest["dim"] == Encoder.load(tiny_backbone).dim


def test_for_any_backbone_it_has_the_one_preset_there_is() -> None:
    assert from_preset("distillation", backbone="artifacts/mine").preset == "minilm"
    assert from_preset("simcse", backbone="artifacts/mine").preset == "bert-base-uncased"


def test_it_does_not_train_a_teacher_for_itself(
    tiny_backbone: Path, corpus_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    monkeypatch.chdir(tmp_path)
    command = ["train", "distillation", "--backbone", str(tiny_backbone), "--corpus", str(corpus_file)]
    assert cli.main([*command, "--preset", "minilm"]) == 2
    assert capsys.readouterr().err.endswith(": teacher: distillation needs a teacher: name one with --teacher\n")
    assert not Path("runs").exists()


@pytest.mark.slow
def test_a_run_that_was_cut_ends_as_one_that_was_not(
    tiny_backbone: Path, other_bundle: Path, corpus_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Resume a run. The objective's state is in the checkpoint, and the initial encoder is the backbone."""
    monkeypatch.chdir(tmp_path)
    command = ["train", "distillation", "--backbone", str(tiny_backbone), "--corpus", str(corpus_file)]
    command += ["--teacher", str(other_bundle), "--preset", "minilm", "--seed", "0", "--max-steps", "8"]
    command += ["--set", "batch_size=8", "--set", "eval_every=2", "--set", "aligned=40", "--set", "precision=fp32"]
    assert cli.main([*command, "--out", "artifacts/whole"]) == 0
    call, steps = Distillation.forward, 0

    def cut(self: Distillation, *given: Any) -> Any:
        nonlocal steps
        steps += 1
        if steps == 5:
            raise KeyboardInterrupt
        return call(self, *given)

    with monkeypatch.context() as patch:
        patch.setattr(Distillation, "forward", cut)
        assert cli.main([*command, "--out", "artifacts/cut"]) == 130
    assert cli.main([*command, "--out", "artifacts/cut", "--resume"]) == 0
    whole, again = (
        json.loads(Path(f"artifacts/{name}/manifest.json").read_text())["fingerprint"] for name in ("whole", "cut")
    )
    assert whole == again
