from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tensorboard.backend.event_processing.event_accumulator import (  # type: ignore[import-untyped]
    EventAccumulator,
)

from training import run
from training.config import RunConfig
from training.loop import DivergedError
from training.objectives import OBJECTIVES
from training.objectives.base import Needs, Preset, Recipe
from training.record import RunError
from training.run import Outcome

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


def test_the_outcome_has_the_best_weights(make_config: MakeConfig, fitted: Fit) -> None:
    from training.selection import by_self_retrieval

    outcome, _ = fitted(make_config())
    assert not outcome.encoder.training
    score = by_self_retrieval(outcome.census.held_out).score(outcome.encoder.encode)
    assert score == pytest.approx(outcome.best.score)


def test_what_is_logged(make_config: MakeConfig, fitted: Fit) -> None:
    config = make_config()
    _, said = fitted(config)
    steps = metrics(config, "train")
    assert [line["step"] for line in steps] == list(range(1, 15))
    assert steps[0].keys() == {
        *("kind", "step", "info_nce", "loss", "gradient_norm"),
        *("learning_rate", "sentences_per_s", "tokens_per_s"),
    }
    assert steps[0]["learning_rate"] == config.learning_rate
    assert steps[-1]["learning_rate"] == pytest.approx(config.learning_rate / 14)
    folder = Path(config.run)
    assert RunConfig.from_json((folder / "config.json").read_text()) == config
    environment = json.loads((folder / "environment.json").read_text())
    assert environment["packages"]["torch"] == torch.__version__
    assert environment["corpus"]["sentences"] == 228 and environment["corpus"]["held_out"] == 12
    assert environment.keys() >= {"python", "git_commit", "device", "precision"}
    events = EventAccumulator(str(folder)).Reload()
    assert [scalar.step for scalar in events.Scalars("train/loss")] == list(range(1, 15))
    assert [scalar.step for scalar in events.Scalars("evaluation/self_retrieval_mrr10")] == [0, 5, 10, 14]
    assert "228 sentences" in said and "0 duplicates and 0 blank lines dropped" in said
    assert "step 14/14: loss" in said and "sentences/s, 0:00:00 left" in said


def test_the_same_seed_gives_the_same_run_and_another_another(make_config: MakeConfig, fitted: Fit) -> None:
    configs = [make_config("a"), make_config("b"), make_config("c", seed=1)]
    for config in configs:
        fitted(config)
    losses = [[line["loss"] for line in metrics(config, "train")] for config in configs]
    assert losses[0] == losses[1] != losses[2]


def test_an_epoch_is_every_batch_and_a_last_one_of_one_sentence_is_harmless(
    make_config: MakeConfig, fitted: Fit
) -> None:
    config = make_config(max_steps=None, batch_size=227)
    fitted(config)
    first, last = metrics(config, "train")
    assert first["loss"] > 0
    assert last["loss"] == last["gradient_norm"] == 0


def test_a_second_run_needs_another_folder(make_config: MakeConfig, fitted: Fit) -> None:
    config = make_config(max_steps=1)
    fitted(config)
    with pytest.raises(RunError, match=r"runs/one holds a run already: --resume"):
        fitted(config)


def test_a_run_that_never_began_is_not_resumed(make_config: MakeConfig, fitted: Fit) -> None:
    with pytest.raises(RunError, match=r"runs/one holds no run to resume"):
        fitted(make_config(), resume=True)


def test_an_out_folder_that_is_no_bundle_is_refused_before_training(make_config: MakeConfig, fitted: Fit) -> None:
    config = make_config()
    Path(config.out).mkdir(parents=True)
    (Path(config.out) / "thesis.txt").write_text("dear")
    with pytest.raises(RunError, match=r"artifacts/one exists and is not a bundle"):
        fitted(config)
    assert not Path(config.run).exists()


class Broken(torch.nn.Module):
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
    preset = Preset(source="test", batch_size=8, learning_rate=1e-3, params=params)
    broken = Recipe(summary="test", build=Broken, presets={"bert-base-uncased": preset})
    monkeypatch.setitem(OBJECTIVES, "broken", broken)
    config = make_config(objective="broken", eval_every=2)
    with pytest.raises(DivergedError, match=r"step 4: plain 0\.\d+, odd nan, loss nan"):
        fitted(config)
    assert (Path(config.run) / "checkpoint.safetensors").exists()
    assert len(metrics(config, "train")) == 3


class Demanding(torch.nn.Module):
    """Asks for more views, a clean pass, weights of its own and random numbers: the loop must not care."""

    needs = Needs(views=3, clean=True)

    def __init__(self, params: Any, dim: int) -> None:
        super().__init__()
        self.norm = torch.nn.BatchNorm1d(dim)

    def forward(self, views: Any, rng: torch.Generator) -> dict[str, torch.Tensor]:
        assert views.noisy.shape[:2] == (3, len(views.clean))
        noise = torch.randn(views.clean.shape, generator=rng)
        apart = (self.norm(views.noisy[0]) - noise).square().mean()
        return {"apart": apart, "together": (views.noisy - views.clean).square().mean()}


def test_an_objective_that_needs_more_fits_the_loop_and_its_state_is_resumed(
    make_config: MakeConfig, fitted: Fit, monkeypatch: pytest.MonkeyPatch
) -> None:
    params = make_config().params
    preset = Preset(source="test", batch_size=8, learning_rate=1e-3, params=params)
    recipe = Recipe(summary="test", build=Demanding, presets={"bert-base-uncased": preset})
    monkeypatch.setitem(OBJECTIVES, "demanding", recipe)
    whole, cut = (make_config(name, objective="demanding") for name in ("whole", "cut"))
    fitted(whole)
    from training import loop

    step = loop._step
    with monkeypatch.context() as patch, pytest.raises(ZeroDivisionError):
        patch.setattr(loop, "_step", lambda state, *rest: 1 / 0 if state.step == 8 else step(state, *rest))
        fitted(cut)
    fitted(cut, resume=True)
    losses = [[(line["apart"], line["together"]) for line in metrics(config, "train")] for config in (whole, cut)]
    assert losses[0] == losses[1]


def test_publish_leaves_a_bundle_that_tells_where_it_is_from(
    make_config: MakeConfig, fitted: Fit, sentences: list[str]
) -> None:
    from models import bundle
    from models.encoder import Encoder

    config = make_config(max_steps=3)
    outcome, _ = fitted(config)
    manifest = run.publish(config, outcome, {}).manifest
    assert manifest == bundle.load(Path(config.out)).manifest
    assert (manifest.name, manifest.objective, manifest.pooling) == ("one", "simcse", "cls")
    assert manifest.run is not None and manifest.scores is not None
    assert manifest.run["config"]["seed"] == 42
    assert manifest.run["best_step"] == outcome.best.step
    assert manifest.run["corpus"]["sentences"] == 228
    assert manifest.scores["self_retrieval_mrr10"] == outcome.best.score
    again = Encoder.load(config.out).encode(sentences[:5])
    torch.testing.assert_close(torch.from_numpy(again), torch.from_numpy(outcome.encoder.encode(sentences[:5])))
