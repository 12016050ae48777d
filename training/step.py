"""The training step (views, loss, gradient, update), gradient caching, and the construction of a run's parts."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor, nn
from torch.nn.utils import clip_grad_norm_

from models.bundle.sources import manifest_of
from models.bundle.tokenizer import Tokens
from models.encoder.encoder import Encoder
from training.checkpoints.checkpoint import State
from training.checkpoints.speed import OperationCount, SpeedMeter, matmul_peak
from training.config import ConfigError, RunConfig
from training.data.batches import Batch, Tokeniser
from training.encoding.attention import use_fast_operations
from training.encoding.lora import check_augmentation, check_views_differ, load_for_training
from training.encoding.packing import Pass
from training.encoding.views import FrozenEncoder, Teacher, TeacherCache, ViewEncoder, in_batch_order, make_passes
from training.machine.devices import Devices, RandomState
from training.machine.graphs import CudaGraphs
from training.objectives import OBJECTIVES
from training.objectives.base import PASSAGES_SETTINGS
from training.objectives.matryoshka import Matryoshka


class DeviceBatch(NamedTuple):
    """A batch on the device of this process."""

    passes: Sequence[Pass]
    teacher: Tensor | None
    """Vectors of the teacher, (N, D'), for the whole batch."""
    start: Tensor | None
    """Vectors computed with the initial weights, (N, D), for the whole batch."""
    own: range
    """Rows that this process encodes."""
    sentences: int
    """N, the number of sentences in the whole batch."""


class Step:
    """A function that updates weights from a batch, usually without waiting for the device.

    It waits only to add new vectors to the cache of a frozen encoder. A step with a non-finite loss changes no weights,
    and all later steps change no weights either. So the loop can read losses later, and still finds the weights from
    before the diverged step. In fp16, a step whose gradient overflows changes no weights, but later steps do.
    """

    def __init__(
        self,
        config: RunConfig,
        state: State,
        devices: Devices,
        teacher: Encoder | None,
        autocast: torch.dtype | None,
        *,
        keep: Path | None = None,
    ) -> None:
        """Set up the run's step.

        The matrices of frozen encoders are converted once to the autocast dtype. If `keep` is given, the vectors of
        frozen encoders are cached in this folder for later epochs.

        Raises:
            SourceError, BundleError: the objective needs the initial backbone, which no longer exists.
        """
        needs, counts = state.objective.needs, state.cached_vectors
        start = load_start(config, devices) if needs.start else None
        self._state = state
        self._devices = devices
        self._clip_norm = config.clip_norm
        self._chunk_size = config.chunk_size
        self._teacher = _frozen(teacher if needs.teacher else None, autocast, keep, "teacher", counts)
        self._start = _frozen(start, autocast, keep, "start", counts)
        self._views = ViewEncoder(state.encoder, needs, autocast=autocast, augmentation=config.augmented)
        self._encode = devices.parallel(self._views)
        self._diverged = torch.zeros((), dtype=torch.bool, device=devices.device)
        recorded = can_record(config, state, devices)
        self._graphs: CudaGraphs[DeviceBatch] | None = CudaGraphs([state.rng]) if recorded else None

    def __call__(self, batch: Batch, learning_rate: float) -> dict[str, Tensor]:
        """Update the weights of encoder and objective.

        Return scalars by name: the objective's terms and measures, `loss`, and `gradient_norm` (before clipping).
        """
        set_learning_rate(self._state.optimiser, learning_rate)
        placed = self._on_device(batch)
        return self._graphs(self._update_from, placed) if self._graphs else self._update_from(placed)

    def _update_from(self, placed: DeviceBatch) -> dict[str, Tensor]:
        self._state.optimiser.zero_grad(set_to_none=True)
        terms = self._gradients(placed)
        norm = self.gradient_norm()
        self._update(norm)
        return {**terms, "gradient_norm": norm}

    def gradient_norm(self) -> Tensor:
        """Clip the gradient of all weights, and return its norm before clipping, without the loss scale of fp16."""
        self._state.scaler.unscale_(self._state.optimiser)
        weights = [weight for group in self._state.optimiser.param_groups for weight in group["params"]]
        return clip_grad_norm_(weights, self._clip_norm)

    def gradients(self, batch: Batch, *, on_views: Callable[[Tensor], None] | None = None) -> dict[str, Tensor]:
        """Add the gradient of the loss to the `grad` of every weight.

        Return scalars by name: the objective's terms and measures, and `loss`. In fp16, all gradients are multiplied by
        the loss scale.

        `on_views` receives the views of the whole batch, (V, N, D). Views without dropout are the last ones. When
        `gradients` returns, the `grad` of the views is the gradient of the loss with respect to the views.
        """
        return self._gradients(self._on_device(batch), on_views=on_views)

    def _on_device(self, batch: Batch) -> DeviceBatch:
        passes = make_passes(self._state.encoder, batch.tokens, batch.first_tokens, most=self._chunk_size)
        teacher = self._frozen_vectors(self._teacher, batch.teacher_tokens, batch)
        start = self._frozen_vectors(self._start, batch.tokens, batch)
        return DeviceBatch(passes, teacher, start, batch.own, len(batch))

    def _frozen_vectors(
        self, frozen: FrozenEncoder | None, tokens: Sequence[Tokens] | None, batch: Batch
    ) -> Tensor | None:
        if frozen is None:
            return None
        assert tokens is not None, "the tokeniser was made with the teacher"
        return self._devices.gather(frozen(tokens), len(batch))

    def _gradients(self, placed: DeviceBatch, *, on_views: Callable[[Tensor], None] | None = None) -> dict[str, Tensor]:
        state, passes = self._state, placed.passes
        values: dict[str, Tensor] = {}

        def gradient_of_views(pooled: Tensor) -> list[Tensor]:
            """Compute the loss of the whole batch, and its gradient with respect to the views.

            Return one tensor for each pass of this process: the gradient with respect to the views from this pass.
            """
            views = self._devices.gather(in_batch_order(passes, pooled.detach()), placed.sentences).requires_grad_()
            if on_views is not None:
                on_views(views)
            terms: dict[str, Tensor] = state.objective(
                self._views.split(views, placed.teacher, placed.start), state.rng
            )
            loss = torch.stack(list(terms.values())).sum()
            self._diverged |= ~torch.isfinite(loss.detach())
            # With a non-finite loss, all later gradients become NaN, so that no later step changes the weights.
            loss = loss * torch.where(self._diverged, torch.nan, 1.0)
            state.scaler.scale(loss).backward()  # type: ignore[no-untyped-call]
            found = {**terms, **state.objective.measured(), "loss": loss}
            values.update({name: value.detach() for name, value in found.items()})
            assert views.grad is not None
            # DDP averages the encoder's gradients over processes, but each process has only the gradients of its own
            # rows.
            own = views.grad[:, placed.own.start : placed.own.stop] * self._devices.count
            return [own[:, each.rows] for each in passes]

        # All processes must take the same branch, even a process with a single pass, because they wait for each other
        # in it.
        if self._chunk_size is None or (len(passes) == 1 and self._devices.count == 1):
            pooled = self._encode(passes)
            pooled.backward(torch.cat(gradient_of_views(pooled), dim=1))
        else:
            encode_twice(
                lambda each: self._encode([each]),
                passes,
                gradient_of_views,
                device=self._devices.device,
                no_sync=lambda: self._devices.no_sync(self._encode),
            )
        # These gradients are equal in theory, but can differ in the last bit between devices.
        self._devices.average(weight.grad for weight in state.objective.parameters())
        return values

    def _update(self, norm: Tensor) -> None:
        optimiser, scaler = self._state.optimiser, self._state.scaler
        if not scaler.is_enabled():
            self._diverged |= ~torch.isfinite(norm)
            # Torch's fused optimisers read this value on the device. A value of 1 leaves weights and moments unchanged.
            optimiser.found_inf = self._diverged.float()  # type: ignore[attr-defined]
        scaler.step(optimiser)
        scaler.update()


# Gradient caching: the exact gradient of a batch that is larger than the memory of one pass. Source: Gao, Zhang, Han
# and Callan, "Scaling Deep Contrastive Learning Batch Size under Memory Limited Setup" (RepL4NLP 2021). A contrastive
# loss depends on the batch only through its pooled vectors. So all parts are first encoded without gradient, and the
# gradient of the loss with respect to the vectors is computed. Then each part is encoded again, and its share of that
# gradient is propagated to the weights.

X = TypeVar("X")


def encode_twice(
    encode: Callable[[X], Tensor],
    parts: Sequence[X],
    gradient_of: Callable[[Tensor], Sequence[Tensor]],
    *,
    device: torch.device,
    no_sync: Callable[[], AbstractContextManager[None]],
) -> None:
    """Backpropagate through `encode`, one part at a time.

    All parts are first encoded without gradient. `gradient_of` takes the vectors of all parts, concatenated to
    (V, n, D) for V views of n sentences. It returns the gradient of the loss with respect to the vectors of each part.
    Then each part is encoded again, and its gradient is propagated to the weights. Backpropagation of every part but
    the last is inside the context `no_sync()`, so processes exchange gradients only once.
    """
    before, vectors = [], []
    with torch.no_grad():
        for part in parts:
            before.append(RandomState.of(device))
            vectors.append(encode(part))
    gradients = gradient_of(torch.cat(vectors, dim=1))
    for number, (part, drawn, gradient) in enumerate(zip(parts, before, gradients, strict=True), start=1):
        drawn.restore(device)
        if number < len(parts):
            with no_sync():
                torch.autograd.backward(encode(part), gradient)
        else:
            torch.autograd.backward(encode(part), gradient)


def adamw(weights: Iterable[Tensor], *, learning_rate: float, weight_decay: float) -> torch.optim.AdamW:
    """Create AdamW with the published betas and eps, which are torch's defaults.

    The optimiser is torch's fused AdamW: it can skip an update on the device if the gradient is not finite, so the
    host need not wait. Weight decay applies only to matrices, not to norms and biases (Devlin et al.). On CUDA, the
    learning rate is a tensor on the device, because steps that are recorded as CUDA graphs read it there.
    """
    weights = list(weights)
    replayed = weights[0].is_cuda
    rate = torch.tensor(learning_rate, device=weights[0].device) if replayed else learning_rate
    groups: list[dict[str, Any]] = [{"params": weights}]
    # Without weight decay, there is one group, so a checkpoint's moments are in the order of the weights.
    if weight_decay:
        groups = [
            {"params": [weight for weight in weights if weight.ndim > 1]},
            {"params": [weight for weight in weights if weight.ndim <= 1], "weight_decay": 0.0},
        ]
    return torch.optim.AdamW(groups, lr=rate, weight_decay=weight_decay, fused=True, capturable=replayed)


def set_learning_rate(optimiser: torch.optim.Optimizer, learning_rate: float) -> None:
    """Set the learning rate in place, without waiting for the device."""
    for group in optimiser.param_groups:
        if isinstance(group["lr"], Tensor):
            group["lr"].fill_(learning_rate)
        else:
            group["lr"] = learning_rate


def learning_rate(peak: float, step: int, total: int) -> float:
    """Return the learning rate of `step`: linear decay from `peak` at step 0 to zero at `total`, without warm-up."""
    return peak * (1 - step / total)


# Construction of the parts of a run: state, tokeniser, step and speed meter.

RECORDABLE_TYPES = frozenset(("bert",))
"""Model types whose steps are known to be recordable on a GPU. Other types are untested."""


def initial_state(config: RunConfig, devices: Devices, autocast: torch.dtype | None) -> State:
    """Build the state of a run before its first step.

    Randomly initialised weights are drawn from the seed, so they are the same on every process.

    Raises:
        ConfigError: the encoder's width does not suit the objective or the adapter; the views of a sentence would be
            equal, because the encoder has no dropout; the augmentation does not suit the objective or the encoder; or
            the batch has fewer sentences than there are processes.
        SourceError, AdapterError, BundleError: see `load_for_training`.
    """
    if config.batch_size < devices.count:
        raise ConfigError(
            f"batch_size: {config.batch_size} leaves some of {devices.count} processes without a sentence"
        )
    torch.manual_seed(config.seed)
    encoder = load_for_training(config, devices.device)
    try:
        build = partial(OBJECTIVES[config.objective].build, config.params)
        width, widths = encoder.dim, config.matryoshka
        objective = build(width) if widths is None else Matryoshka(build, widths, width)
    except ValueError as error:
        raise ConfigError(str(error)) from error
    check_views_differ(encoder, config, objective.needs.views)
    check_augmentation(encoder, config)
    objective.to(devices.device)
    optimiser = adamw(  # The optimiser keeps no moments of frozen weights, because they get no gradient.
        [*encoder.parameters(), *objective.parameters()],
        learning_rate=config.learning_rate,
        weight_decay=config.weight_decay,
    )
    return State(
        encoder=encoder,
        objective=objective,
        optimiser=optimiser,
        rng=torch.Generator(devices.device).manual_seed(config.seed),
        scaler=torch.amp.GradScaler(devices.device.type, enabled=autocast == torch.float16),
    )


def check_length(config: RunConfig, encoder: Encoder) -> None:
    """Check that the encoder reads as many tokens as the run's `max_length`.

    The `max_length` of a preset is accepted, because the user has not chosen it. Longer texts are then truncated to the
    encoder's own limit.

    Raises:
        ConfigError: the encoder reads fewer tokens.
    """
    preset = {
        PASSAGES_SETTINGS["max_length"],
        *(each.max_length for each in OBJECTIVES[config.objective].presets.values()),
    }
    if config.max_length > encoder.max_length and config.max_length not in preset:
        raise ConfigError(
            f"max_length: {config.max_length} is more than the {encoder.max_length} tokens that {config.backbone} "
            f"reads: --set max_length={encoder.max_length}"
        )


def make_tokeniser(config: RunConfig, encoder: Encoder, teacher: Encoder | None, devices: Devices) -> Tokeniser:
    """Return the function that tokenises the run's sentences or passages into batches."""
    return Tokeniser(
        encoder,
        teacher,
        max_length=config.max_length,
        own=devices.rows,
        positives=config.positives,
        seed=config.seed,
    )


def can_record(config: RunConfig, state: State, devices: Devices) -> bool:
    """Return whether a step can be recorded as a CUDA graph.

    All work of a recorded step must run on one CUDA device. Each of the following prevents recording: several
    processes, a gradient scaler, an augmentation, an objective that waits for the device, torch.compile, and gradient
    caching. With gradient caching, each part of a batch is padded to a length of its own, so two steps seldom have the
    same shapes. The model type must be in `RECORDABLE_TYPES`.
    """
    whole = config.chunk_size is None and config.augmentation == "none" and not config.compile
    asks_nobody = not state.scaler.is_enabled() and not state.objective.needs.host
    return (
        devices.single_cuda and whole and asks_nobody and state.encoder.backbone.config.model_type in RECORDABLE_TYPES
    )


def make_meter(
    state: State,
    teacher: Encoder | None,
    devices: Devices,
    autocast: torch.dtype | None,
    *,
    cached_after: float = math.inf,
) -> SpeedMeter:
    return SpeedMeter(
        needs=state.objective.needs,
        work=OperationCount.of(state.encoder),
        teacher=OperationCount.of(teacher) if teacher else None,
        peak=matmul_peak(devices.device, autocast or torch.float32) * devices.count,
        processes=devices.count,
        cached_after=cached_after,
    )


def load_start(config: RunConfig, devices: Devices) -> Encoder:
    """Load the encoder as it is before training: the backbone with all its layers. Its weights are frozen.

    The encoder usually gets the pooling in `config`. If `config.layers` is empty, it keeps the backbone's own pooling,
    because such a run trains a table of token vectors to imitate the backbone's vectors.
    """
    return load_frozen(config.backbone, devices, pooling=config.pooling if config.layers != () else None)


def load_frozen(source: str, devices: Devices, *, pooling: str | None = None) -> Encoder:
    """Load a frozen encoder on the device of this process. If `source` is a bundle, check its files.

    If the files lack the pooler's weights, these weights are drawn at random. The random state is then restored,
    because a resumed run loads the encoder once more and must draw the same numbers as before.

    Raises:
        SourceError, AdapterError: `source` does not exist or can't be read.
        BundleError: `source` is a bundle, and a file does not match the manifest.
    """
    manifest_of(source)  # This call checks the bundle's files.
    with torch.random.fork_rng(devices=[]):
        encoder = Encoder.load(source, pooling=pooling)
    return use_fast_operations(encoder.to(devices.device)).requires_grad_(False)


def _frozen(
    encoder: Encoder | None, autocast: torch.dtype | None, keep: Path | None, name: str, counts: dict[str, int]
) -> FrozenEncoder | None:
    """Return the function that computes vectors of a frozen encoder in a step, or None if there is no encoder.

    The encoder's matrices are converted to the autocast dtype, because autocast would otherwise convert them in each
    step. If `keep` is given, the vectors are cached in this folder.
    """
    if encoder is None:
        return None
    if autocast is not None:
        for module in encoder.modules():
            if isinstance(module, nn.Linear):
                module.to(autocast)
    teacher = Teacher(encoder, autocast)
    return TeacherCache(teacher, keep, name, counts) if keep else teacher
