"""What a study keeps of an encoder: its scores, the cosine of every pair, alignment and uniformity."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO
from zipfile import BadZipFile

import numpy as np
from numpy.typing import NDArray

from models.disk import replacing
from models.encoder import Encoder
from training.evaluation import geometry, sts
from training.evaluation.pairs import STS_TASKS, STSB_DEV, Subsets
from training.evaluation.vectors import remembered
from training.progress import encode_visibly
from training.study.trial import StudyError

DEV = "STSB-dev"
COSINES, GOLDS = "cosines", "golds"


@dataclass(frozen=True)
class Judgement:
    """Of one encoder."""

    scores: Mapping[str, float]
    """Spearman x 100, "all", of each task that the data have; STS-B's dev part under `DEV`."""
    alignment: float
    uniformity: float
    """Both of STS-B's dev part, as `training.evaluation.geometry` defines them."""
    cosines: Mapping[str, NDArray[np.float32]]
    """(n,) of each task, its subsets one after the other."""
    golds: Mapping[str, NDArray[np.float32]]

    def keep(self, file: Path) -> None:
        """Writes cosines and golds, compressed."""
        arrays = {f"{COSINES} {task}": values for task, values in self.cosines.items()}
        arrays |= {f"{GOLDS} {task}": values for task, values in self.golds.items()}
        with replacing(file) as beside, beside.open("wb") as written:
            np.savez_compressed(written, allow_pickle=False, **arrays)


def kept(file: Path) -> tuple[dict[str, NDArray[np.float32]], dict[str, NDArray[np.float32]]]:
    """The cosines and golds (n,) by task that `Judgement.keep` wrote.

    Raises:
        StudyError: the file is damaged.
    """
    try:
        with file.open("rb") as opened, np.load(opened) as arrays:
            found = {name: arrays[name] for name in arrays.files}
    except (OSError, ValueError, EOFError, BadZipFile) as error:
        raise StudyError(f"{file}: {error}") from error
    both: dict[str, dict[str, NDArray[np.float32]]] = {COSINES: {}, GOLDS: {}}
    for name, values in found.items():
        kind, _, task = name.partition(" ")
        if kind not in both:
            raise StudyError(f"{file}: {name}: unknown")
        both[kind][task] = values
    return both[COSINES], both[GOLDS]


def judge(encoder: Encoder, data: Path, stream: TextIO) -> Judgement:
    """The encoder on the STS tasks that `data` has, and on STS-B's dev part, which it must have.

    Raises:
        DataError: a task is broken, or the dev part missing.
        EvaluationError: a vector is not finite, all cosines of a subset are equal, or no pair of dev is alike.
    """
    tasks: dict[str, Subsets] = {name: files.load(data) for name, files in STS_TASKS.items() if files.present(data)}
    tasks[DEV] = STSB_DEV.load(data)
    encode = remembered(encode_visibly(encoder.encode, stream))
    cosines = sts.cosines(encode, tasks)
    scores = sts.score(cosines, tasks)
    shape = geometry.of_pairs(encode, [pair for pairs in tasks[DEV].values() for pair in pairs])
    return Judgement(
        scores={task: score.spearman.all for task, score in scores.items()},
        alignment=shape["alignment"],
        uniformity=shape["uniformity"],
        cosines={task: np.concatenate(list(of.values())).astype(np.float32) for task, of in cosines.items()},
        golds={
            task: np.array([pair.gold for pairs in of.values() for pair in pairs], dtype=np.float32)
            for task, of in tasks.items()
        },
    )
