"""Evaluation of an encoder in a study: scores, geometry, and values for each pair, example and query."""

from __future__ import annotations

import zlib
from collections.abc import Collection as Several
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from tokenize import TokenError
from typing import Any, TextIO
from zipfile import BadZipFile

import numpy as np
from numpy.typing import NDArray

from models.bundle.disk import replacing
from models.encoder.encoder import Encoder
from training.checkpoints.progress import with_progress
from training.evaluation import geometry, retrieval, sts
from training.evaluation.beir import Collection
from training.evaluation.labelled import TRANSFER_TASKS
from training.evaluation.pairs import STS_TASKS, Subsets
from training.evaluation.retrieval import MEASURES
from training.evaluation.suite import EvaluationData
from training.evaluation.transfer import classify
from training.evaluation.vectors import Encode, cached, unit_vectors
from training.studies.trial import StudyError

DEV = "STSB-dev"

COSINES, GOLDS = "cosines", "golds"
PREDICTED, LABELS = "predicted", "labels"
FOUND, RELEVANT = "answers", "judgements"
"""Kinds of stored arrays, two on each line. The first is from the encoder, and the second is from human judgements.

`COSINES` and `GOLDS` are for STS pairs, `PREDICTED` and `LABELS` for transfer examples, `FOUND` and `RELEVANT` for
queries.
"""

COSINES_FILE, TRANSFER_FILE, RETRIEVAL_FILE = "cosines.npz", "transfer.npz", "retrieval.npz"
KINDS = {COSINES_FILE: (COSINES, GOLDS), TRANSFER_FILE: (PREDICTED, LABELS), RETRIEVAL_FILE: (FOUND, RELEVANT)}
"""Kinds of arrays in each file of a run."""

Arrays = Mapping[str, NDArray[Any]]
"""Arrays (n,) by task, with one value per pair, example or query."""


@dataclass(frozen=True)
class TrialScores:
    """Evaluation of one encoder."""

    scores: Mapping[str, float]
    """Scores by task, x 100.

    STS tasks have "all" Spearman. STS-B dev is one of them, under the name `DEV`. Transfer tasks have accuracy.
    Collections have a score for each of the `MEASURES`, under names such as `scifact nDCG@10`.
    """
    geometry: Mapping[str, float]
    """Measures of `training.evaluation.geometry.of_pairs` on STS-B dev, or {} without STS-B dev."""
    arrays: Mapping[str, Arrays]
    """Arrays of each kind.

    * `COSINES`, `GOLDS`: float32, with a task's subsets concatenated.
    * `PREDICTED`, `LABELS`: classes in the order of `training.evaluation.transfer.Classified`.
    * `FOUND`, `RELEVANT`: for each collection and measure, the queries' scores from 0 to 1 and their numbers of judged
      relevant documents.
    """
    nearest: Mapping[int, Sequence[float]] = field(default_factory=dict)
    """Mean cosines of corpus sentences to their four nearest neighbours in a batch, nearest first.

    The keys are batch sizes. The mapping is empty if these cosines were not requested.
    """

    def save(self, folder: Path) -> None:
        """Write `arrays` to the folder, in the files that `KINDS` names.

        If no array belongs in a file, this file is not written.
        """
        for file, kinds in KINDS.items():
            stored = {kind: self.arrays.get(kind, {}) for kind in kinds}
            if any(stored.values()):
                save_arrays(folder / file, stored)


def check_saved(folder: Path, tasks: Several[str]) -> None:
    """Check that the files of arrays in a folder contain every task of `tasks`, the tasks with a score.

    `TrialScores.save` has written these files.

    Raises:
        StudyError: a file is missing or damaged, or lacks a task.
    """
    scored = {
        COSINES_FILE: {*STS_TASKS, DEV}.intersection(tasks),
        TRANSFER_FILE: TRANSFER_TASKS.keys() & tasks,
        RETRIEVAL_FILE: {task for task in tasks if task.endswith(_MEASURED)},
    }
    for name, kinds in KINDS.items():
        file = folder / name
        if not scored[name]:
            continue
        if not file.exists():
            raise StudyError(f"{file}: missing")
        for kind, arrays in zip(kinds, load_arrays(file, *kinds), strict=True):
            if lacking := sorted(scored[name] - arrays.keys()):
                raise StudyError(f"{file}: no {kind} of {lacking[0]}, which has a score")


def evaluate(encoder: Encoder, given: EvaluationData, stream: TextIO) -> TrialScores:
    """Evaluate the encoder on every task that has data.

    If the data include STS-B dev, it is scored like the test tasks. Its vectors also give the geometry: measures such
    as alignment and uniformity.

    Raises:
        EvaluationError: a vector is not finite, all cosines of a subset are equal, no pair of STS-B dev has a human
            score above 4, a class of a transfer task has fewer examples than there are folds, or the fit of a
            classifier does not converge.
    """
    tasks: dict[str, Subsets] = {**given.sts, **({DEV: given.geometry} if given.geometry else {})}
    encode = cached(with_progress(encoder.encode, stream))
    cosines = sts.cosines(encode, tasks)
    scores = sts.score(cosines, tasks)
    dev = [pair for pairs in given.geometry.values() for pair in pairs]
    classified = classify(encode, given.transfer)
    found, relevant = _searched(encode, encoder.prompts, given.retrieval)
    return TrialScores(
        scores={task: score.spearman.all for task, score in scores.items()}
        | {task: of.score.accuracy for task, of in classified.items()}
        | {task: 100 * float(of.mean()) for task, of in found.items()},
        geometry=geometry.of_pairs(encode, dev) if dev else {},
        arrays={
            COSINES: {task: np.concatenate(list(of.values())).astype(np.float32) for task, of in cosines.items()},
            GOLDS: {
                task: np.array([pair.gold for pairs in of.values() for pair in pairs], dtype=np.float32)
                for task, of in tasks.items()
            },
            # No task has more than six classes.
            PREDICTED: {task: of.predicted.astype(np.int8) for task, of in classified.items()},
            LABELS: {task: of.labels.astype(np.int8) for task, of in classified.items()},
            FOUND: found,
            RELEVANT: relevant,
        },
        nearest=_nearest(encode, given.sentences),
    )


def task_of(collection: str, measure: str) -> str:
    """Return the key of a retrieval measure on a collection in scores and arrays, such as `scifact nDCG@10`."""
    return f"{collection} {measure}"


_MEASURED = tuple(task_of("", measure) for measure in MEASURES)


def _nearest(encode: Encode, sentences: Sequence[str]) -> dict[int, Sequence[float]]:
    sizes = [size for size in geometry.TOP_BATCHES if size <= len(sentences)]
    unit = unit_vectors(encode, list(sentences)) if sizes else np.empty((0, 0))
    return {size: geometry.nearest_cosines(unit, size) for size in sizes}


def _searched(
    encode: Encode, prompts: Mapping[str, str], collections: Mapping[str, Collection]
) -> tuple[Arrays, Arrays]:
    """Search the collections. Return two dictionaries: the queries' scores, and their numbers of relevant documents.

    Both dictionaries have a key for each collection and measure, such as `scifact nDCG@10` (see `task_of`). The value
    is an array (Q,), with a number for each of the collection's Q queries.
    """
    found: dict[str, NDArray[np.float64]] = {}
    relevant: dict[str, NDArray[np.int64]] = {}
    for name, each in collections.items():
        by_query = retrieval.by_query(retrieval.rankings(encode, each, prompts=prompts), each)  # (Q, measures)
        counts = np.array([sum(grade > 0 for grade in each.judgements[query].values()) for query in each.queries])
        for measure, scores in zip(MEASURES, by_query.T, strict=True):
            found[task_of(name, measure)] = scores
            relevant[task_of(name, measure)] = counts
    return found, relevant


# Arrays by kind and task, in one compressed file for each kind of tasks.

DAMAGE = (OSError, ValueError, EOFError, BadZipFile, RuntimeError, zlib.error, SyntaxError, TokenError)
"""Errors that reading raises for a corrupt archive, compressed stream or array header."""


def save_arrays(file: Path, kinds: Mapping[str, Arrays]) -> None:
    """Write the arrays of all kinds to the same compressed file. The name of a kind must be a single word."""
    named = {f"{kind} {task}": values for kind, arrays in kinds.items() for task, values in arrays.items()}
    with replacing(file) as beside, beside.open("wb") as written:
        np.savez_compressed(written, allow_pickle=False, **named)


def load_arrays(file: Path, *kinds: str) -> tuple[dict[str, NDArray[Any]], ...]:
    """Read a file that `save_arrays` wrote. Return, for each of `kinds`, a dictionary of its arrays by task.

    Raises:
        StudyError: the file can't be read, is damaged, or has arrays of another kind.
    """
    try:
        with file.open("rb") as opened, np.load(opened) as arrays:
            found = {name: arrays[name] for name in arrays.files}
    except DAMAGE as error:
        raise StudyError(f"{file}: {error}") from error
    by_kind: dict[str, dict[str, NDArray[Any]]] = {kind: {} for kind in kinds}
    for name, values in found.items():
        kind, _, task = name.partition(" ")
        if kind not in by_kind:
            raise StudyError(f"{file}: {name}: unknown")
        by_kind[kind][task] = values
    return tuple(by_kind.values())
