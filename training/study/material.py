"""The evaluation data of a study's runs."""

from __future__ import annotations

from itertools import chain, islice
from pathlib import Path

from training.evaluation import beir
from training.evaluation.labelled import TRANSFER_TASKS
from training.evaluation.pairs import STSB_DEV, sts_tasks
from training.evaluation.suite import Material
from training.run import corpus_of
from training.study.shares import READ_AT_ONCE
from training.study.trial import StudyError, Trial


def material(trial: Trial) -> Material:
    """Load the available STS tasks, STS-B dev for geometry, and the requested transfer and retrieval data.

    Raises:
        StudyError: the run names no evaluation data, or the corpus has fewer sentences than requested.
        CorpusError: sentences are requested and the corpus can't be read.
        DataError: STS-B dev, a transfer task or a collection is missing or broken.
    """
    if trial.config.eval_data is None:
        raise StudyError("eval_data: a study judges by evaluation data: name their folder by --data or in [base]")
    data = Path(trial.config.eval_data)
    return Material(
        sts=sts_tasks(data) if trial.sts else {},
        transfer={name: files.load(data) for name, files in TRANSFER_TASKS.items()} if trial.transfer else {},
        retrieval={name: beir.find(data, name) for name in trial.retrieval},
        geometry=STSB_DEV.load(data) if trial.sts else {},
        sentences=_first(trial) if trial.neighbours else (),
    )


def _first(trial: Trial) -> list[str]:
    """Return the first sentences of the corpus, in the order of a run with seed 0."""
    config = trial.config
    corpus = corpus_of(config, 0)
    if corpus.census.sentences < trial.neighbours:
        raise StudyError(f"neighbours: {trial.neighbours} of a corpus of {corpus.census.sentences} sentences")
    batches = corpus.batches(READ_AT_ONCE, seed=0)
    return list(islice(chain.from_iterable(batches), trial.neighbours))
