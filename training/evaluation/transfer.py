"""SentEval's transfer tasks: what a logistic regression makes of vectors that stay as they are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from hashlib import sha256
from statistics import fmean
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from training.evaluation.labelled import Example, Labelled
from training.evaluation.vectors import Encode, EvaluationError, unit_vectors

if TYPE_CHECKING:
    from sklearn.linear_model import LogisticRegression

SEED = 1111
FOLDS = 10
C_GRID = tuple(2.0**exponent for exponent in range(-2, 4))
C_GRID_TESTED = tuple(2.0**exponent for exponent in range(-1, 6))
"""Where there is a test part but no dev part: TREC and MRPC."""

Rows = NDArray[np.int64]


@dataclass(frozen=True)
class Part:
    """Features (N, F), labels (N,) and the texts they come from."""

    features: NDArray[np.float32]
    labels: NDArray[np.int64]
    texts: Sequence[str]

    def __getitem__(self, rows: Rows) -> Part:
        return Part(self.features[rows], self.labels[rows], [self.texts[row] for row in rows])


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
    from sklearn.metrics import f1_score  # here and below: scikit-learn takes half a second, and only a fit needs it

    ordered = [
        sorted(part, key=lambda example: (*(len(text.split()) for text in example.texts), example.label))
        for part in (labelled.train, labelled.dev, labelled.test)
    ]
    texts = sorted({text for part in ordered for example in part for text in example.texts})
    unit = unit_vectors(encode, texts)
    row = {text: i for i, text in enumerate(texts)}
    train, dev, test = (_part(part, unit, row) for part in ordered)
    if not labelled.test:
        return _folded(train, task)
    if labelled.dev:
        c, dev_accuracy = _best_c(C_GRID, [(train, dev)])
    else:
        c, dev_accuracy = _best_c(C_GRID_TESTED, _splits(train, task))
    fold, predicted = _tested(train, test, c, dev_accuracy)
    pairs = len(labelled.train[0].texts) == 2
    f1 = 100 * float(f1_score(test.labels, predicted)) if pairs else None
    return Classified(TransferScore(dev_accuracy, fold.accuracy, f1, (fold,)), predicted, test.labels)


def _part(examples: Sequence[Example], unit: NDArray[np.float64], row: Mapping[str, int]) -> Part:
    """A pair (u, v) has the features |u - v| and u * v (N, 2D). In float32, for bytes are what a fit's time goes to."""
    sides = [unit[[row[text] for text in side]] for side in zip(*(example.texts for example in examples), strict=True)]
    if not sides:
        features = np.empty((0, unit.shape[1]))
    elif len(sides) == 1:
        features = sides[0]
    else:
        features = np.hstack([np.abs(sides[0] - sides[1]), sides[0] * sides[1]])
    return Part(
        features.astype(np.float32),
        np.array([example.label for example in examples], dtype=np.int64),
        ["\t".join(example.texts) for example in examples],
    )


def _folded(whole: Part, task: str) -> Classified:
    folds, predicted, labels = [], [], []
    for train, test in _splits(whole, task):
        c, dev_accuracy = _best_c(C_GRID, _splits(train, task))
        fold, found = _tested(train, test, c, dev_accuracy)
        folds.append(fold)
        predicted.append(found)
        labels.append(test.labels)
    score = TransferScore(
        fmean(fold.dev_accuracy for fold in folds), fmean(fold.accuracy for fold in folds), None, tuple(folds)
    )
    return Classified(score, np.concatenate(predicted), np.concatenate(labels))


def _splits(part: Part, task: str) -> list[tuple[Part, Part]]:
    from sklearn.model_selection import StratifiedKFold

    fewest = int(np.unique(part.labels, return_counts=True)[1].min())
    if fewest < FOLDS:
        raise EvaluationError(f"{task}: a class of {fewest} examples can't be cut into {FOLDS} folds")
    folds = StratifiedKFold(FOLDS, shuffle=True, random_state=SEED)
    return [(part[train], part[held]) for train, held in folds.split(part.features, part.labels)]


def _best_c(grid: Sequence[float], splits: Sequence[tuple[Part, Part]]) -> tuple[float, float]:
    """C and its accuracy x 100, the mean over the splits. Along the grid a fit starts where the last one ended."""
    accuracies = np.zeros((len(splits), len(grid)))
    for i, (train, held) in enumerate(splits):
        classifier = _classifier(warm_start=True)
        for j, c in enumerate(grid):
            classifier.set_params(C=c).fit(train.features, train.labels)
            accuracies[i, j] = classifier.score(held.features, held.labels)
    means = (100 * accuracies.mean(axis=0)).round(2)
    best = int(means.argmax())
    return grid[best], float(means[best])


def _tested(train: Part, test: Part, c: float, dev_accuracy: float) -> tuple[Fold, Rows]:
    predicted = _classifier(C=c).fit(train.features, train.labels).predict(test.features)
    accuracy = round(100 * float(np.mean(predicted == test.labels)), 2)
    digest = sha256("\n".join(test.texts).encode()).hexdigest()[:16]
    return Fold(c, dev_accuracy, accuracy, len(train.labels), len(test.labels), digest), predicted


def _classifier(**settings: Any) -> LogisticRegression:
    """The default tolerance, 1e-4, is of the mean loss: with 10,000 rows it stops short where C is large."""
    from sklearn.linear_model import LogisticRegression

    return LogisticRegression(solver="lbfgs", max_iter=1000, tol=1e-5, **settings)
