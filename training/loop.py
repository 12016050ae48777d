"""The loop: the same for every objective."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import torch
from torch import Tensor
from torch.nn.utils import clip_grad_norm_

from models.encoder import Encoder
from training import checkpoint
from training.checkpoint import Best, State
from training.config import RunConfig
from training.corpus import Corpus
from training.progress import Progress
from training.record import Record
from training.views import encode_views


class DivergedError(ArithmeticError):
    """A loss or gradient is not a number; the message names step and terms."""


class InterruptedRun(Exception):
    """The run was asked to stop; it has saved itself first."""


@dataclass(frozen=True, kw_only=True)
class Setting:
    """What stays the same from step to step."""

    config: RunConfig
    corpus: Corpus
    score: Callable[[Encoder], float]
    """By which the best weights are chosen: more is better."""
    metric: str
    """Its name."""
    folder: Path
    """Of checkpoints."""
    autocast: torch.dtype | None = None
    teacher: Encoder | None = None

    @property
    def total_steps(self) -> int:
        """Steps of the whole run."""
        per_epoch = self.corpus.batches_per_epoch(self.config.batch_size)
        return self.config.max_steps or self.config.epochs * per_epoch


def train(state: State, setting: Setting, record: Record, progress: Progress, *, stop: Callable[[], bool]) -> None:
    """Takes `state` from its step to the last, the best weights so far always in the run's folder.

    Raises:
        DivergedError: a loss or gradient is NaN or infinite; the last checkpoint is from before.
        InterruptedRun: `stop`, asked after every step, said so; the checkpoint is from that step.
    """
    config, total = setting.config, setting.total_steps
    if state.step == 0:
        _evaluate(state, setting, record, progress)
    batches = setting.corpus.batches(config.batch_size, seed=config.seed, start=state.step)
    state.encoder.train()

    for sentences in islice(batches, total - state.step):
        started = time.perf_counter()
        rate = learning_rate(config.learning_rate, state.step, total)
        values, tokens = _step(state, setting, sentences, rate)
        state.step += 1
        seconds = time.perf_counter() - started
        speed = {"sentences_per_s": len(sentences) / seconds, "tokens_per_s": tokens / seconds}
        record.write("train", state.step, {**values, **speed})
        progress.advance(values["loss"], len(sentences), seconds)

        due = state.step % config.eval_every == 0 or state.step == total
        if due:
            _evaluate(state, setting, record, progress)
        interrupted = state.step < total and stop()
        if due or interrupted:
            checkpoint.save(state, setting.folder, corpus=setting.corpus.census.digest)
        if interrupted:
            raise InterruptedRun(f"stopped after step {state.step} of {total}")


def adamw(weights: Iterable[Tensor], *, learning_rate: float, weight_decay: float, fused: bool) -> torch.optim.AdamW:
    """AdamW with the published betas and eps, which are torch's own."""
    return torch.optim.AdamW(weights, lr=learning_rate, weight_decay=weight_decay, fused=fused)


def learning_rate(peak: float, step: int, total: int) -> float:
    """Linear decay to zero without warm-up; the first step, 0, is taken at the peak."""
    return peak * (1 - step / total)


def _step(state: State, setting: Setting, sentences: list[str], rate: float) -> tuple[dict[str, float], int]:
    """One update; what to log of it, and the tokens encoded."""
    config = setting.config
    views, tokens = encode_views(
        state.encoder,
        state.objective.needs,
        sentences,
        max_length=config.max_length,
        teacher=setting.teacher,
        autocast=setting.autocast,
    )
    terms = state.objective(views, state.rng)
    loss = torch.stack(list(terms.values())).sum()
    state.optimiser.zero_grad(set_to_none=True)
    loss.backward()  # type: ignore[no-untyped-call]
    norm = clip_grad_norm_(_weights(state.optimiser), config.clip_norm)
    values = _numbers({**terms, "loss": loss, "gradient_norm": norm})
    if not all(map(math.isfinite, values.values())):
        raise DivergedError(f"step {state.step + 1}: {_listed(values)}; the weights before it are kept")
    for group in state.optimiser.param_groups:
        group["lr"] = rate
    state.optimiser.step()
    return {**values, "learning_rate": rate}, tokens


def _evaluate(state: State, setting: Setting, record: Record, progress: Progress) -> None:
    score = setting.score(state.encoder)
    record.write("evaluation", state.step, {setting.metric: score})
    best = state.best is None or score > state.best.score
    if best:
        state.best = Best(state.step, score)
        checkpoint.save_best(state.encoder, state.best, setting.folder)
    progress.say(f"step {state.step}: {setting.metric} {score:.4f}{' (best so far)' if best else ''}")


def _weights(optimiser: torch.optim.Optimizer) -> Iterable[Tensor]:
    return (weight for group in optimiser.param_groups for weight in group["params"])


def _numbers(tensors: dict[str, Tensor]) -> dict[str, float]:
    """One transfer from the device for all of them."""
    stacked = torch.stack([x.detach().float() for x in tensors.values()])
    return dict(zip(tensors, stacked.tolist(), strict=True))


def _listed(values: dict[str, float]) -> str:
    return ", ".join(f"{name} {value}" for name, value in values.items())
