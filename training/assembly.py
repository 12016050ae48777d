"""Construction of the parts of a run: state, tokeniser, step and speed meter."""

from __future__ import annotations

import math
from pathlib import Path

import torch
from torch import nn

from models.bundle.sources import manifest_of
from models.encoder.encoder import Encoder
from training.checkpoint import State
from training.config import ConfigError, RunConfig
from training.corpus.batches import Tokenise, tokeniser
from training.machine.devices import Devices
from training.objectives import OBJECTIVES
from training.passes.acceleration import swift
from training.prepare import check_augmentation, check_views_differ, prepared
from training.recall import Recall
from training.speed import Meter, Work, matmul_peak
from training.step import Step, adamw
from training.views import Frozen, Teacher

RECORDED = frozenset(("bert",))
"""Model types whose steps are known to be recordable on a GPU. Other types are untested."""


def initial(config: RunConfig, devices: Devices, autocast: torch.dtype | None) -> State:
    """Build the state of step 0.

    New weights are drawn from the seed, so they are the same on every process.

    Raises:
        ConfigError: the encoder is too narrow for the objective or the adapter, the encoder has no dropout, or the
            batch is smaller than the number of devices.
    """
    if config.batch_size < devices.count:
        raise ConfigError(
            f"batch_size: {config.batch_size} leaves some of {devices.count} processes without a sentence"
        )
    torch.manual_seed(config.seed)
    encoder = prepared(config, devices.device)
    try:
        objective = OBJECTIVES[config.objective].build(config.params, encoder.dim)
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


def tokeniser_of(config: RunConfig, encoder: Encoder, teacher: Encoder | None, devices: Devices) -> Tokenise:
    """Make the function that tokenises the run's sentences or passages into batches."""
    return tokeniser(
        encoder,
        teacher,
        max_length=config.max_length,
        own=devices.rows,
        positives=config.positives,
        seed=config.seed,
    )


def step_of(
    config: RunConfig,
    state: State,
    devices: Devices,
    teacher: Encoder | None,
    autocast: torch.dtype | None,
    *,
    keep: Path | None = None,
) -> Step:
    """Make the run's training step.

    The teacher's matrices are converted to their autocast type.

    Vectors of frozen encoders are cached in the folder `keep` for later epochs.

    Raises:
        SourceError, BundleError: the objective needs the starting backbone, which no longer exists.
    """
    start = loaded(config.backbone, devices, pooling=config.pooling) if state.objective.needs.start else None
    return Step(
        state,
        devices,
        clip_norm=config.clip_norm,
        teacher=_frozen(teacher, autocast, keep, "teacher", state.recalled),
        start=_frozen(start, autocast, keep, "start", state.recalled),
        autocast=autocast,
        augmentation=config.augmented,
        chunk_size=config.chunk_size,
        record=recordable(config, state, devices),
    )


def recordable(config: RunConfig, state: State, devices: Devices) -> bool:
    """Return whether a step can be recorded as a CUDA graph, because all its work runs on the device.

    Each of these prevents recording: several processes, a gradient scaler, an augmentation, an objective that computes
    on the host, torch.compile, and gradient caching, whose number of parts depends on lengths.
    """
    whole = config.chunk_size is None and config.augmentation == "none" and not config.compile
    asks_nobody = not state.scaler.is_enabled() and not state.objective.needs.host
    return devices.alone_on_cuda and whole and asks_nobody and state.encoder.backbone.config.model_type in RECORDED


def meter_of(
    state: State,
    teacher: Encoder | None,
    devices: Devices,
    autocast: torch.dtype | None,
    *,
    recalled_after: float = math.inf,
) -> Meter:
    """Make the meter of the run's speed; see `Meter`."""
    return Meter(
        needs=state.objective.needs,
        work=Work.of(state.encoder),
        teacher=Work.of(teacher) if teacher else None,
        peak=matmul_peak(devices.device, autocast or torch.float32) * devices.count,
        processes=devices.count,
        recalled_after=recalled_after,
    )


def loaded(source: str, devices: Devices, *, pooling: str | None = None) -> Encoder:
    """Load a frozen encoder on the device of this process. If it is a bundle, check its files.

    If the files lack a head, its weights are drawn at random. The random state is restored afterwards, because a
    resumed run loads the encoder once more.
    """
    manifest_of(source)  # This call checks the bundle's files.
    with torch.random.fork_rng(devices=[]):
        encoder = Encoder.load(source, pooling=pooling)
    return swift(encoder.to(devices.device)).requires_grad_(False)


def _frozen(
    encoder: Encoder | None, autocast: torch.dtype | None, keep: Path | None, name: str, recalled: dict[str, int]
) -> Frozen | None:
    """Convert the encoder's matrices to their autocast type. Otherwise autocast would convert them in each step."""
    if encoder is None:
        return None
    if autocast is not None:
        for module in encoder.modules():
            if isinstance(module, nn.Linear):
                module.to(autocast)
    teacher = Teacher(encoder, autocast)
    return Recall(teacher, keep, name, recalled) if keep else teacher
