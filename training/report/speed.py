"""The cost of an encoder: time and size, and the effect of lower precision on scores."""

from __future__ import annotations

from collections.abc import Sequence
from xml.etree.ElementTree import Element

from training.report.judged import Judged
from training.report.markup import ABSENT, Part, element, megabytes, number, row, section, table
from training.report.plots import Bar, Caption, bars


def speed(judged: Sequence[Judged]) -> Element | None:
    """Show latency and throughput, and the precisions side by side."""
    timed = [each for each in judged if each.get("speed")]
    rounded = [each for each in judged if each.get("precisions")]
    if not timed and not rounded:
        return None
    return section(
        "speed",
        "Latency and size",
        _times(timed),
        _precisions(rounded),
        element("div", _throughput(rounded), class_="figures"),
    )


def _times(judged: Sequence[Judged]) -> Part:
    if not judged:
        return None
    rows = [
        row(
            each.name,
            number(each.get("speed", "latency_ms", "p50"), 1),
            number(each.get("speed", "latency_ms", "p95"), 1),
            number(each.get("speed", "texts_per_second"), 0),
            number(each.get("speed", "texts"), 0),
            number(each.get("speed", "seconds"), 1),
            megabytes(each.get("subject", "bytes")) or ABSENT,
            kind="own",
        )
        for each in judged
    ]
    head = ["Encoder", "Median, ms", "95th percentile, ms", "Texts/s", "Texts", "Seconds", "Size"]
    return table("Latency, throughput and size", head, [rows])


def _precisions(judged: Sequence[Judged]) -> Part:
    if not judged:
        return None
    bodies = [
        [
            row(
                f"{each.name}, {precision}",
                number(found.get("sts_mean")),
                number(found.get("least_cosine"), 5),
                found.get("cosine_to") or ABSENT,
                number(found.get("texts_per_second"), 0),
                megabytes(found.get("bytes")) or ABSENT,
            )
            for precision, found in each.get("precisions").items()
        ]
        for each in judged
    ]
    head = ["Precision", "STS mean", "Least cosine", "To", "Texts/s", "Size"]
    return table("Precisions", head, bodies)


def _throughput(judged: Sequence[Judged]) -> Part:
    known = [
        Bar(precision if len(judged) == 1 else f"{precision}, {each.name}", found["texts_per_second"], each.mark)
        for each in judged
        for precision, found in each.get("precisions").items()
        if found.get("texts_per_second") is not None
    ]
    if not known:
        return None
    caption = Caption("throughput", "Throughput by precision.", "Texts embedded in a second. Bars begin at zero.")
    return bars(caption, "Texts per second", known, digits=0)
