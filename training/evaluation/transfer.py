"""SentEval's transfer tasks: what a logistic regression makes of vectors that stay as they are."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from hashlib import sha256
from statistics import fmean
from typing import Any

import numpy as np
from numpy.typing import NDArray

from training.evaluation.labelled import Example, Labelled
from training.evaluation.logistic import predictions
from training.evaluation.vectors import Encode, EvaluationError, unit_vectors

SEED = 1111
FOLDS = 10
C_GRID = tuple(2.0**exponent for exponent in range(-2, 4))
C_GRID_TESTED = tuple(2.0**exponent for exponent in range(-1, 6))
"""Where there is a test part but no dev part: TREC and MRPC."""

Rows = NDArray[np.int64]


@dataclass(frozen=True)
class Trial:
    """Rows that a classifier is fitted to, rows that test it, and splits of the former that choose its C."""

    train: Rows
    test: Rows
    splits: Sequence[tuple[Rows, Rows]]
    """Rows to fit a classifier to, and rows to judge it by."""


@dataclass(frozen=True)
class Fold:
    """One choice of C and the classifier that was fitted with it."""

    c: float
    dev_accuracy: float
    """Accuracy x 100 with that C on what it was chosen by."""
    accuracy: float
    """Accuracy x 100 on the fold's test rows."""
    train: int
    test: int
    test_rows: str
    """SHA-256 of the test rows' texts in their order, a line each, the first 16 digits."""


@dataclass(frozen=True)
class TransferScore:
    """What a task says of an encoder, times 100."""

    dev_accuracy: float
    accuracy: float
    f1: float | None
    """Of label 1, where the examples are pairs."""
    folds: tuple[Fold, ...]
    """Ten where SentEval folds the test rows (MR, CR, SUBJ, MPQA), else one."""
    seed: int = SEED
    """Of every shuffle into folds."""

    def to_json(self) -> dict[str, Any]:
        """As plain dictionaries."""
        return asdict(self)


@dataclass(frozen=True)
class Classified:
    """A task's score, and what it is a score of."""

    score: TransferScore
    predicted: Rows
    """(N,) classes of the test rows; where they are folded, of each fold's after the other."""
    labels: Rows
    """(N,) people's classes, in the same order: it depends on the task alone."""


def evaluate(encode: Encode, tasks: Mapping[str, Labelled]) -> dict[str, TransferScore]:
    """The score of each task: see `classify`."""
    return {name: found.score for name, found in classify(encode, tasks).items()}


def classify(encode: Encode, tasks: Mapping[str, Labelled]) -> dict[str, Classified]:
    """The score and the predictions of each task, as SentEval's scikit-learn classifiers find them.

    Multinomial logistic regression by L-BFGS, L2 penalty 1/C on the weights and none on the intercept, features not
    scaled. C has the best accuracy, rounded to two decimals, of its grid; the lowest of equals. Where it is found:
    (train) in ten folds, each without its tenth, which is the test; (train, test) in ten folds of train;
    (train, dev, test) on dev. Rows are in the order of SentEval, by words and label, for the folds depend on it.

    Raises:
        EvaluationError: a vector is not finite, or a class has fewer examples than there are folds.
    """
    return {name: _classified(encode, labelled, name) for name, labelled in tasks.items()}


def _classified(encode: Encode, labelled: Labelled, task: str) -> Classified:
    from sklearn.metrics import f1_score  # here and below: scikit-learn takes half a second, and only a task needs it

    parts = [
        sorted(part, key=lambda example: (*(len(text.split()) for text in example.texts), example.label))
        for part in (labelled.train, labelled.dev, labelled.test)
    ]
    examples = [example for part in parts for example in part]
    features = _features(encode, examples)
    labels = np.array([example.label for example in examples], dtype=np.int64)
    train, dev, test = np.split(np.arange(len(examples)), np.cumsum([len(part) for part in parts[:2]]))
    if labelled.dev:
        trials, grid = [Trial(train, test, [(train, dev)])], C_GRID
    elif labelled.test:
        trials, grid = [Trial(train, test, _splits(train, labels, task))], C_GRID_TESTED
    else:
        trials = [Trial(kept, fold, _splits(kept, labels, task)) for kept, fold in _splits(train, labels, task)]
        grid = C_GRID
    folds, predicted = [], []
    for trial, (c, dev_accuracy, classes) in zip(trials, _tested(features, labels, trials, grid), strict=True):
        accuracy = round(100 * float(np.mean(classes == labels[trial.test])), 2)
        texts = "\n".join("\t".join(examples[row].texts) for row in trial.test)
        digest = sha256(texts.encode()).hexdigest()[:16]
        folds.append(Fold(c, dev_accuracy, accuracy, len(trial.train), len(trial.test), digest))
        predicted.append(classes)
    found, tested = np.concatenate(predicted), labels[np.concatenate([trial.test for trial in trials])]
    score = TransferScore(
        fmean(fold.dev_accuracy for fold in folds),
        fmean(fold.accuracy for fold in folds),
        100 * float(f1_score(tested, found)) if len(examples[0].texts) == 2 else None,
        tuple(folds),
    )
    return Classified(score, found, tested)


def _features(encode: Encode, examples: Sequence[Example]) -> NDArray[np.float32]:
    """Encode sentences to unit vectors (N, D), and pairs (u, v) to |u - v| and u * v (N, 2D)."""
    texts = sorted({text for example in examples for text in example.texts})
    unit = unit_vectors(encode, texts)
    row = {text: i for i, text in enumerate(texts)}
    sides = [unit[[row[text] for text in side]] for side in zip(*(example.texts for example in examples), strict=True)]
    pairs = len(sides) == 2
    features = np.hstack([np.abs(sides[0] - sides[1]), sides[0] * sides[1]]) if pairs else sides[0]
    return features.astype(np.float32)


def _splits(rows: Rows, labels: Rows, task: str) -> list[tuple[Rows, Rows]]:
    from sklearn.model_selection import StratifiedKFold

    fewest = int(np.unique(labels[rows], return_counts=True)[1].min())
    if fewest < FOLDS:
        raise EvaluationError(f"{task}: a class of {fewest} examples can't be cut into {FOLDS} folds")
    folds = StratifiedKFold(FOLDS, shuffle=True, random_state=SEED)
    return [(rows[train], rows[held]) for train, held in folds.split(rows, labels[rows])]


def _tested(
    features: NDArray[np.float32], labels: Rows, trials: Sequence[Trial], grid: Sequence[float]
) -> Iterator[tuple[float, float, Rows]]:
    """Yield, for each trial, its C, the mean accuracy x 100 of its splits with it, and the classes of its test rows."""
    fits = [fit for trial in trials for fit in (*trial.splits, (trial.train, trial.test))]
    rows = np.zeros((len(fits), len(labels)), dtype=bool)
    for selected, (train, _) in zip(rows, fits, strict=True):
        selected[train] = True
    predicted = [
        [classes[held] for classes, (_, held) in zip(each, fits, strict=True)]
        for each in predictions(features, labels, rows, grid)
    ]
    accuracies = np.array(
        [[np.mean(found == labels[held]) for found, (_, held) in zip(each, fits, strict=True)] for each in predicted]
    )
    end = -1
    for trial in trials:
        start, end = end + 1, end + 1 + len(trial.splits)
        means = (100 * accuracies[:, start:end].mean(axis=1)).round(2)
        best = int(means.argmax())
        yield grid[best], float(means[best]), predicted[best][end]
