"""Tests on a CUDA device, which compare results with the CPU. They are skipped without a device."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from models.encoder.encoder import Encoder
from tests.training.pretraining.runs import TINY, call, metrics
from tests.training.test_objectives import build, double, every_variant, views_for
from tests.training.test_step import narrow, started, weights
from training.checkpoints.publish import Outcome
from training.config import RunConfig
from training.encoding.attention import use_fast_operations
from training.encoding.packing import encode_passes
from training.encoding.views import ViewEncoder, in_batch_order, make_passes
from training.loop import DivergedError
from training.machine import graphs
from training.machine.graphs import RUNS_BEFORE_RECORDING
from training.objectives import OBJECTIVES
from training.objectives.base import Needs, Views
from training.step import Step, encode_twice

CPU, CUDA = torch.device("cpu"), torch.device("cuda")
Fit = Callable[..., tuple[Outcome, str]]
MakeConfig = Callable[..., RunConfig]

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")


def moved(views: Views, device: torch.device) -> Views:
    """Return the views on a device, each with a gradient of its own."""

    def there(view: Tensor | None) -> Tensor | None:
        return None if view is None else view.detach().to(device).requires_grad_()

    noisy = there(views.noisy)
    assert noisy is not None
    return Views(noisy=noisy, clean=there(views.clean), teacher=there(views.teacher), start=there(views.start))


def shapes_recorded(step: Step) -> int:
    return len(step._graphs._recorded) if step._graphs else 0


def trained(run: str) -> list[dict[str, Any]]:
    """Return a run's metrics of steps."""
    return [
        {name: value for name, value in line.items() if name != "kind"}
        for line in metrics(run)
        if line["kind"] == "train"
    ]


@every_variant
def test_an_objective_that_draws_nothing_has_the_loss_and_the_gradient_of_the_cpu(name: str, params: Any) -> None:
    views = double(views_for(build(name, params), 10))

    def computed(device: torch.device, seed: int) -> tuple[Tensor, Tensor]:
        objective, there = build(name, params).double().to(device), moved(views, device)
        terms = objective(there, torch.Generator(device).manual_seed(seed))
        loss = torch.stack(list(terms.values())).sum()
        loss.backward()  # type: ignore[no-untyped-call]
        assert there.noisy.grad is not None
        return loss.detach().cpu(), there.noisy.grad.cpu()

    here, again = computed(CPU, 0), computed(CPU, 1)
    found = computed(CUDA, 0)
    assert all(torch.isfinite(each).all() for each in found)
    if torch.equal(here[0], again[0]):
        for one, other in zip(here, found, strict=True):
            torch.testing.assert_close(other, one, rtol=1e-7, atol=1e-9)


@pytest.mark.parametrize("pooling", ["cls", "mean"])
@pytest.mark.parametrize("copies", [0, 2])
def test_a_packed_batch_without_dropout_is_what_each_sentence_is_alone(
    pooling: str, copies: int, tiny_backbone: Path, sentences: list[str]
) -> None:
    encoder = use_fast_operations(Encoder.load(tiny_backbone, pooling=pooling).to(CUDA)).train()
    passes = make_passes(encoder, encoder.tokenizer.encode(sentences[:40]))
    clean = in_batch_order(passes, encode_passes(encoder, passes, copies, clean=True))[-1]
    alone = Encoder.load(tiny_backbone, pooling=pooling).encode(sentences[:40])
    torch.testing.assert_close(clean.detach().cpu(), torch.as_tensor(np.asarray(alone)), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("clean", [False, True])
def test_gradient_caching_draws_the_same_dropout_twice(tiny_backbone: Path, sentences: list[str], clean: bool) -> None:
    encoder = use_fast_operations(Encoder.load(tiny_backbone, pooling="mean").double().to(CUDA)).train()
    view_encoder = ViewEncoder(encoder, Needs(views=2, clean=clean))
    passes = make_passes(encoder, encoder.tokenizer.encode(sentences[:40]), most=7)
    weight = torch.randn(2 + clean, 40, encoder.dim, dtype=torch.float64, device=CUDA)

    def gradient_of(pooled: Tensor) -> list[Tensor]:
        leaf = in_batch_order(passes, pooled.detach()).requires_grad_()
        (leaf @ leaf.mT * weight[..., :1]).sum().backward()  # type: ignore[no-untyped-call]
        assert leaf.grad is not None
        return [leaf.grad[:, each.rows] for each in passes]

    def grads(cached: bool) -> list[Tensor]:
        torch.manual_seed(3)
        encoder.zero_grad()
        if cached:
            encode_twice(lambda each: view_encoder([each]), passes, gradient_of, device=CUDA, no_sync=nullcontext)
        else:
            parts = [view_encoder([each]) for each in passes]
            pooled = torch.cat(parts, dim=1)
            torch.autograd.backward(pooled, torch.cat(gradient_of(pooled), dim=1))
        return [weight.grad.clone() for weight in encoder.parameters() if weight.grad is not None]

    whole, cached = grads(cached=False), grads(cached=True)
    assert len(whole) == len(cached) > 30
    for one, other in zip(whole, cached, strict=True):
        torch.testing.assert_close(other, one, rtol=1e-6, atol=1e-9)


@pytest.mark.filterwarnings("ignore:Synchronization debug mode")
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("objective", sorted(OBJECTIVES.keys() - {"distillation"}))
def test_a_step_waits_for_nothing_be_it_new_or_replayed(
    objective: str, precision: str, make_config: MakeConfig, tiny_backbone: Path, sentences: list[str]
) -> None:
    config = replace(make_config(device="cuda", precision=precision), objective=objective, params=narrow(objective))
    _, step, tokenise = started(config, teacher=tiny_backbone)
    batches = [tokenise(sentences[start : start + 16]) for start in range(0, 16 * 8, 16)]
    # In the first step, the optimiser creates its moments and kernels are loaded.
    watched = (2, RUNS_BEFORE_RECORDING + 2)
    for number, batch in enumerate(batches):
        torch.cuda.synchronize()
        torch.cuda.set_sync_debug_mode("error" if number in watched else "default")
        try:
            values = step(batch, 1e-4)
        finally:
            torch.cuda.set_sync_debug_mode("default")
        assert all(torch.isfinite(value) for value in values.values())
    assert shapes_recorded(step) == 1


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("objective", sorted(OBJECTIVES.keys() - {"distillation"}))
def test_replayed_steps_are_the_steps_that_they_were_recorded_from(
    objective: str, precision: str, make_config: MakeConfig, tiny_backbone: Path, sentences: list[str]
) -> None:
    """Compare losses and weights, including dropout and noise, for any order of sizes and a falling learning rate."""
    config = make_config(device="cuda", max_length=48, precision=precision, weight_decay=0.1)
    config = replace(config, objective=objective, params=narrow(objective))
    short, long = sentences[:16], [" ".join(sentences[at : at + 3]) for at in range(16, 32)]
    batches = [short, long, short[:12], long[:12]] * 6
    found = []
    for met, recorded in ((RUNS_BEFORE_RECORDING, 4), (len(batches), 0)):
        state, step, tokenise = started(config, teacher=tiny_backbone)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(graphs, "RUNS_BEFORE_RECORDING", met)
            values = [step(tokenise(batch), 1e-3 * (1 - at / len(batches))) for at, batch in enumerate(batches)]
        losses = [{name: value.item() for name, value in each.items()} for each in values]
        found.append((losses, weights(state), torch.rand(3, device=CUDA), state.rng.get_state()))
        assert shapes_recorded(step) == recorded
    (replayed, ours, drawn, own), (taken, theirs, drawn_too, own_too) = found
    exact = precision == "fp32"
    for one, other in zip(replayed, taken, strict=True):
        assert one == pytest.approx(other, rel=1e-3 if exact else 5e-2, abs=1e-5 if exact else 1e-3)
    for weight, same in zip(ours, theirs, strict=True):
        torch.testing.assert_close(weight, same, rtol=1e-3, atol=1e-4 if exact else 2e-3)
    assert torch.equal(drawn, drawn_too) and torch.equal(own, own_too), "what is drawn next is the same, too"


def test_every_replay_has_dropout_of_its_own(make_config: MakeConfig, sentences: list[str]) -> None:
    _, step, tokenise = started(make_config(device="cuda"))
    batch = tokenise(sentences[:16])
    losses = [step(batch, 0.0)["loss"].item() for _ in range(RUNS_BEFORE_RECORDING + 5)]
    assert shapes_recorded(step) == 1
    assert len(set(losses)) == len(losses)


def test_a_replayed_loss_that_is_no_number_leaves_the_weights(make_config: MakeConfig, sentences: list[str]) -> None:
    state, step, tokenise = started(make_config(device="cuda"))
    batch = tokenise(sentences[:16])
    for _ in range(RUNS_BEFORE_RECORDING + 2):
        assert torch.isfinite(step(batch, 1e-4)["loss"])
    with torch.no_grad():
        next(state.encoder.parameters()).add_(torch.inf)
    broken = weights(state)
    for _ in range(3):
        assert not torch.isfinite(step(batch, 1e-4)["gradient_norm"])
    assert shapes_recorded(step) == 1
    assert all(torch.equal(weight, same) for weight, same in zip(weights(state), broken, strict=True))


@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
def test_a_run_learns(precision: str, make_config: MakeConfig, fitted: Fit) -> None:
    outcome, said = fitted(make_config(max_steps=60, eval_every=20, device="cuda", precision=precision))
    losses = [line["loss"] for line in trained(make_config().run)]
    assert len(losses) == 60 and sum(losses[-10:]) < 0.7 * sum(losses[:10])
    assert outcome.best.step > 0 and f"{precision} on cuda" in said


def test_a_run_that_goes_on_ends_as_one_that_was_not_stopped(make_config: MakeConfig, fitted: Fit) -> None:
    ends = {"device": "cuda", "max_steps": 30, "eval_every": 10}
    fitted(make_config("whole", **ends))
    stopped = make_config("stopped", **ends)
    take = Step.__call__

    def interrupted(self: Step, *given: Any) -> Any:
        if self._state.step == 14:
            raise KeyboardInterrupt
        return take(self, *given)

    with pytest.MonkeyPatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(Step, "__call__", interrupted)
        fitted(stopped)
    fitted(stopped, resume=True)
    whole, again = (trained(make_config(name).run) for name in ("whole", "stopped"))
    assert [line["step"] for line in again] == list(range(1, 31))
    for one, other in zip(again, whole, strict=True):
        assert one == pytest.approx(other, rel=1e-3, abs=1e-5)


def test_a_loss_that_is_no_number_is_found_at_its_step_though_losses_are_read_later(
    make_config: MakeConfig, fitted: Fit
) -> None:
    said = []
    for device in ("cpu", "cuda"):
        with pytest.raises(DivergedError) as raised:
            fitted(make_config(device, device=device, learning_rate=1e18, max_steps=30, eval_every=30))
        said.append(str(raised.value).split(":")[0])
    assert said[0] == said[1]


def test_a_language_model_learns_by_replayed_steps_as_by_others(
    tiny_backbone: Path, corpus_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    given = [each for each in TINY if not each.startswith("device")] + ["device=cuda", "steps=60", "eval_every=30"]
    command = ["pretrain", "--corpus", str(corpus_file), "--tokenizer", str(tiny_backbone)]
    settings = [word for each in (*given, "learning_rate=0.01") for word in ("--set", each)]
    assert call(*command, *settings) == 0
    lines = metrics("runs/mlm")
    evaluations = [line for line in lines if line["kind"] == "evaluation"]
    assert evaluations[-1]["masked_loss"] < evaluations[0]["masked_loss"] - 0.3

    monkeypatch.setattr(graphs, "RUNS_BEFORE_RECORDING", 1000)
    assert call(*command, *settings, "--out", "artifacts/again") == 0
    again = metrics("runs/again")
    losses, same = ([line["loss"] for line in each if line["kind"] == "train"] for each in (lines, again))
    assert losses == pytest.approx(same, rel=1e-2) and len(losses) == 60
