"""SentEval's transfer tasks: accuracy of logistic regression on frozen vectors."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from statistics import fmean

import numpy as np
from numpy.typing import NDArray

from training.evaluation.labelled import Example, Labelled
from training.evaluation.logistic import predictions
from training.evaluation.vectors import Encode, EvaluationError, unit_vectors

SEED = 1111
FOLDS = 10
C_GRID = tuple(2.0**exponent for exponent in range(-2, 4))
C_GRID_TESTED = tuple(2.0**exponent for exponent in range(-1, 6))
"""Values of C that are tried for tasks with a test split and no dev split: TREC and MRPC."""

Rows = NDArray[np.int64]


@dataclass(frozen=True)
class Trial:
    """Training and test rows of a classifier, and splits of the training rows for the choice of C."""

    train: Rows
    test: Rows
    splits: Sequence[tuple[Rows, Rows]]
    """Pairs of training rows and validation rows."""


@dataclass(frozen=True)
class Fold:
    """The chosen C of a fold, and the test score of the classifier that was fitted with this C."""

    c: float
    dev_accuracy: float
    """Validation accuracy x 100 with this C."""
    accuracy: float
    """Accuracy x 100 on the fold's test rows."""
    train: int
    test: int
    test_rows: str
    """First 16 hex digits of the SHA-256 of the test rows' texts in order, one per line."""


@dataclass(frozen=True)
class TransferScore:
    """An encoder's score on a task, times 100."""

    dev_accuracy: float
    accuracy: float
    f1: float | None
    """F1 of label 1, if the examples are pairs of sentences."""
    folds: tuple[Fold, ...]
    """Results of the folds: ten for tasks without a test split (MR, CR, SUBJ, MPQA), one for other tasks."""
    seed: int = SEED
    """Seed of every shuffle into folds."""


@dataclass(frozen=True)
class Classified:
    """The score of a task, with predictions and labels."""

    score: TransferScore
    predicted: Rows
    """Predicted classes (N,) of the test rows, concatenated over folds."""
    labels: Rows
    """Human labels (N,), in the same order as `predicted`. The order depends only on the task."""


def evaluate(encode: Encode, tasks: Mapping[str, Labelled]) -> dict[str, TransferScore]:
    """Train and test a classifier on the vectors of each task, as `classify` does, and return the tasks' scores.

    Raises:
        EvaluationError: a vector is not finite, a class has fewer examples than there are folds, or the fit of a
            classifier does not converge.
    """
    return {name: found.score for name, found in classify(encode, tasks).items()}


def classify(encode: Encode, tasks: Mapping[str, Labelled]) -> dict[str, Classified]:
    """Return each task's score, predictions and labels, with the same classifiers as SentEval's scikit-learn option.

    The classifier is multinomial logistic regression by L-BFGS, with L2 penalty 1/C on the weights and none on the
    intercept. Features are not scaled.

    The values of C in `C_GRID` are tried. For tasks with a test split and no dev split, `C_GRID_TESTED` is used
    instead. The value with the best validation accuracy is chosen. Accuracies are compared as percentages, rounded to
    two decimals. If several values have the best accuracy, the lowest one is chosen. Validation uses the dev split if
    it exists, else ten-fold cross-validation on the training rows.

    If there is no test split, the training split is divided into ten folds. Each fold is tested once, by a classifier
    that is trained on the other nine folds. The order of the rows determines the folds, so rows are sorted as in
    SentEval: by number of words, and then by label.

    Raises:
        EvaluationError: a vector is not finite, a class has fewer examples than there are folds, or the fit of a
            classifier does not converge.
    """
    return {name: _classified(encode, labelled, name) for name, labelled in tasks.items()}


def _classified(encode: Encode, labelled: Labelled, task: str) -> Classified:
    # scikit-learn is imported lazily, here and below, because it takes half a second and only these tasks need it.
    from sklearn.metrics import f1_score

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
    """Encode sentences to unit vectors (N, D), or pairs to |u - v| and u * v side by side (N, 2D).

    u and v are the unit vectors of the two sentences of a pair.
    """
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
        raise EvaluationError(f"{task}: a class of {fewest} examples can't be divided into {FOLDS} folds")
    folds = StratifiedKFold(FOLDS, shuffle=True, random_state=SEED)
    return [(rows[train], rows[held]) for train, held in folds.split(rows, labels[rows])]


def _tested(
    features: NDArray[np.float32], labels: Rows, trials: Sequence[Trial], grid: Sequence[float]
) -> Iterator[tuple[float, float, Rows]]:
    """Yield, for each trial, the chosen C, its mean validation accuracy x 100, and the predicted test classes."""
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
