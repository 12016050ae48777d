"""What a run is put together from."""

from __future__ import annotations

import math
from pathlib import Path

import torch
from torch import nn

from models.encoder import Encoder
from models.sources import manifest_of
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
"""The model types whose steps have been recorded on a GPU: what another asks of the host, nobody has looked."""


def initial(config: RunConfig, devices: Devices, autocast: torch.dtype | None) -> State:
    """Step 0: every weight that is new drawn from the seed, on every process alike.

    Raises:
        ConfigError: the encoder is too narrow for the objective or the adapter, has no dropout, or the batch is less
            than the devices.
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
    optimiser = adamw(  # a frozen weight gets no gradient, and so has no moments
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
    """Make the function that turns the run's sentences or passages into batches."""
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
    """What takes the steps of the run; the teacher's matrices are from then on in the type they are multiplied in.

    In the folder `keep` it keeps what frozen encoders say, for later epochs.

    Raises:
        SourceError, BundleError: the backbone, which the objective needs as it was, is not there any more.
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
    """Whether a step can be launched as one: on CUDA, where all between batch and update is the device's alone.

    Not where other processes, a scaler, an augmentation or the objective's own host have a part in it, where the number
    of parts depends on the lengths, or where torch compiles.
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
    """What measures its speed; see `Meter`."""
    return Meter(
        needs=state.objective.needs,
        work=Work.of(state.encoder),
        teacher=Work.of(teacher) if teacher else None,
        peak=matmul_peak(devices.device, autocast or torch.float32) * devices.count,
        processes=devices.count,
        recalled_after=recalled_after,
    )


def loaded(source: str, devices: Devices, *, pooling: str | None = None) -> Encoder:
    """A frozen encoder, on the device of this process; the files of a bundle are those of its manifest.

    The random state stays as it is, though a head that the files lack is drawn: a run that is taken up loads it again.
    """
    manifest_of(source)  # which checks its files
    with torch.random.fork_rng(devices=[]):
        encoder = Encoder.load(source, pooling=pooling)
    return swift(encoder.to(devices.device)).requires_grad_(False)


def _frozen(
    encoder: Encoder | None, autocast: torch.dtype | None, keep: Path | None, name: str, recalled: dict[str, int]
) -> Frozen | None:
    """With its matrices in the type in which they are multiplied: autocast would convert them at every step."""
    if encoder is None:
        return None
    if autocast is not None:
        for module in encoder.modules():
            if isinstance(module, nn.Linear):
                module.to(autocast)
    teacher = Teacher(encoder, autocast)
    return Recall(teacher, keep, name, recalled) if keep else teacher
