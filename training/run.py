"""A whole run, from a configuration to its outcome, including the training of a teacher if the objective needs one."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator, Mapping
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TextIO

import torch
from torch import Tensor

from models.bundle import bundle
from models.bundle.bundle import BundleError
from models.bundle.sources import SourceError, resolve
from models.encoder.config import read_config
from models.encoder.encoder import Encoder
from models.export import destination
from training.checkpoints import checkpoint, record
from training.checkpoints.checkpoint import Best, State
from training.checkpoints.publish import Outcome, corpus_counts, publish
from training.checkpoints.record import RunError
from training.config import ConfigError, RunConfig, from_preset
from training.data.corpus import HELD_OUT, Corpus, open_corpus
from training.encoding import static
from training.encoding.lora import load_for_training, merge_adapter
from training.encoding.views import remove_caches
from training.evaluation.pairs import STS_TASKS, Subsets, sts_tasks
from training.evaluation.selection import (
    Selection,
    by_known_items,
    by_own_pairs,
    by_self_retrieval,
    by_sts_dev,
    by_stsb_dev,
)
from training.loop import Training, run_to_end
from training.machine.devices import Devices
from training.machine.hardware import autocast_dtype, environment, precision_name
from training.machine.interrupt import locked
from training.machine.state_file import digest
from training.objectives import OBJECTIVES
from training.step import Step, check_length, initial_state, load_frozen, load_start, make_tokeniser

REPLACE = "replace it by --force"


def fit(
    config: RunConfig, stream: TextIO, *, resume: bool = False, force: bool = False, advice: bool = True
) -> Outcome:
    """Train according to `config`, and return the outcome.

    The run's record is written to the folder `config.run`, and progress to `stream`. All inputs are checked before the
    run's folder is created. With several processes, only the first one reports and writes, but all return the outcome.

    After the checks, `force` removes an existing run in `config.run`. A run that trains its own teacher also uses a
    folder for the teacher's run. If this folder has a run with another configuration or another corpus, `force` removes
    that run, too.

    If no step was better than the initial weights, `advice` names options of `train` that can help.

    Raises:
        RunError: `config.run` has a run, and neither `resume` nor `force` is set; or `resume` is set, and there is no
            run; or the bundle can't be written.
        ValueError: backbone, corpus or data are not usable. The error is of a subclass that this package defines, and
            its message names the file or option.
        LockError: another process works on the run.
        HardwareError: the run has several processes, and their machines do not share the run's folder.
        DivergedError, InterruptedRun: see `training.loop.run_to_end`.
    """
    devices = Devices(config.device)
    if not devices.first:
        stream = io.StringIO()
    autocast = autocast_dtype(config.precision, devices.device)
    if devices.first:
        _check_folders(config, resume=resume, force=force)
    corpus = _corpus(config)
    state = initial_state(config, devices, autocast)
    if not resume:  # Runs of earlier versions can still be resumed.
        check_length(config, state.encoder)
    selection, tasks = _selection_and_tasks(config, corpus, state.encoder.prompts, stream)
    teacher = _load_named_teacher(config, state, corpus, devices, force=force)
    folder = Path(config.run)
    if devices.first and force:
        record.remove_run(folder)
    with locked(folder) if devices.first else nullcontext():
        if devices.first and not resume:
            record.create_run(config, run_environment(corpus, devices, autocast))
        devices.wait_for(folder / record.CONFIG)
        if state.objective.needs.teacher and teacher is None:
            teacher = _trained_teacher(teacher_config(config), corpus, devices, stream)
        state.inputs = _inputs(config, state, selection, teacher, devices)
        torch.manual_seed(devices.own_seed(config.seed))  # The seed fixes dropout, independently of earlier draws.
        taken_up = checkpoint.load(state, folder, devices, corpus=corpus.census.digest)
        if config.layers == () and not taken_up:
            sentences = next(corpus.batches(static.SENTENCES, seed=config.seed))
            static.start(state.encoder, load_start(config, devices), sentences, autocast)

        training = Training(
            config, state, corpus=corpus, devices=devices, teacher=teacher, autocast=autocast, selection=selection
        )
        run_to_end(training, _headline(training, autocast, state.step if taken_up else None), stream)
        assert state.best is not None, "the loop evaluates before its first step"
        if devices.first:
            for line in _result_lines(config, selection, state.best, state.step, corpus, advice=advice):
                print(line, file=stream)
        devices.wait()
        if devices.first:
            remove_caches(folder)
        checkpoint.load_best(state.encoder, state.best, folder)
        encoder = state.encoder.eval().cpu()
        adapter = merge_adapter(encoder)
        return Outcome(encoder, state.best, state.step, selection.metric, corpus.census, tasks, devices.first, adapter)


def finish(config: RunConfig, stream: TextIO) -> Outcome:
    """Return the outcome of an unfinished run: the best weights up to the last checkpoint in `config.run`.

    The files of the run are not changed, so `fit` can still resume the run.

    Raises:
        RunError: the run does not exist, or the bundle can't be written.
        ConfigError, CorpusError, DataError: backbone, corpus or data are not usable. The message names the file or
            option.
        CheckpointError: the run has no checkpoint yet, a file is damaged, or the corpus has changed.
        LockError: another process works on the run.
    """
    _check_folders(config, resume=True)
    folder = Path(config.run)
    with locked(folder):
        step, best, begun = checkpoint.stored_progress(folder)
        corpus = _corpus(config)
        checkpoint.check_corpus(folder / checkpoint.CHECKPOINT, begun, corpus.census.digest)
        encoder = load_for_training(replace(config, compile=False), torch.device("cpu"))
        selection, tasks = _selection_and_tasks(config, corpus, encoder.prompts, stream)
        checkpoint.load_best(encoder, best, folder)
    for line in (f"ended after step {step}", *_result_lines(config, selection, best, step, corpus)):
        print(line, file=stream)
    adapter = merge_adapter(encoder)
    return Outcome(encoder.eval(), best, step, selection.metric, corpus.census, tasks, adapter=adapter)


def open_run_corpus(config: RunConfig, held_out: int = HELD_OUT) -> Corpus:
    """Open the run's corpus: passages if the run draws positive pairs from passages, or else sentences.

    Raises:
        CorpusError: see `open_corpus`.
    """
    passages = config.positives is not None
    return open_corpus(config.corpus, column=config.text_column, held_out=held_out, passages=passages)


def _corpus(config: RunConfig) -> Corpus:
    """Open the run's corpus. If `dev_data` and `eval_data` are None, hold out texts to select the best weights."""
    return open_run_corpus(config, 0 if config.dev_data or config.eval_data else HELD_OUT)


def _selection_and_tasks(
    config: RunConfig, corpus: Corpus, prompts: Mapping[str, str], stream: TextIO
) -> tuple[Selection, dict[str, Subsets]]:
    """Return the criterion that selects the best weights, and the STS tasks of the final evaluation by name.

    `prompts` are the encoder's prompts, which only retrieval uses. Print a line if STS tasks are missing in the
    evaluation data.
    """
    selection = by_own_pairs(config.dev_data) if config.dev_data else None
    if config.eval_data is None:
        if selection is None:
            selection = by_known_items(corpus, prompts) if config.positives else by_self_retrieval(corpus)
        return selection, {}
    data = Path(config.eval_data)
    selection = selection or (by_stsb_dev if config.dev_tasks == "stsb" else by_sts_dev)(data)
    tasks = sts_tasks(data)
    if absent := [name for name in STS_TASKS if name not in tasks]:
        print(f"{data} lacks {', '.join(absent)}, so the final scores do not include these tasks", file=stream)
    return selection, tasks


def _inputs(
    config: RunConfig, state: State, selection: Selection, teacher: Encoder | None, devices: Devices
) -> dict[str, str]:
    """Return digests of the inputs, other than the corpus, that a resumed run must find unchanged."""
    found = {}
    if selection.data:
        found[f"the data of {'--dev-data' if config.dev_data else '--eval-data'}"] = selection.data
    if teacher is not None:
        found["the teacher"] = digest(teacher.state_dict(), salt=teacher.pooling)
    if state.objective.needs.start:
        start = load_start(config, devices)
        found["the backbone"] = digest(start.state_dict(), salt=start.pooling)
    return found


def _result_lines(
    config: RunConfig, selection: Selection, best: Best, steps: int, corpus: Corpus, *, advice: bool = True
) -> Iterator[str]:
    yield f"best: {selection.metric} {best.score:.4f} at step {best.step}"
    if best.step > 0:
        return
    curve = record.evaluations(Path(config.run), until=steps)
    values = ", ".join(f"{each[selection.metric]:.4f} at step {each['step']}" for each in curve)
    yield (
        f"no step was better than the initial weights of {config.backbone}: "
        f"the result has these weights with {config.pooling} pooling"
    )
    yield f"the criterion was {selection.metric}, {selection.criterion}: {values}"
    if not advice:
        return
    yield (
        f"what can help: smaller steps (--set learning_rate={config.learning_rate / 3:.1g}; it was "
        f"{config.learning_rate:g}), an earlier evaluation (--set eval_every={max(1, config.eval_every // 5)}; it was "
        f"{config.eval_every}), more sentences (there were {corpus.census.sentences})"
        + ("" if config.dev_data or config.eval_data else ", or pairs with scores as the criterion (--dev-data FILE)")
    )


def _headline(training: Training, autocast: torch.dtype | None, resumed: int | None) -> str:
    config, census, devices = training.config, training.corpus.census, training.devices
    processes = f" x {devices.count}" if devices.count > 1 else ""
    begin = "" if resumed is None else f", from step {resumed}"
    adapter = f", an adapter of rank {config.adapter_rank}" if config.adapter_rank else ""
    short = f"{census.short} of a single sentence left out, " if census.short else ""
    texts = f"passages, a {config.augmentation} pair of each," if config.positives else "sentences"
    fewer = "" if config.batch_size <= census.sentences else f", of which there are {census.sentences}"
    return (
        f"{config.objective} on {config.backbone}, preset {config.preset}, {_pooling(config)}{adapter}: "
        f"{census.sentences} {texts} of {training.corpus.name} ({census.duplicates} duplicates and "
        f"{census.blank} blank lines dropped, {short}{len(census.held_out)} held out), "
        f"{training.total_steps} steps of {config.batch_size}{fewer}{begin}, "
        f"{precision_name(autocast)} on {devices.device}{processes}"
    )


def _pooling(config: RunConfig) -> str:
    """Describe the run's pooling. If the backbone's files declare another pooling, mention this pooling, too."""
    own = read_config(resolve(config.backbone)).get("pooling", config.pooling)
    return f"{config.pooling} pooling" + ("" if own == config.pooling else f" but its files declare {own}")


def run_environment(corpus: Corpus, devices: Devices, autocast: torch.dtype | None) -> dict[str, Any]:
    return {
        **environment(),
        "device": str(devices.device),
        "processes": devices.count,
        "precision": precision_name(autocast),
        "corpus": {"name": corpus.name, **corpus_counts(corpus.census)},
    }


def _check_folders(config: RunConfig, *, resume: bool, force: bool = False) -> None:
    """Check the output folders before the run.

    Without this check, an unusable folder would be noticed only at the end of the run.

    Raises:
        RunError: the bundle's folder can't be written, or has content other than a bundle; the run's folder is inside
            the bundle's folder; a run or a trained encoder already exists, and `resume` and `force` are false; `resume`
            is true, and there is no run; an existing run is to be resumed or replaced, and its configuration can't be
            read; or `force` is true, and the folder of an existing run has files that do not belong to the run.
    """
    out, folder = Path(config.out), Path(config.run)
    try:
        destination.refuse_foreign(out)
    except BundleError as error:
        raise RunError(f"--out {error}") from error
    if folder.resolve().is_relative_to(out.resolve()):
        raise RunError(
            f"run: {config.run} is inside the folder of the bundle, --out {out}, which must contain only the bundle"
        )
    if resume or (force and record.has_run(folder)):
        record.stored_config(folder, RunConfig)
        if force:
            record.check_files(folder)
    else:
        record.check_no_run(folder, replace=REPLACE)
        if not force:
            refuse_trained(out)
    check_writable(out)


def refuse_trained(out: Path, advice: str = f"{REPLACE}, or choose another --out") -> None:
    """Check that a folder has no trained weights, which would be lost if the folder were replaced.

    A bundle that was merged from an adapter is accepted, because it can be made again from the adapter.

    Raises:
        RunError: the folder contains a trained encoder; the message ends with `advice`.
    """
    if not (out / bundle.MANIFEST).exists():
        return
    manifest = bundle.read_manifest(out / bundle.MANIFEST)
    if manifest.run is not None and manifest.adapter is None:
        raise RunError(f"--out {out} contains the encoder of an earlier run: {advice}")


def check_writable(out: Path) -> None:
    """Check that a folder can be created beside `out`. Results are written to such a folder, which then replaces `out`.

    Raises:
        RunError: the parent of `out` is not writable.
    """
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        TemporaryDirectory(dir=out.parent).cleanup()
    except OSError as error:
        raise RunError(f"--out {out}: {error.strerror}") from error


# The default teacher of an objective that needs a frozen encoder. SimCSE trains this teacher, and its bundle is kept.

TEACHER_FIELDS = (
    *("adapter_rank", "pooling", "dropout", "corpus", "text_column", "eval_data", "dev_data", "dev_tasks"),
    *("seed", "max_steps", "max_length", "eval_every", "chunk_size", "precision", "compile", "device"),
)
"""Fields whose values are copied from a run to its teacher's run. Other fields come from SimCSE's preset."""


def teacher_config(config: RunConfig) -> RunConfig:
    """Return the configuration of the run that trains the teacher for `config`, with folders beside those of `config`.

    The preset of `config` can name the teacher's backbone. For example, DCLR's presets for large models name a base
    model of the same family. The teacher then has SimCSE's default preset for this backbone.

    If the preset of `config` names no backbone, the teacher has the backbone of `config`. If SimCSE has a preset with
    the same name, the teacher gets that preset. Otherwise, it gets SimCSE's default preset for the backbone.

    Raises:
        ConfigError: the objective has no default teacher, so the user must name one.
    """
    recipe, name = OBJECTIVES[config.objective], config.preset.partition("+")[0]
    if recipe.needs_named_teacher:
        raise ConfigError(f"teacher: {config.objective} needs a teacher: name one with --teacher")
    preset = recipe.presets.get(name)
    if preset is not None and preset.teacher_backbone is not None:
        simcse = from_preset("simcse", backbone=preset.teacher_backbone)
    else:
        known = name if name in OBJECTIVES["simcse"].presets else None
        simcse = from_preset("simcse", backbone=config.backbone, preset=known)
    shared = {name: getattr(config, name) for name in TEACHER_FIELDS}
    shared["augmentation"] = "none" if config.positives is None else config.augmentation
    return simcse.override({**shared, "out": f"{config.out}-teacher", "run": f"{config.run}-teacher"})


def is_published(planned: RunConfig, corpus: str) -> bool:
    """Return whether `planned.out` has a bundle that a run with the configuration `planned` produced.

    That run must also have used the corpus with the digest `corpus`.
    """
    folder = Path(planned.out)
    if not (folder / bundle.MANIFEST).exists():
        return False
    try:
        run = bundle.load(folder).manifest.run or {}
    except BundleError:
        return False
    same_run = run.get("config") == json.loads(planned.to_json())
    return bool(same_run and run["corpus"]["digest"] == corpus)


def _is_begun(planned: RunConfig, corpus: str) -> bool:
    """Return whether the run in `planned.run` has the configuration `planned` and the corpus with the digest `corpus`.

    If the run has no checkpoint yet, the corpus is not compared, because such a run can continue with any corpus.
    """
    folder = Path(planned.run)
    if record.stored_config(folder, RunConfig) != planned:
        return False
    return not (folder / checkpoint.CHECKPOINT).exists() or checkpoint.stored_progress(folder)[2] == corpus


def _load_named_teacher(
    config: RunConfig, state: State, corpus: Corpus, devices: Devices, *, force: bool
) -> Encoder | None:
    """Load the teacher that the run names. Return None if the objective needs no teacher, or the run names none.

    If a teacher is needed but not named, the caller trains it later by a SimCSE run, unless an earlier run has trained
    it. For that SimCSE run, this function already checks the backbone and the folders. With `force`, it also removes a
    run from these folders that has another configuration or corpus.

    Raises:
        ConfigError: the objective uses no teacher, but the run names one; the objective has no default teacher, and the
            run names none; the teacher's vectors have the wrong width; or the backbone of the SimCSE run does not
            exist.
        RunError: the folders of the SimCSE run can't be used.
    """
    if not state.objective.needs.teacher:
        if config.teacher is not None:
            raise ConfigError(
                f"teacher: {config.objective} with these settings uses no teacher: leave out {config.teacher}"
            )
        return None
    if config.teacher is not None:
        teacher = load_frozen(config.teacher, devices)
        widths = {state.encoder.dim, *(config.matryoshka or ())}
        if state.objective.needs.same_width and widths != {teacher.dim}:
            raise ConfigError(
                f"aligned: 0 needs vectors of the teacher's {teacher.dim} dimensions, but the student has vectors of "
                f"{', '.join(map(str, sorted(widths)))}: set aligned=6000"
            )
        return teacher
    planned = teacher_config(config)
    if devices.first and not is_published(planned, corpus.census.digest):
        _check_teacher_backbone(planned.backbone)
        begun = record.has_run(Path(planned.run))
        if begun and not _is_begun(planned, corpus.census.digest):
            if not force:
                advice = f"{REPLACE}, or name a bundle with --teacher"
                raise RunError(f"{planned.run} contains the teacher of another run or corpus: {advice}")
            record.remove_run(Path(planned.run))
            begun = False
        _check_folders(planned, resume=begun, force=force)
    return None


def _check_teacher_backbone(backbone: str) -> None:
    """Check that the backbone of the teacher's run exists.

    The teacher's run can have another backbone than the run that needs the teacher.

    Raises:
        ConfigError: the backbone does not exist.
    """
    try:
        resolve(backbone)
    except SourceError as error:
        reason = f"SimCSE can't train the teacher from {backbone}: {error}; name a teacher with --teacher"
        raise ConfigError(f"teacher: {reason}") from error


def _trained_teacher(planned: RunConfig, corpus: Corpus, devices: Devices, stream: TextIO) -> Encoder:
    """Return the teacher, an encoder that SimCSE trains. Train it first if its bundle does not exist."""
    if is_published(planned, corpus.census.digest):
        print(f"teacher: {planned.out}, from an earlier run", file=stream)
    else:
        print(f"no --teacher: SimCSE trains a teacher first, in {planned.out}", file=stream)
        # All processes must resume, or none. They exchange their answers, because the first process creates the run
        # immediately, and a slower process would already find it.
        begun = any(devices.from_all(record.has_run(Path(planned.run))))
        outcome = fit(planned, stream, resume=begun)
        if devices.first:
            publish(planned, outcome, {})
        devices.wait()
    return load_frozen(planned.out, devices)


# Replay of the step at which a run diverged.


def replay(config: RunConfig, file: Path) -> tuple[int, dict[str, float], list[str]]:
    """Repeat the diverged step that a run stored in `file`.

    Return the step's number, the loss and other values by name, and the sentences with a view (a vector in this step)
    that is not finite. If the loss is finite, also return the sentences with a view whose gradient is not finite.

    The replay uses one process. If the run used several processes, the replay has other dropout masks than the run. If
    the run used one process, the replay equals the step, except that a teacher's vectors may differ in the last digits.

    Raises:
        CheckpointError: `file` is missing, damaged or from another run, or the backbone has changed.
        SourceError: the teacher that the run trained no longer exists.
    """
    devices = Devices(config.device)
    autocast = autocast_dtype(config.precision, devices.device)
    state = initial_state(config, devices, autocast)
    teacher = (
        load_frozen(config.teacher or teacher_config(config).out, devices) if state.objective.needs.teacher else None
    )
    step = Step(config, state, devices, teacher, autocast)
    sentences = checkpoint.load_snapshot(state, file, devices)
    batch = make_tokeniser(config, state.encoder, teacher, devices)(sentences, state.step)
    state.encoder.train()
    views: list[Tensor] = []
    values = step.gradients(batch, on_views=views.append)
    values["gradient_norm"] = step.gradient_norm()
    return (
        state.step + 1,
        {name: value.item() for name, value in values.items()},
        [sentence for sentence, bad in zip(sentences, _not_finite(views[0], values["loss"]), strict=True) if bad],
    )


def _not_finite(views: Tensor, loss: Tensor) -> list[bool]:
    """Return for each sentence whether one of its views is not finite.

    If the loss is finite, the gradients of the views are tested too.
    """
    assert views.grad is not None
    looked_at = torch.stack([views.detach(), views.grad if torch.isfinite(loss) else views.detach()])
    odd: list[bool] = (~torch.isfinite(looked_at)).any(dim=-1).any(dim=0).any(dim=0).tolist()
    return odd
