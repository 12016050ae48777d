"""Sections about STS, transfer and retrieval, with tables beside the papers' rows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any
from xml.etree.ElementTree import Element

from training.evaluation.report import published
from training.evaluation.report.evaluated import Evaluated
from training.evaluation.report.markup import ABSENT, Part, details, element, number, row, section, table
from training.evaluation.report.plots import Dot, dot_plot
from training.evaluation.report.published import STS, TRANSFER, Row
from training.evaluation.report.svg import Caption

NAMES = {"STSB": "STS-B", "SICKR": "SICK-R", "SST2": "SST-2"}
"""Names of tasks that the papers spell differently."""
AGGREGATES = ("all", "mean", "wmean")
UNIT_VECTORS = (
    "Our rows: a logistic regression on unit vectors, as the server returns them. The papers' rows: SentEval's "
    "logistic regression on vectors that are not normalised."
)
REACH = 12
"""The dot plot leaves out papers' rows more than this number of points below the lowest evaluated encoder.

A longer axis would hide differences between seeds.
"""


def sts(judged: Sequence[Evaluated]) -> Element | None:
    """Show a table of the seven STS tasks, a dot plot of the mean scores, and collapsible tables of the tasks' subsets.

    The first table also has rows with published scores from papers.

    Return None if no evaluation has STS scores.
    """
    measured = [each for each in judged if each.get("sts", "tasks")]
    if not measured:
        return None
    papers = published.nearest_rows(published.STS_ROWS, _backbones(measured))
    ours = [
        row(each.name, *(number(each.get("sts", "tasks", task, "spearman", "all")) for task in STS),
            number(each.get("sts", "mean")), kind="own")
        for each in measured
    ]  # fmt: skip
    head = ["Spearman × 100", *(NAMES.get(task, task) for task in STS), "Mean"]
    return section(
        "sts",
        "Semantic textual similarity",
        _backbone_note(measured, papers),
        table("STS, Spearman × 100 over all pairs of a task", head, [ours, _published(papers)]),
        _means(measured, papers),
        *(_subsets(each) for each in measured),
        _sources(papers),
    )


def transfer(judged: Sequence[Evaluated]) -> Element | None:
    """Show the test and dev accuracy of logistic regression on frozen embeddings, and the C of each fold.

    Return None if no evaluation has transfer scores.
    """
    measured = [each for each in judged if each.get("transfer", "tasks")]
    if not measured:
        return None
    papers = published.nearest_rows(published.TRANSFER_ROWS, _backbones(measured))
    head = ["Accuracy, %", *(NAMES.get(task, task) for task in TRANSFER[:-1]), "MRPC (F1)", "Mean"]
    ours = [line for each in measured for line in _accuracies(each)]
    return section(
        "transfer",
        "Transfer tasks",
        element("p", UNIT_VECTORS),
        _backbone_note(measured, papers),
        table("Transfer, accuracy in %", head, [ours, _published(papers)]),
        *(_regularisation(each) for each in measured),
        _sources(papers),
    )


def retrieval(judged: Sequence[Evaluated]) -> Element | None:
    """Show the retrieval scores of each collection, and the number of judgements whose relevant document is missing.

    Return None if no evaluation has retrieval scores.
    """
    searched = [
        (f"{each.name}, {collection}", found)
        for each in judged
        for collection, found in (each.get("retrieval") or {}).items()
    ]
    if not searched:
        return None
    rows = [
        row(name, number(found.get("ndcg10")), number(found.get("mrr10")),
            number(found.get("recall100")), number(found.get("queries"), 0), number(found.get("documents"), 0),
            str(found.get("through") or ABSENT), kind="own")
        for name, found in searched
    ]  # fmt: skip
    head = ["× 100", "nDCG@10", "MRR@10", "Recall@100", "Queries", "Documents", "Through"]
    lacking = [
        element("p", f"{name}: {number(missing, 0)} judgements name relevant documents that the collection lacks. They "
                "count as relevant and are never found.")
        for name, found in searched
        if (missing := found.get("missing"))
    ]  # fmt: skip
    return section("retrieval", "Retrieval", table("Retrieval, × 100", head, [rows]), *lacking)


def _backbones(judged: Iterable[Evaluated]) -> list[str]:
    return [str(each.get("subject", "backbone") or "") for each in judged]


def _backbone_note(judged: Sequence[Evaluated], papers: Sequence[Row]) -> Part:
    """Return a note about evaluated backbones for which the papers have no rows, or None if there are none."""
    others = " and ".join(published.unreported(_backbones(judged), papers))
    said = f"The papers don't report {others}: their rows are there for orientation, not for comparison."
    return element("p", said) if others else None


def _published(papers: Sequence[Row]) -> list[Element]:
    rows = []
    for name, paper in _named(papers):
        mean = number(paper.mean) + (f" ± {number(paper.deviation)}" if paper.deviation else "")
        rows.append(row(name, *(map(number, paper.tasks) if paper.tasks else [ABSENT] * 7), mean, kind="paper"))
    return rows


def _named(papers: Sequence[Row]) -> list[tuple[str, Row]]:
    """Return each row with its name: the method, followed by the backbone if several rows have the same method."""
    count = Counter(paper.method for paper in papers)
    return [(each.method if count[each.method] == 1 else f"{each.method}, {each.backbone}", each) for each in papers]


def _means(measured: Sequence[Evaluated], papers: Sequence[Row]) -> Part:
    ours = [Dot(each.name, mean, each.mark) for each in measured if (mean := each.get("sts", "mean")) is not None]
    if not ours:
        return None
    least = min(dot.value for dot in ours) - REACH
    named = _named(papers)
    theirs = [Dot(name, paper.mean, "paper", paper.deviation) for name, paper in named if paper.mean >= least]
    return dot_plot(
        Caption(
            "sts-means",
            "Mean of the seven STS tasks.",
            "Spearman × 100. Grey: the papers' own numbers from single runs, or the mean over 50 seeds with a line of "
            f"one standard deviation to either side. Rows more than {REACH} points below the lowest coloured dot are "
            "only in the table. The axis does not begin at zero.",
        ),
        "Mean Spearman × 100",
        sorted([*theirs, *ours], key=lambda dot: dot.value),
    )


def _subsets(judged: Evaluated) -> Element:
    bodies = []
    for task, found in judged.get("sts", "tasks").items():
        rows = [
            row(f"{NAMES.get(task, task)} {subset}", number(scores.get("spearman")), number(scores.get("pearson")),
                number(scores.get("pairs"), 0))
            for subset, scores in (found.get("subsets") or {}).items()
        ]  # fmt: skip
        rows += [
            row(f"{NAMES.get(task, task)}, {how}", *(number((found.get(kind) or {}).get(how))
                for kind in ("spearman", "pearson")), number(found.get("pairs"), 0), kind="total")
            for how in AGGREGATES
        ]  # fmt: skip
        bodies.append(rows)
    return details(
        f"{judged.name}: each subset",
        element(
            "p", "all: over all pairs together; mean: over the subsets; wmean: over the subsets, weighted by size."
        ),
        table(f"STS subsets of {judged.name}", ["× 100", "Spearman", "Pearson", "Pairs"], bodies),
    )


def _accuracies(judged: Evaluated) -> list[Element]:
    """Make an encoder's row of test accuracies, and a row of dev accuracies if they are known."""

    def found(task: str) -> Mapping[str, Any]:
        return judged.get("transfer", "tasks", task) or {}

    f1 = found("MRPC").get("f1")
    accuracy = [number(found(task).get("accuracy")) for task in TRANSFER]
    if f1 is not None:
        accuracy[-1] += f" ({number(f1)})"
    lines = [row(judged.name, *accuracy, number(judged.get("transfer", "mean")), kind="own")]
    dev = [found(task).get("dev_accuracy") for task in TRANSFER]
    if any(each is not None for each in dev):
        lines.append(row("on the dev set", *map(number, dev), ABSENT, kind="dev"))
    return lines


def _regularisation(judged: Evaluated) -> Part:
    chosen = {task: found["folds"] for task, found in judged.get("transfer", "tasks").items() if found.get("folds")}
    if not chosen:
        return None
    rows = [
        row(NAMES.get(task, task), *(", ".join(f"{fold[of]:g}" for fold in folds) for of in ("c", "test")))
        for task, folds in chosen.items()
    ]
    head = ["Task", "C of each fold", "Test rows of each fold"]
    return details(f"{judged.name}: C of each fold", table(f"C of {judged.name}", head, [rows]))


def _sources(papers: Sequence[Row]) -> Element:
    rows = [row(name, paper.source) for name, paper in _named(papers)]
    return details("Sources of the papers' rows", table("Sources", ["Row", "Source"], [rows]))
