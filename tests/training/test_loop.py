from __future__ import annotations

import io
import json
import re
from collections.abc import Callable
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from statistics import fmean
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from tensorboard.backend.event_processing.event_accumulator import (  # type: ignore[import-untyped]
    EventAccumulator,
)

from models.encoder.encoder import Encoder
from tests.training.conftest import Ended
from training import run
from training.checkpoints import record
from training.checkpoints.publish import Outcome, publish, sts_scores
from training.config import ConfigError, RunConfig, from_preset
from training.data.corpus import open_corpus
from training.data.files import CorpusError
from training.evaluation import vectors
from training.evaluation.pairs import DataError
from training.loop import EASY_AT, DivergedError, Training
from training.objectives import OBJECTIVES
from training.objectives.base import REMOVED_SHARE, Needs, Objective, Preset, Recipe
from training.step import Step, check_length

Fit = Callable[..., tuple[Outcome, str]]
MakeConfig = Callable[..., RunConfig]


def metrics(config: RunConfig, kind: str) -> list[dict[str, Any]]:
    lines = map(json.loads, (Path(config.run) / "metrics.jsonl").read_text().splitlines())
    return [line for line in lines if line["kind"] == kind]


def test_a_run_learns_and_keeps_its_best(make_config: MakeConfig, fitted: Fit) -> None:
    config = make_config(max_steps=60, eval_every=20)
    outcome, said = fitted(config)
    losses = [line["loss"] for line in metrics(config, "train")]
    assert sum(losses[-10:]) < 0.7 * sum(losses[:10])
    scores = {line["step"]: line["self_retrieval_mrr10"] for line in metrics(config, "evaluation")}
    assert list(scores) == [0, 20, 40, 60]
    assert outcome.best.score == max(scores.values()) == scores[outcome.best.step]
    assert outcome.best.step == next(step for step, score in scores.items() if score == outcome.best.score)
    assert f"at step {outcome.best.step}" in said
    assert "left: 57 steps of" in said and "s, 3 evaluations of" in said and said.count(" evaluations of ") == 1


def test_the_outcome_has_the_best_weights(ended: Ended) -> None:
    from training.evaluation.selection import by_self_retrieval

    config, outcome, _ = ended
    assert not outcome.encoder.training
    selection = by_self_retrieval(open_corpus(config.corpus))
    score = selection.scores(outcome.encoder.encode)[selection.metric]
    assert score == pytest.approx(outcome.best.score)


def test_a_run_that_no_step_improved_says_by_what_that_was_judged_and_what_can_help(
    make_config: MakeConfig, fitted: Fit
) -> None:
    config = make_config(learning_rate=3e-30, max_steps=4, eval_every=2)
    outcome, said = fitted(config)
    assert outcome.best.step == 0
    scores = [f"{line[outcome.metric]:.4f} at step {line['step']}" for line in metrics(config, "evaluation")]
    assert len(scores) == 3
    criterion = "MRR@10 of one half of a held-out sentence finding its other half, over 12 sentences"
    assert f"the criterion was self_retrieval_mrr10, {criterion}: {', '.join(scores)}\n" in said
    assert "--set learning_rate=1e-30; it was 3e-30" in said and "--set eval_every=1; it was 2" in said
    assert "there were 228" in said and "--dev-data FILE" in said


def test_what_is_logged(ended: Ended) -> None:
    config, _, said = ended
    steps = metrics(config, "train")
    assert [line["step"] for line in steps] == list(range(1, 15))
    assert steps[0].keys() == {
        *("kind", "step", "info_nce", "loss", "gradient_norm"),
        *("learning_rate", "sentences_per_s", "tokens_per_s", "flops_per_s", "utilisation"),
    }
    assert steps[0]["learning_rate"] == config.learning_rate
    assert steps[-1]["learning_rate"] == pytest.approx(config.learning_rate / 14)
    folder = Path(config.run)
    assert RunConfig.from_json((folder / "config.json").read_text()) == config
    environment = json.loads((folder / "environment.json").read_text())
    assert environment["packages"]["torch"] == version("torch")
    assert environment["corpus"]["sentences"] == 228 and environment["corpus"]["held_out"] == 12
    assert environment.keys() >= {"python", "git_commit", "device", "precision"}
    events = EventAccumulator(str(folder)).Reload()
    assert [scalar.step for scalar in events.Scalars("train/loss")] == list(range(1, 15))
    assert [scalar.step for scalar in events.Scalars("evaluation/self_retrieval_mrr10")] == [0, 5, 10, 14]
    evaluations = metrics(config, "evaluation")
    assert all(1 < line["effective_rank"] <= min(2 * 12, 32) and -4 <= line["uniformity"] < 0 for line in evaluations)
    assert "228 sentences" in said and "0 duplicates and 0 blank lines dropped" in said
    assert "step 14/14: loss" in said and "sentences/s, 0:00:00 left" in said


def test_the_time_of_an_evaluation_is_no_steps(
    make_config: MakeConfig, fitted: Fit, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 0.0
    take, judge = Step.__call__, vectors.reciprocal_ranks

    def taken(self: Step, *arguments: Any) -> Any:
        nonlocal now
        now += 1
        return take(self, *arguments)

    def judged(*arguments: Any) -> Any:
        nonlocal now
        now += 100
        return judge(*arguments)

    monkeypatch.setattr(Step, "__call__", taken)
    monkeypatch.setattr(vectors, "reciprocal_ranks", judged)
    monkeypatch.setattr("training.loop.time", SimpleNamespace(perf_counter=lambda: now))
    config = make_config(max_steps=4, eval_every=2)
    fitted(config)
    assert [line["sentences_per_s"] for line in metrics(config, "train")] == 4 * [16]


@pytest.mark.slow
def test_the_same_seed_gives_the_same_run_and_another_another(
    ended: Ended, make_config: MakeConfig, fitted: Fit
) -> None:
    configs = [make_config("same"), make_config("other", seed=1)]
    for config in configs:
        fitted(config)
    losses = [[line["loss"] for line in metrics(config, "train")] for config in (ended.config, *configs)]
    assert losses[0] == losses[1] != losses[2]


def test_an_epoch_is_every_batch_and_a_last_one_of_one_sentence_is_harmless(
    make_config: MakeConfig, fitted: Fit
) -> None:
    config = make_config(max_steps=None, batch_size=227)
    fitted(config)
    first, last = metrics(config, "train")
    assert first["loss"] > 0
    assert last["loss"] == last["gradient_norm"] == 0


def test_a_corpus_without_a_sentence_to_halve_is_refused_before_the_run_has_a_folder(
    make_config: MakeConfig, fitted: Fit, tmp_path: Path
) -> None:
    corpus = tmp_path / "short.txt"
    corpus.write_text("".join(f"only three {i}\n" for i in range(100)))
    config = make_config(corpus=(str(corpus),))
    with pytest.raises(
        CorpusError, match=r"short\.txt: .* two or more held-out sentences of 4 words or more, but there are 0"
    ):
        fitted(config)
    assert not Path(config.run).exists()


@pytest.fixture
def stsb_data(tmp_path: Path) -> Path:
    """STS-B in SentEval's layout, its sentences numbered, and no other task."""
    folder = tmp_path / "data" / "STS" / "STSBenchmark"
    folder.mkdir(parents=True)
    for part, pairs in (("dev", 1500), ("test", 1379)):
        rows = [f"g\tf\ty\t{i}\t{i % 6}\tthe man {i % 89}\ta woman {i % 97}\n" for i in range(pairs)]
        (folder / f"sts-{part}.csv").write_text("".join(rows))
    return tmp_path / "data"


@pytest.mark.slow
def test_tasks_that_the_evaluation_data_lacks_are_said_before_training_and_left_out_after(
    make_config: MakeConfig, fitted: Fit, stsb_data: Path
) -> None:
    outcome, said = fitted(make_config(eval_data=str(stsb_data), max_steps=1))
    assert said.startswith(
        f"{stsb_data} lacks STS12, STS13, STS14, STS15, STS16, SICKR, so the final scores do not include"
    )
    assert list(sts_scores(outcome.encoder, outcome.tasks, io.StringIO())) == ["STSB"]
    (stsb_data / "STS" / "STSBenchmark" / "sts-test.csv").unlink()
    outcome, said = fitted(make_config("two", eval_data=str(stsb_data), max_steps=1))
    assert (
        "STSB, SICKR, so the final scores" in said and sts_scores(outcome.encoder, outcome.tasks, io.StringIO()) == {}
    )


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        ("STS/STSBenchmark/sts-test.csv", "g\tf\ty\t0\t9\ta\tb\n", r"sts-test\.csv:1: a score of 9"),
        ("STS/STS13-en-test/STS.gs.FNWN.txt", "1\n", r"STS\.input\.FNWN\.txt: No such file"),
        ("SICK/SICK_test_annotated.txt", "header\n", r"SICK: 0 scored pairs, expected 4927"),
    ],
)
def test_a_broken_task_is_an_error_before_training(
    file: str, content: str, message: str, make_config: MakeConfig, stsb_data: Path
) -> None:
    (stsb_data / file).parent.mkdir(parents=True, exist_ok=True)
    (stsb_data / file).write_text(content)
    config = make_config(eval_data=str(stsb_data))
    with pytest.raises(DataError, match=message):
        run.fit(config, io.StringIO())
    assert not Path(config.run).exists()


def test_the_pooling_is_said_first_and_with_the_result(make_config: MakeConfig, fitted: Fit) -> None:
    config = make_config(learning_rate=1e-12, max_steps=1, pooling="last2")
    outcome, said = fitted(config)
    assert f"simcse on {config.backbone}, preset bert-base-uncased, last2 pooling: 228 sentences" in said
    assert outcome.best.step == 0
    assert ": the result has these weights with last2 pooling\n" in said


class Broken(Objective):
    """Plain until its fourth call."""

    needs = Needs()

    def __init__(self, params: Any, dim: int) -> None:
        super().__init__()
        self.calls = 0

    def forward(self, views: Any, rng: torch.Generator) -> dict[str, torch.Tensor]:
        self.calls += 1
        plain = views.noisy.square().mean()
        return {"plain": plain, "odd": plain * (float("nan") if self.calls == 4 else 1)}


def test_a_loss_that_is_no_number_stops_the_run(
    make_config: MakeConfig, fitted: Fit, monkeypatch: pytest.MonkeyPatch
) -> None:
    params = make_config().params
    preset = Preset(source="test", batch_size=8, learning_rate=1e-3, pooling="cls", params=params)
    broken = Recipe(summary="test", citation="", build=Broken, presets={"bert-base-uncased": preset})
    monkeypatch.setitem(OBJECTIVES, "broken", broken)
    config = make_config(objective="broken", eval_every=2)
    with pytest.raises(DivergedError, match=r"step 4: plain 0\.\d+, odd nan, loss nan, gradient_norm nan; .*has the w"):
        fitted(config)
    assert (Path(config.run) / "checkpoint.safetensors").exists()
    assert len(metrics(config, "train")) == 3


def test_weights_that_an_update_has_broken_are_neither_judged_nor_kept(
    make_config: MakeConfig, fitted: Fit, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The losses of that step were numbers."""
    config = make_config(eval_every=2, max_steps=6)
    take = Step.__call__

    def broken(self: Step, *arguments: Any) -> Any:
        values = take(self, *arguments)
        if len(metrics(config, "train")) == 3:
            with torch.no_grad():
                next(self._state.encoder.parameters()).fill_(torch.inf)
        return values

    monkeypatch.setattr(Step, "__call__", broken)
    with pytest.raises(DivergedError, match="step 4: the update made weights NaN or infinite"):
        fitted(config)
    assert [each["step"] for each in metrics(config, "evaluation")] == [0, 2]
    kept = load_file(Path(config.run) / "checkpoint.safetensors")
    assert all(bool(tensor.isfinite().all()) for tensor in kept.values() if tensor.is_floating_point())


def test_metrics_are_on_disk_before_the_checkpoint_that_follows_them(
    make_config: MakeConfig, fitted: Fit, told: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("training.checkpoints.record.fsync", lambda file: told.append(file.name))
    fitted(make_config(eval_every=2, max_steps=4))
    assert told == 2 * ["metrics.jsonl", "checkpoint"]


class Demanding(Objective):
    """Asks for more views, a clean pass, weights of its own and random numbers: the loop must not care."""

    needs = Needs(views=3, clean=True)

    def __init__(self, params: Any, dim: int) -> None:
        super().__init__()
        self.norm = torch.nn.BatchNorm1d(dim)

    def forward(self, views: Any, rng: torch.Generator) -> dict[str, torch.Tensor]:
        (clean,) = views.clean
        assert views.noisy.shape[:2] == (3, len(clean))
        noise = torch.randn(clean.shape, generator=rng)
        apart = (self.norm(views.noisy[0]) - noise).square().mean()
        return {"apart": apart, "together": (views.noisy - clean).square().mean()}


@pytest.mark.parametrize(
    ("removed", "says"), [(0.9, "90% of the negatives were removed .* higher threshold"), (0.1, "too easy")]
)
def test_why_there_is_little_to_learn(removed: float, says: str, make_config: MakeConfig) -> None:
    training = Training.__new__(Training)
    training.config = replace(make_config(), objective="dclr", params=from_preset("dclr").params)
    taken: Any = SimpleNamespace(step=EASY_AT)
    remark = training.check(taken, {"loss": 0.0, "info_nce": 0.0, REMOVED_SHARE: removed})
    assert remark is not None and re.search(says, remark)


@pytest.mark.parametrize("advice", [True, False])
def test_only_train_is_advised_to_use_its_options(
    advice: bool, make_config: MakeConfig, fitted: Fit, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("training.loop.learning_rate", lambda *_: 0.0)  # No step is better than the initial weights.
    _, said = fitted(make_config(max_steps=1), advice=advice)
    assert "no step was better than the initial weights" in said
    assert ("--set learning_rate=" in said) == advice


def test_a_length_above_the_encoders_is_refused(make_config: MakeConfig, fitted: Fit) -> None:
    config = make_config(max_length=500)
    with pytest.raises(ConfigError, match=r"max_length: 500 is more than the 64 tokens that .* --set max_length=64"):
        fitted(config)
    assert not Path(config.run).exists()


def test_the_length_of_a_preset_is_accepted(make_config: MakeConfig, tiny_backbone: Path) -> None:
    check_length(make_config(max_length=64), Encoder.load(tiny_backbone, max_length=16))


@pytest.mark.slow
def test_an_objective_that_needs_more_fits_the_loop_and_its_state_is_resumed(
    make_config: MakeConfig, fitted: Fit, monkeypatch: pytest.MonkeyPatch
) -> None:
    params = make_config().params
    preset = Preset(source="test", batch_size=8, learning_rate=1e-3, pooling="cls", params=params)
    recipe = Recipe(summary="test", citation="", build=Demanding, presets={"bert-base-uncased": preset})
    monkeypatch.setitem(OBJECTIVES, "demanding", recipe)
    whole, cut = (make_config(name, objective="demanding") for name in ("whole", "cut"))
    fitted(whole)
    step = Step.__call__
    with monkeypatch.context() as patch, pytest.raises(ZeroDivisionError):
        patch.setattr(Step, "__call__", lambda self, *rest: 1 / 0 if self._state.step == 8 else step(self, *rest))
        fitted(cut)
    fitted(cut, resume=True)
    losses = [[(line["apart"], line["together"]) for line in metrics(config, "train")] for config in (whole, cut)]
    assert losses[0] == losses[1]


@pytest.mark.parametrize(("rows", "rank"), [(0, 16), (8, 24), (100, 32)])
def test_the_rank_that_barlow_twins_sees_is_logged(rows: int, rank: int, make_config: MakeConfig, fitted: Fit) -> None:
    params = replace(OBJECTIVES["imsimcse"].presets["minilm"].params, barlow_weight=0.1, artificial_rows=rows)
    config = replace(make_config(max_steps=2, eval_every=1), objective="imsimcse", params=params)
    fitted(config)
    assert [line.get("correlation_rank") for line in metrics(config, "evaluation")] == [None, rank, rank]


@pytest.mark.slow
def test_publish_leaves_a_bundle_that_tells_where_it_is_from(
    make_config: MakeConfig, fitted: Fit, sentences: list[str]
) -> None:
    from models.bundle import bundle
    from models.encoder.encoder import Encoder

    config = make_config(max_steps=3)
    outcome, _ = fitted(config)
    manifest = publish(config, outcome, {}).manifest
    assert manifest == bundle.load(Path(config.out)).manifest
    assert (manifest.name, manifest.objective, manifest.pooling) == ("one", "simcse", "cls")
    assert manifest.run is not None and manifest.scores is not None
    assert manifest.run["config"]["seed"] == 42
    assert manifest.run["best_step"] == outcome.best.step
    assert manifest.run["corpus"]["sentences"] == 228
    assert manifest.scores["self_retrieval_mrr10"] == outcome.best.score
    again = Encoder.load(config.out).encode(sentences[:5])
    torch.testing.assert_close(torch.from_numpy(again), torch.from_numpy(outcome.encoder.encode(sentences[:5])))


def test_a_pooling_that_is_not_the_backbones_own_is_said(
    make_config: MakeConfig, fitted: Fit, tiny_bundle: Path
) -> None:
    _, said = fitted(make_config(max_steps=1, backbone=str(tiny_bundle)))
    assert "preset bert-base-uncased, cls pooling but its files declare mean: 228 sentences" in said


def test_every_step_logs_what_its_objective_measures_and_an_evaluation_their_mean(
    make_config: MakeConfig, fitted: Fit
) -> None:
    """The share of negatives that DCLR's weights remove: whether phi does anything at all."""
    params = from_preset("dclr").override({"judge": "self", "threshold": 0.5}).params
    config = replace(make_config(max_steps=4, eval_every=2), objective="dclr", params=params)
    fitted(config)
    shares = [line["removed_share"] for line in metrics(config, "train")]
    assert len(shares) == 4 and all(0 <= share <= 1 for share in shares) and any(shares)
    start, *later = record.evaluations(Path(config.run))
    assert "removed_share" not in start
    assert [point["removed_share"] for point in later] == pytest.approx([fmean(shares[:2]), fmean(shares[2:])])
