"""What a study keeps of an encoder: its scores, every cosine and prediction, alignment and uniformity."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TextIO

import numpy as np
from numpy.typing import NDArray

from models.encoder import Encoder
from training.evaluation import geometry, sts
from training.evaluation.labelled import TRANSFER_TASKS
from training.evaluation.pairs import STS_TASKS, STSB_DEV, Subsets
from training.evaluation.transfer import classify
from training.evaluation.vectors import remembered
from training.progress import encode_visibly
from training.study.arrays import Arrays, keep

DEV = "STSB-dev"

COSINES, GOLDS = "cosines", "golds"
PREDICTED, LABELS = "predicted", "labels"
"""Kinds of arrays that are kept: the former of the STS tasks' pairs, the latter of the transfer tasks' examples."""

COSINES_FILE, TRANSFER_FILE = "cosines.npz", "transfer.npz"


@dataclass(frozen=True)
class Judgement:
    """Of one encoder."""

    scores: Mapping[str, float]
    """Spearman x 100, "all", of each STS task that the data have; STS-B's dev part under `DEV`; accuracy x 100 of each
    transfer task, where they are asked for."""
    alignment: float
    uniformity: float
    """Both of STS-B's dev part, as `training.evaluation.geometry` defines them."""
    cosines: Mapping[str, NDArray[np.float32]]
    """(n,) of each STS task, its subsets one after the other."""
    golds: Mapping[str, NDArray[np.float32]]
    predicted: Arrays = field(default_factory=dict)
    """(n,) of each transfer task, as `training.evaluation.transfer.Classified` has them."""
    labels: Arrays = field(default_factory=dict)

    def keep(self, folder: Path) -> None:
        """Writes cosines and golds, predictions and labels."""
        keep(folder / COSINES_FILE, {COSINES: self.cosines, GOLDS: self.golds})
        if self.predicted:
            keep(folder / TRANSFER_FILE, {PREDICTED: self.predicted, LABELS: self.labels})


def judge(encoder: Encoder, data: Path, stream: TextIO, *, transfer: bool = False) -> Judgement:
    """The encoder on the STS tasks that `data` has, and on STS-B's dev part, which it must have.

    With `transfer` on the seven transfer tasks, too.

    Raises:
        DataError: a task is broken, or the dev part or a transfer task missing.
        EvaluationError: a vector is not finite, all cosines of a subset are equal, or no pair of dev is alike.
    """
    tasks: dict[str, Subsets] = {name: files.load(data) for name, files in STS_TASKS.items() if files.present(data)}
    tasks[DEV] = STSB_DEV.load(data)
    labelled = {name: files.load(data) for name, files in TRANSFER_TASKS.items()} if transfer else {}
    encode = remembered(encode_visibly(encoder.encode, stream))
    cosines = sts.cosines(encode, tasks)
    scores = sts.score(cosines, tasks)
    shape = geometry.of_pairs(encode, [pair for pairs in tasks[DEV].values() for pair in pairs])
    classified = classify(encode, labelled)
    return Judgement(
        scores={task: score.spearman.all for task, score in scores.items()}
        | {task: found.score.accuracy for task, found in classified.items()},
        alignment=shape["alignment"],
        uniformity=shape["uniformity"],
        cosines={task: np.concatenate(list(of.values())).astype(np.float32) for task, of in cosines.items()},
        golds={
            task: np.array([pair.gold for pairs in of.values() for pair in pairs], dtype=np.float32)
            for task, of in tasks.items()
        },
        predicted={task: _class(found.predicted) for task, found in classified.items()},
        labels={task: _class(found.labels) for task, found in classified.items()},
    )


def _class(values: NDArray[Any]) -> NDArray[np.int8]:
    """Of six at most."""
    return values.astype(np.int8)
