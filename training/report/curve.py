"""The learning curve: measurements of the encoder over its training steps."""

from __future__ import annotations

from collections.abc import Sequence
from xml.etree.ElementTree import Element

from training.report import svg
from training.report.axes import linear
from training.report.judged import Judged
from training.report.markup import Part, element, section
from training.report.plots import Caption, Extra, Plane, Series, lines
from training.report.svg import Frame

QUANTITIES = {
    "stsb_dev_spearman": ("STS-B dev", "Spearman × 100", "Better the higher."),
    "sickr_dev_spearman": ("SICK-R dev", "Spearman × 100", "Better the higher."),
    "sts_dev_spearman": ("Mean of STS-B and SICK-R dev", "Spearman × 100", "Better the higher."),
    "dev_spearman": ("Own development pairs", "Spearman × 100", "Better the higher."),
    "known_item_ndcg10": ("Known items", "nDCG@10", "Titles and sentences find their passages. Better the higher."),
    "self_retrieval_mrr10": ("Self-retrieval", "MRR@10", "Half a sentence finds the other half. Better the higher."),
    "uniformity": ("Uniformity", "Uniformity", "Better the lower."),
    "alignment": ("Alignment", "Alignment", "Better the lower."),
    "effective_rank": (
        "Effective rank",
        "Effective rank",
        "How many directions the vectors fill, at most their width.",
    ),
    "removed_share": (
        "Removed negatives",
        "Share of the in-batch negatives",
        "What DCLR's weights leave out, mean since the evaluation before.",
    ),
}
"""Figures of the curve, with title, axis and direction."""


def curve(judged: Sequence[Judged]) -> Element | None:
    """Draw one panel for each quantity. Two scales in one plot would suggest a relation (DCLR's Figure 4 as panels)."""
    figures = [figure for name in QUANTITIES if (figure := _panel(name, judged)) is not None]
    if not figures:
        return None
    return section("curve", "Learning curve", element("div", *figures, class_="figures"))


def _panel(name: str, judged: Sequence[Judged]) -> Part:
    series = [Series(each.name, each.mark, points) for each in judged if len(points := _points(each, name)) > 1]
    if not series:
        return None
    title, axis, direction = QUANTITIES[name]
    steps = [step for each in series for step, _ in each.points]
    values = [value for each in series for _, value in each.points]
    chosen = [
        (each, step)
        for each in judged
        if (step := each.get("best_step")) is not None and min(steps) <= step <= max(steps)
    ]
    return lines(
        Caption(f"curve-{name}", f"{title}.", f"{direction} {_said(chosen)}The axis shows the range of the data."),
        Plane(linear("Step", steps, from_zero=True, most=5), linear(axis, values), _chosen(chosen)),
        series,
        dots=len(steps) <= 60,
    )


def _points(judged: Judged, name: str) -> list[tuple[float, float]]:
    """Return the points in the order of the steps, without steps that lack the quantity."""
    known = (
        (float(point["step"]), float(point[name]))
        for point in judged.get("curve") or []
        if point.get(name) is not None and point.get("step") is not None
    )
    return sorted(known)


def _said(chosen: Sequence[tuple[Judged, int]]) -> str:
    """Name the chosen step of each encoder, because several lines can't all be labelled."""
    if len(chosen) < 2:
        return "Dashed: the step that was chosen. " if chosen else ""
    steps = ", ".join(f"{step} of {each.name}" for each, step in chosen)
    return f"Dashed: the steps that were chosen, {steps}. "


def _chosen(chosen: Sequence[tuple[Judged, int]]) -> Extra:
    """Draw a line at each chosen step. A single line is labelled."""

    def drawn(frame: Frame) -> list[Element]:
        places = [(each.mark, step, frame.across(step)) for each, step in chosen]
        marks = [svg.line((x, frame.top), (x, frame.foot), f"chosen {kind}") for kind, _, x in places]
        if len(places) == 1:
            ((kind, step, x),) = places
            side, anchor = (-5, "end") if frame.x.at(step) > 0.5 else (5, "start")
            marks.append(svg.text((x + side, frame.top - 3), f"step {step}", f"name {kind}", anchor=anchor))
        return marks

    return drawn
