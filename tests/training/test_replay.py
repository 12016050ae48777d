"""Tests of a non-finite loss: the run stops at its step, and the step can be repeated."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from training import cli, loop
from training.checkpoints.checkpoint import CheckpointError
from training.checkpoints.publish import Outcome
from training.config import RunConfig
from training.loop import DivergedError
from training.objectives import OBJECTIVES
from training.objectives.base import Needs, Objective, Views
from training.run import replay

Fit = Callable[..., tuple[Outcome, str]]
MakeConfig = Callable[..., RunConfig]


class Fragile(Objective):
    """Objective that becomes NaN when the running sum of its random numbers passes a limit."""

    needs = Needs()
    total: Tensor

    def __init__(self, params: Any, dim: int) -> None:
        super().__init__()
        self.register_buffer("total", torch.zeros(()))

    def forward(self, views: Views, rng: torch.Generator) -> dict[str, Tensor]:
        self.total += torch.rand((), generator=rng)
        plain = views.noisy.square().mean()
        return {"plain": plain, "drawn": plain * self.total * (float("nan") if self.total > 3 else 1)}


@pytest.fixture
def broken(make_config: MakeConfig, fitted: Fit, monkeypatch: pytest.MonkeyPatch) -> RunConfig:
    """Return a run that diverged between two evaluations."""
    monkeypatch.setitem(OBJECTIVES, "fragile", replace(OBJECTIVES["simcse"], build=Fragile))
    config = replace(make_config(), objective="fragile")
    with pytest.raises(DivergedError) as caught:
        fitted(config)
    assert str(loop.last_divergence(Path(config.run))) in str(caught.value)
    return config


def test_the_step_taken_again_is_the_step(broken: RunConfig, capsys: pytest.CaptureFixture[str]) -> None:
    step, values, odd = replay(broken, loop.last_divergence(Path(broken.run)))
    again = replay(broken, loop.last_divergence(Path(broken.run)))
    assert again[0] == step > 1 and again[1]["plain"] == values["plain"]
    assert values["plain"] == values["plain"] and values["drawn"] != values["drawn"]
    assert odd == [], "the views are fine: it is the objective"
    assert cli.main(["replay", broken.run]) == 0
    assert f"step {step}: plain {values['plain']}, drawn nan" in capsys.readouterr().out


def test_it_has_the_terms_that_the_run_saw(
    broken: RunConfig, make_config: MakeConfig, fitted: Fit, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(DivergedError) as caught:
        fitted(replace(broken, run=f"{broken.run}-again"))
    _, values, _ = replay(broken, loop.last_divergence(Path(broken.run)))
    assert f"plain {values['plain']}, drawn nan" in str(caught.value)


def test_sentences_whose_views_are_no_numbers_are_named(broken: RunConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    from models.encoder.encoder import Encoder

    whole = Encoder.pooled

    def spoiled(self: Encoder, layers: Sequence[Tensor], mask: Tensor) -> Tensor:
        return torch.cat([whole(self, layers, mask)[:-1], torch.full((1, self.dim), torch.nan)])

    file = loop.last_divergence(Path(broken.run))
    monkeypatch.setattr(Encoder, "pooled", spoiled)
    _, _, odd = replay(broken, file)
    assert 1 <= len(odd) < broken.batch_size, "one in each pass"


def test_a_folder_with_a_blank_is_quoted_in_the_command_that_replays_it(broken: RunConfig, fitted: Fit) -> None:
    config = replace(broken, run=f"{broken.run} again")
    with pytest.raises(DivergedError, match=f"isosphere replay '{re.escape(config.run)}' shows"):
        fitted(config)


def test_a_run_that_diverges_again_keeps_the_last_time_alone(broken: RunConfig, fitted: Fit) -> None:
    file = loop.last_divergence(Path(broken.run))
    earlier = file.with_name("diverged-00000099.safetensors")
    file.rename(earlier)
    with pytest.raises(DivergedError):
        fitted(broken, resume=True)
    assert loop.last_divergence(Path(broken.run)) == file and not earlier.exists()


class Loud(Objective):
    """Objective whose gradient overflows fp16 until the scale was halved several times. Its last loss is NaN."""

    needs = Needs()
    last = 14
    calls: Tensor

    def __init__(self, params: Any, dim: int) -> None:
        super().__init__()
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, views: Views, rng: torch.Generator) -> dict[str, Tensor]:
        self.calls += 1
        return {"plain": views.noisy.square().mean() * (torch.nan if self.calls == self.last else 1e4)}


@pytest.mark.slow
def test_in_fp16_the_gradient_is_that_of_the_runs_scale_and_its_norm_has_none(
    make_config: MakeConfig, fitted: Fit, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(OBJECTIVES, "loud", replace(OBJECTIVES["simcse"], build=Loud))
    config = make_config(objective="loud", precision="fp16")
    with pytest.raises(DivergedError):
        fitted(config)
    monkeypatch.setattr(Loud, "last", 0)
    file = loop.last_divergence(Path(config.run))
    _, narrow, odd = replay(config, file)
    _, wide, _ = replay(replace(config, precision="fp32"), file)
    assert narrow["gradient_norm"] == pytest.approx(wide["gradient_norm"], rel=0.02) and odd == []


def test_a_run_that_never_diverged_has_nothing_to_replay(make_config: MakeConfig, fitted: Fit) -> None:
    config = make_config(max_steps=1)
    fitted(config)
    with pytest.raises(CheckpointError, match=r"runs/one: no step of this run diverged"):
        loop.last_divergence(Path(config.run))
