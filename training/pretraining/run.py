"""A whole pre-training run, from a configuration to a folder that `train --backbone` takes."""

from __future__ import annotations

import io
from contextlib import nullcontext
from pathlib import Path
from typing import TextIO

import torch

from training import record
from training.config import ConfigError
from training.corpus.corpus import Corpus, open_corpus
from training.interrupt import interruptible
from training.lock import locked
from training.machine.devices import Devices
from training.machine.hardware import autocast_dtype, named
from training.pretraining import checkpoint, folder
from training.pretraining.batches import Batches
from training.pretraining.checkpoint import State
from training.pretraining.config import PretrainConfig
from training.pretraining.loop import Setting, pretrain
from training.pretraining.model import MaskedLM
from training.pretraining.start import initial
from training.pretraining.step import Step
from training.progress import Progress
from training.record import Record
from training.run import left_to_the_first, surroundings
from training.speed import matmul_peak
from training.step import adamw


def fit(config: PretrainConfig, stream: TextIO, *, resume: bool = False) -> State:
    """Train as `config` says, with the record in `config.run`, the model in `config.out` and progress to `stream`.

    Of several processes the first reports and writes.

    Raises:
        RunError: the run's folder already has a run and `resume` is false; or the model can't be written.
        ValueError: a subclass of this package that names the file or option: tokenizer or corpus are not
            usable.
        LockError: another process trains it.
        DivergedError, InterruptedRun: see `training.pretraining.loop.pretrain`.
    """
    devices = Devices(config.device)
    if config.batch_size % devices.count:
        raise ConfigError(
            f"batch_size: {config.batch_size} sequences are not to be shared by {devices.count} processes"
        )
    if devices.first:
        folder.check(Path(config.out))
        if not resume:
            record.refuse_second(Path(config.run))
    corpus = open_corpus(config.corpus, column=config.text_column)
    torch.manual_seed(config.seed)
    model = initial(config, devices.device)
    optimiser = adamw(model.parameters(), learning_rate=config.learning_rate, weight_decay=config.weight_decay)
    state = State(model, optimiser)
    setting = _setting(config, model, corpus, devices)
    if devices.first and not resume:
        record.start(config, surroundings(corpus, devices, setting.precision))
    with locked(setting.folder) if devices.first else nullcontext():
        devices.wait()
        torch.manual_seed(devices.own_seed(config.seed))  # The seed fixes dropout.
        checkpoint.load(state, setting.folder, devices, corpus=setting.digest)

        _loop(state, setting, _headline(state, setting, corpus), stream if devices.first else io.StringIO())
        if devices.first:
            folder.publish(config, model, corpus.census)
        devices.wait()
    return state


def _setting(config: PretrainConfig, model: MaskedLM, corpus: Corpus, devices: Devices) -> Setting:
    precision = autocast_dtype(config.precision, devices.device)
    return Setting(
        config=config,
        devices=devices,
        batches=Batches(config, model, corpus, devices),
        digest=corpus.census.digest,
        precision=precision,
        work=model.work(config.share),
        peak=matmul_peak(devices.device, precision or torch.float32) * devices.count,
        folder=Path(config.run),
    )


def _headline(state: State, setting: Setting, corpus: Corpus) -> str:
    config = setting.config
    millions = sum(weight.numel() for weight in state.model.parameters()) / 1e6
    begin = f", from step {state.step}" if state.step else ""
    return (
        f"a BERT of {config.layers} layers, {config.width} wide, {millions:.1f} million weights"
        f"{f' of {config.backbone}' if config.backbone else ''}: "
        f"{corpus.census.sentences} sentences of {corpus.name}, {config.steps} steps of {config.batch_size} sequences "
        f"of {config.max_length} tokens{begin}, {named(setting.precision)} on {setting.devices.device}"
    )


def _loop(state: State, setting: Setting, headline: str, stream: TextIO) -> None:
    config = setting.config
    lines = Record(setting.folder, step=state.step or -1) if setting.devices.first else None
    progress = Progress(stream, total=config.steps, done=state.step)
    progress.say(headline)
    step = Step(
        state,
        setting.devices,
        clip_norm=config.clip_norm,
        precision=setting.precision,
        record=setting.devices.alone_on_cuda
        and config.chunk_size is None,  # Chunks have varying numbers of questions, so they are not recorded.
    )
    try:
        with interruptible() as stop:
            pretrain(state, step, setting, lines.write if lines else left_to_the_first, progress, stop=stop)
    finally:
        progress.close()
        if lines:
            lines.close()
