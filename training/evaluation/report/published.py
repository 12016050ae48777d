"""Published results of the papers: Spearman x 100 ("all") on the STS tasks, and accuracy on the transfer tasks."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

STS = ("STS12", "STS13", "STS14", "STS15", "STS16", "STSB", "SICKR")
TRANSFER = ("MR", "CR", "SUBJ", "MPQA", "SST2", "TREC", "MRPC")

BERT = "BERT-base"
BERT_LARGE = "BERT-large"
ROBERTA = "RoBERTa-base"
ROBERTA_LARGE = "RoBERTa-large"
SBERT_LARGE = "SBERT-large"

REPORTED = {
    "bert-base-uncased": BERT,
    "bert-large-uncased": BERT_LARGE,
    "roberta-base": ROBERTA,
    "roberta-large": ROBERTA_LARGE,
    "bert-large-nli-cls-token": SBERT_LARGE,
}
"""Hub names of the backbones for which the papers report results, with the papers' names."""
FAMILIES = {
    "bert": BERT,
    "bert-large": BERT_LARGE,
    "bert-large-nli": SBERT_LARGE,
    "roberta": ROBERTA,
    "roberta-large": ROBERTA_LARGE,
}
"""Beginnings of hub names, with the papers' name of the most similar backbone. The longest match counts."""

# Sources of the rows.

LISTED = "as listed in github.com/Doragd/Awesome-Sentence-Embedding, README"
TWICE = f"{LISTED}, and in github.com/Jiahao004/DistillCSE, README"
"""Source of the rows that are in both READMEs. The mean of each row was checked against its task scores."""
SIMCSE = "Gao et al. 2021 (SimCSE)"
SIMCSE_STS, SIMCSE_TRANSFER = f"{SIMCSE}, Table 5", f"{SIMCSE}, Table E.1"
DCLR = "Zhou et al. 2022 (DCLR)"
DCLR_STS, DCLR_LARGE = f"{DCLR}, main STS table", f"{DCLR}, {TWICE}"
ARC = "Zhang et al. 2022 (ArcCSE)"
CONSERT_BASE = "Yan et al. 2021 (ConSERT); trained on the STS tasks' own sentences"
CONSERT_LARGE = f"Yan et al. 2021 (ConSERT), {LISTED}; trained on the STS tasks' own sentences"
DIFFCSE = "Chuang et al. 2022 (DiffCSE)"
GS = "Wu et al. 2022 (GS-InfoNCE)"
GS_LARGE = f"{GS}, {LISTED}; the authors' README has {{}} of the published weights"
SIMCSE_PLUS = "Xu et al. 2023 (SimCSE++)"
WHITENED = "Zhuo et al. 2023 (WhitenedCSE)"
WHITENED_STS = f"{WHITENED}, Table 1, and the authors' README"
SIMCSE_LARGE = f"The mean: github.com/princeton-nlp/SimCSE, README. The tasks: {TWICE}"
SEEDS = "github.com/hppRC/simple-simcse, README: the paper's settings over 50 seeds"


@dataclass(frozen=True)
class Row:
    """A row of a paper's table. If `tasks` is None, only the mean of the seven tasks is known."""

    backbone: str
    method: str
    mean: float
    source: str
    tasks: tuple[float, ...] | None = None
    """Scores in the order of `STS` or `TRANSFER`."""
    deviation: float | None = None
    """Standard deviation of the mean over seeds."""


STS_ROWS = (
    Row(BERT, "GloVe, mean", 61.32, SIMCSE_STS, (55.14, 70.66, 59.73, 68.25, 63.66, 58.02, 53.76)),
    Row(BERT, "BERT, [CLS]", 31.40, DCLR_STS, (21.54, 32.11, 21.28, 37.89, 44.24, 20.30, 42.42)),
    Row(BERT, "BERT, mean", 52.57, DCLR_STS, (30.87, 59.89, 47.73, 60.29, 63.73, 47.29, 58.22)),
    Row(BERT, "BERT, first-last", 56.70, SIMCSE_STS, (39.70, 59.38, 49.67, 66.03, 66.19, 53.87, 62.06)),
    Row(BERT, "BERT-flow", 66.55, SIMCSE_STS, (58.40, 67.10, 60.85, 75.16, 71.22, 68.66, 64.47)),
    Row(BERT, "BERT-whitening", 66.28, SIMCSE_STS, (57.83, 66.90, 60.90, 75.08, 71.31, 68.24, 63.73)),
    Row(BERT, "IS-BERT", 66.58, SIMCSE_STS, (56.77, 69.24, 61.21, 75.23, 70.16, 69.21, 64.25)),
    Row(BERT, "USE", 71.22, LISTED, (64.49, 67.80, 64.61, 76.83, 73.18, 74.92, 76.69)),
    Row(BERT, "Contrastive (BT)", 62.63, LISTED, (54.26, 64.03, 54.28, 68.19, 67.50, 63.27, 66.91)),
    Row(BERT, "CT", 72.05, TWICE, (61.63, 76.80, 68.47, 77.50, 76.48, 74.31, 69.19)),
    Row(BERT, "SG-OPT", 74.62, LISTED, (66.84, 80.13, 71.23, 81.56, 77.17, 77.23, 68.16)),
    Row(BERT, "ConSERT", 72.74, CONSERT_BASE, (64.64, 78.49, 69.07, 79.72, 75.95, 73.97, 67.31)),
    Row(BERT, "SimCSE", 76.25, SIMCSE_STS, (68.40, 82.41, 74.38, 80.91, 78.56, 76.85, 72.23)),
    Row(BERT, "SimCSE, 50 seeds", 75.11, SEEDS, (67.64, 80.42, 72.68, 80.25, 78.12, 76.28, 70.35), 0.84),
    Row(BERT, "DCLR", 77.22, DCLR_STS, (70.81, 83.73, 75.11, 82.56, 78.44, 78.31, 71.59)),
    Row(BERT, "GS-InfoNCE", 77.63, f"{GS}, Table 1", (70.12, 82.57, 75.21, 82.89, 80.23, 79.70, 72.70)),
    Row(BERT, "ImSimCSE", 78.05, f"{SIMCSE_PLUS}, Table 3; the abstract states 1.8 above SimCSE's 76.25"),
    Row(BERT, "ArcCSE", 78.11, ARC, (72.08, 84.27, 76.25, 82.32, 79.54, 79.92, 72.39)),
    Row(BERT, "WhitenedCSE", 78.78, WHITENED_STS, (74.03, 84.90, 76.40, 83.40, 80.23, 81.14, 71.33)),
    Row(BERT, "ESimCSE", 78.27, LISTED, (73.40, 83.27, 77.25, 82.66, 78.81, 80.17, 72.30)),
    Row(BERT, "DiffCSE", 78.49, f"{DIFFCSE}, {TWICE}", (72.28, 84.43, 76.47, 83.90, 80.54, 80.59, 71.23)),
    Row(BERT, "PromptBERT", 78.54, LISTED, (71.56, 84.58, 76.98, 84.47, 80.60, 81.60, 69.87)),
    Row(BERT_LARGE, "BERT, [CLS]", 31.96, LISTED, (27.44, 30.76, 22.59, 29.98, 42.74, 26.75, 43.44)),
    Row(BERT_LARGE, "BERT, mean", 48.90, LISTED, (27.67, 55.79, 44.49, 51.67, 61.88, 47.00, 53.85)),
    Row(BERT_LARGE, "Contrastive (BT)", 62.43, LISTED, (52.04, 62.59, 54.25, 71.07, 66.71, 63.84, 66.53)),
    Row(BERT_LARGE, "SG-OPT", 74.46, LISTED, (67.02, 79.42, 70.38, 81.72, 76.35, 76.16, 70.20)),
    Row(BERT_LARGE, "ImSimCSE", 79.30, f"{SIMCSE_PLUS}, Table 3"),
    Row(BERT_LARGE, "BERT-whitening", 70.35, LISTED, (64.34, 74.60, 69.64, 74.68, 75.90, 72.48, 60.80)),
    Row(BERT_LARGE, "ConSERT", 76.45, CONSERT_LARGE, (70.69, 82.96, 74.13, 82.78, 76.66, 77.53, 70.37)),
    Row(BERT_LARGE, "SimCSE", 78.41, SIMCSE_LARGE, (70.88, 84.16, 76.43, 84.50, 79.76, 79.26, 73.88)),
    Row(BERT_LARGE, "SimCSE, 50 seeds", 74.95, SEEDS, (65.83, 80.44, 71.60, 81.45, 76.85, 75.96, 72.52), 1.74),
    Row(BERT_LARGE, "DCLR", 78.90, DCLR_LARGE, (71.87, 84.83, 77.37, 84.70, 79.81, 79.55, 74.19)),
    Row(BERT_LARGE, "GS-InfoNCE", 79.13, GS_LARGE.format("78.96"), (73.75, 85.09, 77.35, 84.44, 79.88, 79.94, 73.48)),
    Row(BERT_LARGE, "ArcCSE", 79.37, f"{ARC}, {TWICE}", (73.17, 86.19, 77.90, 84.97, 79.43, 80.45, 73.50)),
    Row(BERT_LARGE, "WhitenedCSE", 79.97, WHITENED_STS, (74.65, 85.79, 77.49, 84.71, 80.33, 81.48, 75.34)),
    Row(SBERT_LARGE, "ImSimCSE", 80.63, f"{SIMCSE_PLUS}, Table 3; it starts from weights tuned on NLI's labels"),
    Row(ROBERTA, "RoBERTa, [CLS]", 44.57, DCLR_STS, (16.67, 45.57, 30.36, 55.08, 56.98, 45.41, 61.89)),
    Row(ROBERTA, "RoBERTa, mean", 53.36, DCLR_STS, (32.11, 56.33, 45.22, 61.34, 61.98, 54.53, 62.03)),
    Row(ROBERTA, "RoBERTa, first-last", 56.57, SIMCSE_STS, (40.88, 58.74, 49.07, 65.63, 61.48, 58.55, 61.63)),
    Row(ROBERTA, "RoBERTa-whitening", 61.73, SIMCSE_STS, (46.99, 63.24, 57.23, 71.36, 68.99, 61.36, 62.91)),
    Row(ROBERTA, "SimCSE", 76.57, SIMCSE_STS, (70.16, 81.77, 73.24, 81.36, 80.65, 80.22, 68.56)),
    Row(ROBERTA, "SimCSE, 50 seeds", 74.60, SEEDS, (64.92, 80.06, 71.52, 79.92, 78.73, 78.67, 68.39), 0.21),
    Row(ROBERTA, "GS-InfoNCE", 77.74, f"{GS}, Table 1", (71.12, 83.24, 75.00, 82.61, 81.36, 81.26, 69.62)),
    Row(ROBERTA, "DCLR", 77.87, DCLR_STS, (70.01, 83.08, 75.09, 83.66, 81.06, 81.86, 70.33)),
    Row(ROBERTA, "DeCLUTR", 69.99, LISTED, (52.41, 75.19, 65.52, 77.12, 78.63, 72.41, 68.62)),
    Row(ROBERTA, "SG-OPT", 73.42, LISTED, (62.57, 78.96, 69.24, 79.99, 77.17, 77.60, 68.42)),
    Row(ROBERTA, "Contrastive (BT)", 74.04, LISTED, (62.34, 78.60, 68.65, 79.31, 77.49, 79.93, 71.97)),
    Row(ROBERTA, "ESimCSE", 77.44, LISTED, (69.90, 82.50, 74.68, 83.19, 80.30, 80.99, 70.54)),
    Row(ROBERTA, "DiffCSE", 78.21, f"{DIFFCSE}, {LISTED}", (70.05, 83.43, 75.49, 82.81, 82.12, 82.38, 71.19)),
    Row(ROBERTA, "WhitenedCSE", 78.22, f"{WHITENED}, Table 1"),
    Row(ROBERTA_LARGE, "RoBERTa, [CLS]", 25.96, LISTED, (19.25, 22.97, 14.93, 33.41, 38.01, 12.52, 40.63)),
    Row(ROBERTA_LARGE, "RoBERTa, mean", 52.31, LISTED, (33.63, 57.22, 45.67, 63.00, 61.18, 47.07, 58.38)),
    Row(ROBERTA_LARGE, "Contrastive (BT)", 68.59, LISTED, (57.60, 72.14, 62.25, 71.49, 71.75, 77.05, 67.83)),
    Row(ROBERTA_LARGE, "SG-OPT", 73.13, LISTED, (64.29, 76.36, 68.48, 80.10, 76.60, 78.14, 67.97)),
    Row(ROBERTA_LARGE, "RoBERTa-whitening", 70.08, LISTED, (64.17, 73.92, 71.06, 76.40, 74.87, 71.68, 58.49)),
    Row(ROBERTA_LARGE, "SimCSE", 78.90, SIMCSE_STS, (72.86, 83.99, 75.62, 84.77, 81.80, 81.98, 71.26)),
    Row(ROBERTA_LARGE, "SimCSE, 50 seeds", 76.71, SEEDS, (66.46, 81.93, 73.93, 82.71, 80.58, 80.57, 70.82), 0.50),
    Row(
        ROBERTA_LARGE, "GS-InfoNCE", 79.18, GS_LARGE.format("79.21"), (71.76, 84.91, 76.79, 84.35, 81.74, 82.97, 71.71)
    ),
    Row(ROBERTA_LARGE, "DCLR", 79.30, DCLR_LARGE, (73.09, 84.57, 76.13, 85.15, 81.99, 82.35, 71.80)),
)
"""Results of unsupervised methods on the STS tasks. BERT-flow and BERT-whitening are fitted to NLI."""

TRANSFER_ROWS = (
    Row(BERT, "GloVe, mean", 81.52, SIMCSE_TRANSFER, (77.25, 78.30, 91.17, 87.85, 80.18, 83.00, 72.87)),
    Row(BERT, "BERT, [CLS]", 84.66, SIMCSE_TRANSFER, (78.68, 84.85, 94.21, 88.23, 84.13, 91.40, 71.13)),
    Row(BERT, "BERT, mean", 84.94, SIMCSE_TRANSFER, (78.66, 86.25, 94.37, 88.66, 84.40, 92.80, 69.54)),
    Row(BERT, "IS-BERT", 85.83, SIMCSE_TRANSFER, (81.09, 87.18, 94.96, 88.75, 85.96, 88.64, 74.24)),
    Row(BERT, "SimCSE", 85.81, SIMCSE_TRANSFER, (81.18, 86.46, 94.45, 88.88, 85.50, 89.80, 74.43)),
    Row(BERT, "SimCSE with MLM", 86.64, SIMCSE_TRANSFER, (82.92, 87.23, 95.71, 88.73, 86.81, 87.01, 78.07)),
    Row(BERT, "WhitenedCSE", 86.40, f"{WHITENED}, Table 2; the backbone follows from the order of the rows"),
    Row(BERT_LARGE, "WhitenedCSE", 88.67, f"{WHITENED}, Table 2; the backbone was not verified"),
    Row(ROBERTA, "SimCSE", 84.84, SIMCSE_TRANSFER, (81.04, 87.74, 93.28, 86.94, 86.60, 84.60, 73.68)),
    Row(ROBERTA, "SimCSE with MLM", 86.90, SIMCSE_TRANSFER, (83.37, 87.76, 95.05, 87.16, 89.02, 90.80, 75.13)),
    Row(ROBERTA_LARGE, "SimCSE", 86.11, SIMCSE_TRANSFER, (82.74, 87.87, 93.66, 88.22, 88.58, 92.00, 69.68)),
    Row(ROBERTA_LARGE, "SimCSE with MLM", 87.57, SIMCSE_TRANSFER, (84.66, 88.56, 95.43, 87.50, 89.46, 95.00, 72.41)),
)


def reported(backbone: str) -> str | None:
    """Return the papers' name of a backbone, such as `BERT-base` for `bert-base-uncased`.

    Return None if no paper reports results for this backbone.
    """
    return REPORTED.get(_own_name(backbone))


def family(backbone: str) -> str | None:
    """Return the papers' name of the most similar backbone, such as `BERT-base` for `bert-base-cased`.

    Return None if the papers report no similar backbone.
    """
    name = _own_name(backbone)
    beginnings = [each for each in FAMILIES if name == each or name.startswith(f"{each}-")]
    return FAMILIES[max(beginnings, key=len)] if beginnings else None


def _own_name(backbone: str) -> str:
    return backbone.rsplit("/", 1)[-1].lower()


def papers(backbones: Iterable[str]) -> dict[str, Any]:
    """Return the papers' results for the given backbones as JSON, with one part for STS and one for transfer.

    Each part has the names of the tasks, the rows of the most similar backbones (see `nearest_rows`), and the names of
    the given backbones for which these rows have no results.
    """
    backbones = list(backbones)

    def part(tasks: Sequence[str], known: Sequence[Row]) -> dict[str, Any]:
        rows = nearest_rows(known, backbones)
        return {"tasks": [*tasks], "rows": [*map(asdict, rows)], "unreported": unreported(backbones, rows)}

    return {"sts": part(STS, STS_ROWS), "transfer": part(TRANSFER, TRANSFER_ROWS)}


def nearest_rows(rows: Sequence[Row], backbones: Iterable[str]) -> list[Row]:
    """Select the papers' `rows` for the reported backbones that `family` returns for `backbones`.

    If there are no such rows, select the rows of BERT-base. Selected rows may thus belong to a merely similar backbone.
    The function `unreported` names those of `backbones` that have no rows of their own.
    """
    families = set(map(family, backbones))
    return [row for row in rows if row.backbone in families] or [row for row in rows if row.backbone == BERT]


def unreported(backbones: Iterable[str], rows: Iterable[Row]) -> list[str]:
    """Return the names of the `backbones` for which `rows` have no results. Similar backbones do not count."""
    known = {row.backbone for row in rows}
    return sorted({name or "an unnamed backbone" for name in backbones if reported(name) not in known})
