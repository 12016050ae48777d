"""The step of pre-training (loss, gradient, update), and evaluation on held-out batches."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.utils import clip_grad_norm_

from models.encoder.encoder import dropout_off
from training.encoding.views import autocast, to_device
from training.machine.devices import Devices
from training.machine.graphs import CudaGraphs
from training.machine.state_file import optimiser_tensors, restore_optimiser, with_prefix, without_prefix
from training.pretraining.batches import START, Batch, Position
from training.pretraining.model import MaskedLM, MaskedTokens
from training.step import set_learning_rate


@dataclass
class State:
    """Everything that changes during pre-training.

    The number of sentences per step varies, so the position in the corpus does not follow from the step.
    """

    model: MaskedLM
    optimiser: torch.optim.Optimizer
    step: int = 0
    position: Position = START
    """Position of the next step in the corpus."""
    frozen: str = ""

    def facts(self) -> dict[str, Any]:
        return {"step": self.step, "position": self.position}

    def tensors(self) -> dict[str, Tensor]:
        # named_parameters yields tied weights only once.
        weights = {name: weight.detach() for name, weight in self.model.named_parameters()}
        return with_prefix("model.", weights) | optimiser_tensors(self.optimiser)

    def restore_facts(self, facts: Mapping[str, Any]) -> None:
        self.step, self.position = facts["step"], Position(*facts["position"])

    def restore_tensors(self, tensors: Mapping[str, Tensor]) -> None:
        weights = without_prefix("model.", tensors)
        with torch.no_grad():
            for name, weight in self.model.named_parameters():
                weight.copy_(weights[name])
        restore_optimiser(self.optimiser, tensors)


class DeviceBatch(NamedTuple):
    """A batch on the device of this process."""

    chunks: Sequence[MaskedTokens]
    hidden: Tensor
    """Number of masked tokens in the whole batch, or 1 if there are none, ()."""


class Step:
    """A function that updates weights from a batch, without waiting for the device.

    The loss is the mean over all masked tokens of the batch, over all chunks and processes.
    """

    def __init__(
        self,
        state: State,
        devices: Devices,
        *,
        clip_norm: float,
        precision: torch.dtype | None,
        record: bool = False,
    ) -> None:
        """Set up the step.

        `precision` is the dtype of matrix products, and None is float32. With `record`, the step is recorded as a CUDA
        graph.
        """
        self._state = state
        self._devices = devices
        self._clip_norm = clip_norm
        self._precision = precision
        self._model = devices.parallel(state.model)
        self._graphs: CudaGraphs[DeviceBatch] | None = CudaGraphs() if record else None

    def __call__(self, batch: Batch, learning_rate: float) -> dict[str, Tensor]:
        """Update the model. Return `loss`, `accuracy` and `gradient_norm` (before clipping) as scalars."""
        set_learning_rate(self._state.optimiser, learning_rate)
        placed = self._on_device(batch)
        return self._graphs(self._update_from, placed) if self._graphs else self._update_from(placed)

    def gradients(self, batch: Batch) -> dict[str, Tensor]:
        """Add the gradient of the loss to `grad` of every weight. Return `loss` and `accuracy` of the whole batch."""
        return self._gradients(self._on_device(batch))

    def _on_device(self, batch: Batch) -> DeviceBatch:
        device = self._devices.device
        return DeviceBatch(
            [chunk.to(device) for chunk in batch.chunks], to_device(np.array(max(batch.hidden, 1)), device)
        )

    def _update_from(self, placed: DeviceBatch) -> dict[str, Tensor]:
        optimiser = self._state.optimiser
        optimiser.zero_grad(set_to_none=True)
        values = self._gradients(placed)
        norm = clip_grad_norm_(self._state.model.parameters(), self._clip_norm)
        optimiser.step()
        return {**values, "gradient_norm": norm}

    def _gradients(self, placed: DeviceBatch) -> dict[str, Tensor]:
        found = torch.zeros(2, device=self._devices.device)
        *others, last = placed.chunks
        for chunk in others:
            with self._devices.no_sync(self._model):
                found += self._backward(chunk, placed.hidden)
        found += self._backward(last, placed.hidden)
        self._devices.average([found])
        loss, accuracy = found
        return {"loss": loss, "accuracy": accuracy}

    def _backward(self, chunk: MaskedTokens, hidden: Tensor) -> Tensor:
        """Backpropagate the loss of a chunk, and return the chunk's contributions to loss and accuracy, (2,)."""
        loss, right = _answered(self._model, self._state.model, chunk, self._precision)
        # The average over processes divides by their number, so the loss is multiplied by it.
        count = self._devices.count
        (loss * count / hidden).backward()  # type: ignore[no-untyped-call]
        return torch.stack([loss.detach(), right.float()]) * count / hidden


def evaluate(model: MaskedLM, held_out: Iterable[MaskedTokens], precision: torch.dtype | None) -> dict[str, float]:
    """Return `masked_loss`, in nats per token, and `masked_accuracy`, the share of correct predictions."""
    loss = right = count = 0.0
    with torch.no_grad(), dropout_off(model):
        for chunk in held_out:
            found = _answered(model, model, chunk.to(model.encoder.device), precision)
            loss, right, count = loss + found[0].item(), right + found[1].item(), count + chunk.answered
    return {"masked_loss": loss / max(count, 1), "masked_accuracy": right / max(count, 1)}


def _answered(
    run: nn.Module, model: MaskedLM, chunk: MaskedTokens, precision: torch.dtype | None
) -> tuple[Tensor, Tensor]:
    """Return the summed loss and the number of correct predictions for a chunk.

    `run` is the model or its data-parallel wrapper.
    """
    with autocast(model.encoder, precision):
        answer: tuple[Tensor, Tensor] = run(*chunk)
    return answer
