"""The data that a run of a study is judged by."""

from __future__ import annotations

from pathlib import Path

from training.evaluation import beir
from training.evaluation.labelled import TRANSFER_TASKS
from training.evaluation.pairs import STSB_DEV, sts_tasks
from training.evaluation.suite import Material
from training.study.trial import StudyError, Trial


def material(trial: Trial) -> Material:
    """The STS tasks that there are, with STS-B's dev part for the geometry; transfer and retrieval where asked for.

    Raises:
        StudyError: the run names no evaluation data.
        DataError: STS-B's dev part, a transfer task or a collection is missing, or anything of them is broken.
    """
    if trial.config.eval_data is None:
        raise StudyError("eval_data: a study judges by evaluation data: name their folder by --data or in [base]")
    data = Path(trial.config.eval_data)
    return Material(
        sts=sts_tasks(data) if trial.sts else {},
        transfer={name: files.load(data) for name, files in TRANSFER_TASKS.items()} if trial.transfer else {},
        retrieval={name: beir.find(data, name) for name in trial.retrieval},
        geometry=STSB_DEV.load(data) if trial.sts else {},
    )
