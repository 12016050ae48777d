"""Tables of an evaluation for a terminal."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any


def tables(evaluation: Mapping[str, Any]) -> str:
    """Format a table for each evaluated task, with blank lines between."""
    made = [f"{evaluation['subject'].get('name')}: {_described(evaluation['subject'])}"]
    for name, write in WRITERS.items():
        if name in evaluation:
            made.append("\n".join(write(evaluation[name])))
    return "\n\n".join(made)


def aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """Align columns to their widest cell, the first column to the left and the others to the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(
            cell.ljust(width) if i == 0 else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]


def _described(subject: Mapping[str, Any]) -> str:
    known = ("kind", "pooling", "transform", "dim", "engine", "precision", "device")
    return ", ".join(f"{name} {subject[name]}" for name in known if subject.get(name) is not None)


def _sts(scores: Mapping[str, Any]) -> Iterator[str]:
    tasks = scores["tasks"]
    whole = "mean" in scores
    rows = [["", *tasks, *(["mean"] if whole else [])]]
    for kind in ("spearman", "pearson"):
        for over in ("all", "mean", "wmean"):
            values = [tasks[task][kind][over] for task in tasks]
            if whole:
                values.append(scores["mean"] if (kind, over) == ("spearman", "all") else sum(values) / len(values))
            rows.append([f"{kind.capitalize()}, {OVER[over]}", *(f"{value:.2f}" for value in values)])
    yield from aligned(rows)


def _transfer(scores: Mapping[str, Any]) -> Iterator[str]:
    tasks = scores["tasks"]
    rows = [
        ["Transfer", *tasks],
        ["accuracy", *(f"{task['accuracy']:.2f}" for task in tasks.values())],
        ["on dev", *(f"{task['dev_accuracy']:.2f}" for task in tasks.values())],
        ["F1", *(f"{task['f1']:.2f}" if task["f1"] is not None else "" for task in tasks.values())],
    ]
    if "mean" in scores:
        rows = [[*row, cell] for row, cell in zip(rows, ["mean", f"{scores['mean']:.2f}", "", ""], strict=True)]
    yield from aligned(rows)


def _retrieval(scores: Mapping[str, Any]) -> Iterator[str]:
    rows = [["Retrieval", "nDCG@10", "MRR@10", "Recall@100", "queries", "documents", "through"]]
    for name, score in scores.items():
        measures = [f"{score[measure]:.2f}" for measure in ("ndcg10", "mrr10", "recall100")]
        rows.append([name, *measures, str(score["queries"]), str(score["documents"]), score["through"]])
    yield from aligned(rows)
    for name, score in scores.items():
        if missing := score.get("missing"):
            yield f"{name}: {missing} judgements name relevant documents that the collection lacks"


def _geometry(found: Mapping[str, Any]) -> Iterator[str]:
    rows = [
        ["Geometry", ""],
        ["alignment", f"{found['alignment']:.4f}"],
        ["uniformity", f"{found['uniformity']:.4f}"],
        ["mean cosine", f"{found['random_cosine_mean']:.4f}"],
        ["effective rank", f"{found['spectrum']['effective_rank']:.1f} of {found['dim']}"],
        ["effective rank, centred", f"{found['spectrum_centred']['effective_rank']:.1f}"],
        ["rank of the correlations", str(found["correlation_rank"])],
    ]
    yield from aligned(rows)


def _speed(found: Mapping[str, Any]) -> Iterator[str]:
    latency = found["latency_ms"]
    yield (
        f"{found['texts']} texts in {found['seconds']} s, {found['texts_per_second']:.0f} a second; "
        f"one alone {latency['p50']:.1f} ms (median), {latency['p95']:.1f} ms (95th percentile)"
    )


def _precision_rows(found: Mapping[str, Any]) -> Iterator[str]:
    rows = [["Precision", "STS mean", "least cosine", "to", "texts/s", "MB"]]
    for name, one in found.items():
        cosine = f"{one['least_cosine']:.6f}"
        speed, size = f"{one['texts_per_second']:.0f}", f"{one['bytes'] / 1e6:.1f}"
        rows.append([name, f"{one['sts_mean']:.2f}", cosine, one["cosine_to"], speed, size])
    yield from aligned(rows)


OVER = {"all": "all pairs", "mean": "mean of subsets", "wmean": "by their size"}
WRITERS = {
    "sts": _sts,
    "transfer": _transfer,
    "retrieval": _retrieval,
    "geometry": _geometry,
    "precisions": _precision_rows,
    "speed": _speed,
}
