"""One step of pre-training: loss, gradient, update; and the same questions asked without learning from them."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, nn
from torch.nn.utils import clip_grad_norm_

from models.encoder import dropout_off
from training.machine.devices import Devices
from training.pretraining.batches import Batch
from training.pretraining.checkpoint import State
from training.pretraining.model import MaskedLM, Questions
from training.views import autocast


class Step:
    """A batch to updated weights; nothing is waited for.

    The loss is the mean over all hidden tokens of the batch, whatever part of them a chunk or a process has.
    """

    def __init__(self, state: State, devices: Devices, *, clip_norm: float, precision: torch.dtype | None) -> None:
        """`precision` is the type of matrix products, None for float32."""
        self._state = state
        self._devices = devices
        self._clip_norm = clip_norm
        self._precision = precision
        self._model = devices.parallel(state.model)

    def __call__(self, batch: Batch, learning_rate: float) -> dict[str, Tensor]:
        """Updates the model; `loss`, `accuracy` and `gradient_norm` (before clipping), scalars."""
        optimiser = self._state.optimiser
        optimiser.zero_grad(set_to_none=True)
        values = self.gradients(batch)
        norm = clip_grad_norm_(self._state.model.parameters(), self._clip_norm)
        for group in optimiser.param_groups:
            group["lr"] = learning_rate
        optimiser.step()
        return {**values, "gradient_norm": norm}

    def gradients(self, batch: Batch) -> dict[str, Tensor]:
        """Adds the gradient of the loss to that of every weight; `loss` and `accuracy` of the whole batch."""
        share = self._devices.count / max(batch.hidden, 1)  # gradients are averaged over the processes
        found = torch.zeros(2, device=self._devices.device)
        *others, last = batch.chunks
        for chunk in others:
            with self._devices.apart(self._model):
                found += self._backward(chunk, share)
        found += self._backward(last, share)
        self._devices.average([found])
        loss, accuracy = found
        return {"loss": loss, "accuracy": accuracy}

    def _backward(self, chunk: Questions, share: float) -> Tensor:
        """(2,) the chunk's shares of loss and accuracy."""
        loss, right = _answered(self._model, self._state.model, chunk, self._precision)
        (loss * share).backward()  # type: ignore[no-untyped-call]
        return torch.stack([loss.detach(), right.float()]) * share


def judged(model: MaskedLM, held_out: Iterable[Questions], precision: torch.dtype | None) -> dict[str, float]:
    """`masked_loss`, in nats a token, and `masked_accuracy`, the share of hidden tokens that come out first."""
    loss = right = count = 0.0
    with torch.no_grad(), dropout_off(model):
        for chunk in held_out:
            found = _answered(model, model, chunk, precision)
            loss, right, count = loss + found[0].item(), right + found[1].item(), count + len(chunk.labels)
    return {"masked_loss": loss / max(count, 1), "masked_accuracy": right / max(count, 1)}


def _answered(
    run: nn.Module, model: MaskedLM, chunk: Questions, precision: torch.dtype | None
) -> tuple[Tensor, Tensor]:
    """What `run`, the model or its parallel form, says to a chunk."""
    moved = [each.to(model.encoder.device, non_blocking=True) for each in chunk]
    with autocast(model.encoder, precision):
        answer: tuple[Tensor, Tensor] = run(*moved)
    return answer
