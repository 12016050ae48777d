"""One run of a study: training on a share of the corpus, with a teacher that runs can share, and evaluation.

The encoder is not exported.
"""

from __future__ import annotations

import hashlib
import heapq
import json
import time
from collections.abc import Sequence
from dataclasses import replace
from itertools import chain, islice
from pathlib import Path
from typing import Any, TextIO

from models.bundle.disk import write_whole
from models.encoder.encoder import Encoder
from training import run
from training.checkpoints import record
from training.checkpoints.publish import corpus_counts, publish
from training.config import ConfigError, RunConfig
from training.data.corpus import open_corpus
from training.evaluation import beir
from training.evaluation.labelled import TRANSFER_TASKS
from training.evaluation.pairs import STSB_DEV, sts_tasks
from training.evaluation.suite import EvaluationData
from training.machine.devices import Devices
from training.machine.hardware import environment
from training.machine.interrupt import locked
from training.objectives import OBJECTIVES
from training.run import is_published, open_run_corpus, teacher_config
from training.studies.results import GEOMETRY, RESULT, TRIAL, is_finished
from training.studies.schedule import locked_with_retry
from training.studies.scores import evaluate
from training.studies.trial import InputDigests, StudyError, Trial

RECORD, SHARES, TEACHERS = "record", "shares", "teachers"
"""Names of the subfolders for the record of a run, and for corpus shares and teachers that several runs use."""
READ_AT_ONCE = 4096


def run_trial(folder: Path, stream: TextIO) -> None:
    """Carry out the run that `folder/trial.json` describes, and write its result. An interrupted run is resumed.

    A finished run is not repeated.

    Raises:
        StudyError: `folder/trial.json` can't be read, or does not describe a run.
        LockError: another process works on this run.
        StudyError, CorpusError, DataError: see `load_data`. These errors are raised before training.
        ValueError, DivergedError, InterruptedRun: see `training.run.fit`.
        EvaluationError: see `training.studies.scores.evaluate`.
    """
    try:
        trial = Trial.from_json((folder / TRIAL).read_text(encoding="utf-8"))
    except OSError as error:
        raise StudyError(f"{folder / TRIAL}: {error.strerror}") from error
    with locked_with_retry(folder):
        if is_finished(folder):
            # Checkpoints remain if the process was killed between the last two steps.
            drop_checkpoints(folder / RECORD)
            return
        given = load_data(trial)
        if trial.untrained:
            trained: dict[str, Any] = {"best_step": 0, "corpus": None, "curve": []}
            encoder, steps = Encoder.load(trial.config.backbone, pooling=trial.config.pooling), 0.0
        else:
            config = _run_config(trial, folder, stream)
            outcome = run.fit(config, stream, resume=record.has_run(folder / RECORD))
            encoder, corpus = outcome.encoder, corpus_counts(outcome.census)
            curve = record.evaluations(folder / RECORD)
            trained = {"best_step": outcome.best.step, "corpus": corpus, "curve": curve}
            steps = _seconds_of_steps(folder / RECORD / record.METRICS, outcome.census.sentences, config.batch_size)
        began = time.perf_counter()
        judgement = evaluate(encoder.to(Devices(trial.config.device).device), given, stream)
        judgement.save(folder)
        result = {
            "untrained": trial.untrained,
            "fraction": trial.fraction,
            "scores": judgement.scores,
            **{name: judgement.geometry.get(name) for name in GEOMETRY},
            **({"nearest_cosines": judgement.nearest} if judgement.nearest else {}),
            **trained,
            "seconds": {"steps": steps, "judging": time.perf_counter() - began},
            "config": trial.config.as_dict(),
            "environment": environment(),
        }
        write_whole(folder / RESULT, json.dumps(result) + "\n")
        drop_checkpoints(folder / RECORD)


def _run_config(trial: Trial, folder: Path, stream: TextIO) -> RunConfig:
    """Return the run's complete configuration, with its folders, its share of the corpus and its teacher.

    The share is a file in the study's folder, and the teacher is a bundle there. This function makes each of the two if
    it is missing. Runs with the same share or teacher use the same files.
    """
    study, config = folder.parent.parent, trial.config
    if not trial.sts:
        config = config.override({"eval_data": None})
    if trial.fraction < 1:
        part = corpus_share(config.corpus, trial.fraction, study / SHARES, column=config.text_column)
        config = config.override({"corpus": (part,), "text_column": None})
    config = with_teacher(config, study / TEACHERS, stream)
    return config.override({"out": str(folder / "bundle"), "run": str(folder / RECORD)})


def _seconds_of_steps(metrics: Path, sentences: int, batch_size: int) -> float:
    """Compute the duration of all training steps, in seconds, from the speeds recorded in the file `metrics`.

    Steps from before a resumption count, too. `sentences` is the number of sentences in the corpus.
    """
    whole, rest = divmod(sentences, batch_size)
    epoch = [batch_size] * whole + [rest] * bool(rest)
    lines = map(json.loads, metrics.read_text(encoding="utf-8").splitlines())
    steps = (line for line in lines if line["kind"] == "train")
    return float(sum(epoch[(line["step"] - 1) % len(epoch)] / line["sentences_per_s"] for line in steps))


# Subsets of a corpus, as in figure 5 of DCLR: the first sentences of a fixed shuffle.

SHUFFLE = b"isosphere-share-0"
"""Key of the hash that determines the order of sentences."""


def corpus_share(files: Sequence[str], fraction: float, folder: Path, *, column: str | None = None) -> str:
    """Return the path of a file in `folder` with a share `fraction` of the corpus's distinct sentences.

    The file is written if it does not exist. The sentences are sorted by a keyed hash of their text, and the share is
    the first part of them. So a smaller share is a subset of a larger one, and the result does not depend on the order
    of the corpus or on repeated sentences. The share has at least one sentence.

    Raises:
        CorpusError: the corpus can't be read.
    """
    with locked(folder, wait=True):
        corpus = open_corpus(files, column=column, held_out=0)
        written = folder / f"{fraction!r}-{corpus.census.digest[:12]}.txt"
        if not written.exists():
            batches = islice(corpus.batches(READ_AT_ONCE, seed=0), corpus.batches_per_epoch(READ_AT_ONCE))
            count = max(1, round(fraction * corpus.census.sentences))
            first = heapq.nsmallest(count, chain.from_iterable(batches), key=_place)
            write_whole(written, "".join(f"{sentence}\n" for sentence in first))
    return str(written)


def _place(sentence: str) -> bytes:
    return hashlib.blake2b(sentence.encode("utf-8"), digest_size=16, key=SHUFFLE).digest()


# The evaluation data of a study's runs.


def load_data(trial: Trial) -> EvaluationData:
    """Load a run's evaluation data.

    With `trial.sts`, the data include the available STS tasks, and STS-B dev for geometry. They also include the
    transfer tasks, collections and corpus sentences that the run requests.

    Raises:
        StudyError: the run names no evaluation data, or the corpus has fewer sentences than the run requests.
        CorpusError: the run requests sentences, and the corpus can't be read.
        DataError: a requested transfer task or collection is missing or broken. With `trial.sts`, also if STS-B dev is
            missing, or if any STS task in the data folder is broken or incomplete.
    """
    if trial.config.eval_data is None:
        raise StudyError("eval_data: a study needs evaluation data: name their folder with --data or in [base]")
    data = Path(trial.config.eval_data)
    return EvaluationData(
        sts=sts_tasks(data) if trial.sts else {},
        transfer={name: files.load(data) for name, files in TRANSFER_TASKS.items()} if trial.transfer else {},
        retrieval={name: beir.find(data, name) for name in trial.retrieval},
        geometry=STSB_DEV.load(data) if trial.sts else {},
        sentences=_first(trial) if trial.neighbours else (),
    )


def _first(trial: Trial) -> list[str]:
    """Return the first `trial.neighbours` sentences of the corpus, in the order in which a run with seed 0 reads them.

    Raises:
        StudyError: the corpus has fewer sentences.
        CorpusError: the corpus can't be read.
    """
    config = trial.config
    corpus = open_run_corpus(config, 0)
    if corpus.census.sentences < trial.neighbours:
        sentences = corpus.census.sentences
        raise StudyError(f"neighbours: {trial.neighbours} sentences needed, but the corpus has only {sentences}")
    batches = corpus.batches(READ_AT_ONCE, seed=0)
    return list(islice(chain.from_iterable(batches), trial.neighbours))


# Teachers of a study. A teacher is trained once and shared by all runs that need the same one.


def with_teacher(config: RunConfig, folder: Path, stream: TextIO) -> RunConfig:
    """Return the configuration with a teacher, or without one if the objective needs none.

    If the objective needs a teacher and `config` names none, a teacher in `folder` is used. The teacher is trained
    first if `folder` does not contain it.

    Raises:
        ConfigError: the encoder is too narrow for the objective.
        ValueError, DivergedError, InterruptedRun: see `training.run.fit`.
    """
    if not _needs_teacher(config):
        return replace(config, teacher=None)
    if config.teacher is not None:
        return config
    planned = teacher_config(config).override({"out": "", "run": ""})
    # The key covers paths, which the teacher's bundle records, and the contents of the files.
    known = f"{planned.to_json()}{InputDigests().of(planned)}"
    place = folder.resolve() / hashlib.blake2b(known.encode("utf-8"), digest_size=6).hexdigest()
    planned = planned.override({"out": str(place / "bundle"), "run": str(place / "record")})
    with locked(place, wait=True):
        corpus = run.open_run_corpus(planned, 0)
        if not is_published(planned, corpus.census.digest):
            print(f"teacher: SimCSE trains one first, for all runs that share it, in {place}", file=stream)
            train_bundle(planned, stream)
            drop_checkpoints(Path(planned.run))
    return replace(config, teacher=planned.out)


def train_bundle(config: RunConfig, stream: TextIO) -> None:
    """Train an encoder, or continue an interrupted training, and publish the encoder without an evaluation."""
    publish(config, run.fit(config, stream, resume=record.has_run(Path(config.run))), {})


def drop_checkpoints(folder: Path) -> None:
    """Delete a finished run's checkpoints, because they are several times as large as the encoder."""
    for file in folder.glob("*.safetensors"):
        file.unlink()


def _needs_teacher(config: RunConfig) -> bool:
    width = Encoder.load(config.backbone, pooling=config.pooling).dim
    try:
        return OBJECTIVES[config.objective].build(config.params, width).needs.teacher
    except ValueError as error:
        raise ConfigError(str(error)) from error
