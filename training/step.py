"""One step: views, loss, gradient, update."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils import clip_grad_norm_

from training.checkpoint import State
from training.corpus.batches import Batch
from training.machine.devices import Devices
from training.passes.caching import encode_twice
from training.views import Augmentation, Frozen, ViewEncoder, in_order, in_passes


class Step:
    """A batch to updated weights. Nothing is waited for: what a call returns is still being computed on the device.

    Only what a frozen encoder says is, where a run keeps it, the first time that it is asked.
    Once a loss is not a number, no weight changes any more: whenever the loop reads the losses, it finds the weights
    as they were before that step. In fp16 a gradient out of range is expected and only skips its update.
    """

    def __init__(
        self,
        state: State,
        devices: Devices,
        *,
        clip_norm: float,
        teacher: Frozen | None = None,
        start: Frozen | None = None,
        autocast: torch.dtype | None = None,
        augmentation: Augmentation | None = None,
        chunk_size: int | None = None,
    ) -> None:
        """`start` is the encoder before its first step. `chunk_size` is the most sentences encoded at once, by gradient
        caching; None keeps the batch whole.

        Raises:
            ValueError: the objective needs a teacher, or the encoder of before, and there is none.
        """
        needs = state.objective.needs
        if needs.teacher and teacher is None:
            raise ValueError("the objective needs a teacher and the run has none")
        if needs.start and start is None:
            raise ValueError("the objective needs the encoder of before and the run has none")
        self._state = state
        self._devices = devices
        self._clip_norm = clip_norm
        self._teacher = teacher if needs.teacher else None
        self._start = start if needs.start else None
        self._chunk_size = chunk_size
        self._views = ViewEncoder(state.encoder, needs, autocast=autocast, augmentation=augmentation)
        self._encode = devices.parallel(self._views)
        self._diverged = torch.zeros((), dtype=torch.bool, device=devices.device)

    def __call__(self, batch: Batch, learning_rate: float) -> dict[str, Tensor]:
        """Updates encoder and objective; each term, `loss` and `gradient_norm` (before clipping), scalars."""
        state = self._state
        state.optimiser.zero_grad(set_to_none=True)
        terms = self.gradients(batch)
        norm = self.gradient_norm()
        self._update(norm, learning_rate)
        return {**terms, "gradient_norm": norm}

    def gradient_norm(self) -> Tensor:
        """The length of the gradient of all weights, free of fp16's scale, before it is clipped."""
        self._state.scaler.unscale_(self._state.optimiser)
        return clip_grad_norm_(_weights(self._state.optimiser), self._clip_norm)

    def gradients(self, batch: Batch, *, seen: Callable[[Tensor], None] | None = None) -> dict[str, Tensor]:
        """Adds the gradient of the loss to that of every weight; each term, and `loss`.

        `seen` is shown the views of the whole batch, (V, N, D), the clean one last; they get their gradient, too.
        """
        state = self._state
        passes = in_passes(state.encoder, batch.tokens, most=self._chunk_size)
        teacher, start = self._taught(batch), self._began(batch)
        values: dict[str, Tensor] = {}

        def at_the_views(pooled: Tensor) -> list[Tensor]:
            """The loss of the whole batch, and its gradient at the views of each pass."""
            views = self._devices.gathered(in_order(passes, pooled.detach()), len(batch.sentences)).requires_grad_()
            if seen is not None:
                seen(views)
            terms = state.objective(self._views.split(views, teacher, start), state.rng)
            loss = torch.stack(list(terms.values())).sum()
            self._diverged |= ~torch.isfinite(loss.detach())
            loss = loss * torch.where(self._diverged, torch.nan, 1.0)  # and so are all gradients from then on
            state.scaler.scale(loss).backward()  # type: ignore[no-untyped-call]
            values.update({name: value.detach() for name, value in {**terms, "loss": loss}.items()})
            assert views.grad is not None
            # The encoder's gradients are averaged over the processes, and each has that of its own rows alone.
            own = views.grad[:, batch.own.start : batch.own.stop] * self._devices.count
            return [own[:, each.rows] for each in passes]

        # Several processes have to go the same way, even where one has a single pass: they wait for each other in it.
        if self._chunk_size is None or (len(passes) == 1 and self._devices.count == 1):
            pooled = self._encode(passes)
            pooled.backward(torch.cat(at_the_views(pooled), dim=1))
        else:
            encode_twice(
                lambda each: self._encode([each]),
                passes,
                at_the_views,
                device=self._devices.device,
                apart=lambda: self._devices.apart(self._encode),
            )
        self._devices.average(weight.grad for weight in state.objective.parameters())
        return values

    def _taught(self, batch: Batch) -> Tensor | None:
        if self._teacher is None:
            return None
        assert batch.teacher_tokens is not None, "the tokeniser was made with the teacher"
        return self._gathered(self._teacher(batch.teacher_tokens), batch)

    def _began(self, batch: Batch) -> Tensor | None:
        return None if self._start is None else self._gathered(self._start(batch.tokens), batch)

    def _gathered(self, own: Tensor, batch: Batch) -> Tensor:
        return self._devices.gathered(own, len(batch.sentences))

    def _update(self, norm: Tensor, learning_rate: float) -> None:
        optimiser, scaler = self._state.optimiser, self._state.scaler
        for group in optimiser.param_groups:
            group["lr"] = learning_rate
        if not scaler.is_enabled():
            self._diverged |= ~torch.isfinite(norm)
            # Read by torch's fused optimisers on the device: 1 leaves weights and moments as they are.
            optimiser.found_inf = self._diverged.float()  # type: ignore[attr-defined]
        scaler.step(optimiser)
        scaler.update()


def adamw(weights: Iterable[Tensor], *, learning_rate: float, weight_decay: float) -> torch.optim.AdamW:
    """AdamW with the published betas and eps, which are torch's own; fused, so that it can skip a bad step unasked.

    Only matrices decay, norms and biases do not (Devlin et al.).
    """
    weights = list(weights)
    groups: list[dict[str, Any]] = [{"params": weights}]
    if weight_decay:  # without, the moments of a checkpoint are in the weights' own order
        groups = [
            {"params": [weight for weight in weights if weight.ndim > 1]},
            {"params": [weight for weight in weights if weight.ndim <= 1], "weight_decay": 0.0},
        ]
    return torch.optim.AdamW(groups, lr=learning_rate, weight_decay=weight_decay, fused=True)


def learning_rate(peak: float, step: int, total: int) -> float:
    """Linear decay to zero without warm-up; the first step, 0, is taken at the peak."""
    return peak * (1 - step / total)


def _weights(optimiser: torch.optim.Optimizer) -> Sequence[Tensor]:
    return [weight for group in optimiser.param_groups for weight in group["params"]]
