"""Sections about the geometry of the embeddings on the sphere, and about the learning curve."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from xml.etree.ElementTree import Element

from training.evaluation.report import svg
from training.evaluation.report.evaluated import Evaluated
from training.evaluation.report.markup import ABSENT, Part, element, number, row, section, table
from training.evaluation.report.plots import Extra, Plane, Series, histogram, lines, points
from training.evaluation.report.svg import WIDTH, Caption, Frame, decades, linear, sizes

MEASURES = {
    "sentences": ("Sentences", 0),
    "alignment": ("Alignment, pairs scored above 4", 3),
    "alignment_at_least_4": ("Alignment, pairs scored 4 or more", 3),
    "uniformity": ("Uniformity", 3),
    "random_cosine_mean": ("Cosine of different sentences, mean", 3),
    "random_cosine_sd": ("Cosine of different sentences, standard deviation", 3),
    "spectrum.effective_rank": ("Effective rank", 1),
    "spectrum_centred.effective_rank": ("Effective rank, centred", 1),
    "correlation_rank": ("Rank of the correlation matrix", 0),
    "correlation_rank_of_64": ("Rank of the correlation matrix of 64 sentences", 1),
}
"""Names and numbers of decimals of the measures, by key."""

DECADES = 6
"""Number of decades of singular values in the plot, from the largest value down. Smaller values are rounding errors."""


def geometry(judged: Sequence[Evaluated]) -> Element | None:
    """Make the section about geometry: a table of measures, and a plot of each distribution.

    Return None if no evaluation measured the geometry.
    """
    measured = [each for each in judged if each.get("geometry")]
    if not measured:
        return None
    rows = [
        row(title, *(number(each.get("geometry", *name.split(".")), digits) for each in measured))
        for name, (title, digits) in MEASURES.items()
        if any(each.get("geometry", *name.split(".")) is not None for each in measured)
    ]
    if any(each.get("geometry", "sentences_of") for each in measured):
        rows.append(row("Sentences measured", *(each.get("geometry", "sentences_of") or ABSENT for each in measured)))
    figures = [_plane(measured), _spectrum(measured), *_cosines(measured), _nearest(measured)]
    return section(
        "geometry",
        "Geometry",
        table("Geometry of the embeddings", ["Measure", *(each.name for each in measured)], [rows]) if rows else None,
        element("div", *figures, class_="figures"),
    )


def _plane(judged: Sequence[Evaluated]) -> Part:
    """Plot alignment against uniformity (Wang and Isola 2020)."""
    known = [
        Series(each.name, each.mark, [(each.get("geometry", "uniformity"), each.get("geometry", "alignment"))])
        for each in judged
        if each.get("geometry", "uniformity") is not None and each.get("geometry", "alignment") is not None
    ]
    if not known:
        return None
    uniformity, alignment = zip(*(each.points[0] for each in known), strict=True)
    return points(
        Caption(
            "plane",
            "Alignment and uniformity.",
            "Lower is better for both, so the best corner is bottom left. Each axis shows the range of the data.",
        ),
        Plane(linear("Uniformity", uniformity, most=5), linear("Alignment", alignment, most=5)),
        known,
    )


def _spectrum(judged: Sequence[Evaluated]) -> Part:
    """Plot the singular values of the centred embeddings as shares of their sum."""
    known = {each.name: each.get("geometry", "spectrum_centred", "values") or [] for each in judged}
    least = 10.0**-DECADES
    spectra = {name: [share for share in of if share > 0 and share >= of[0] * least] for name, of in known.items()}
    series = [
        Series(each.name, each.mark, [(i, share) for i, share in enumerate(spectra[each.name], start=1)])
        for each in judged
        if len(spectra[each.name]) > 1
    ]
    if not series:
        return None
    widths = sorted({*map(len, known.values())} - {0})
    shares = [share for each in series for _, share in each.points]

    def reference(frame: Frame) -> list[Element]:
        end, parts = WIDTH - frame.right, []
        for width in widths:
            y = frame.up(1 / width)
            parts.append(svg.line((frame.left, y), (end, y), "reference"))
            parts.append(svg.text((end, y - 4), f"isotropic, D = {width}", "tick", anchor="end"))
        return parts

    return lines(
        Caption(
            "spectrum",
            "Singular values.",
            "Singular values of the centred embeddings in descending order, as shares of their sum, on a logarithmic "
            f"axis. Dashed: D equal values. Values more than {DECADES} powers of ten below the largest are left out.",
        ),
        Plane(
            linear("Rank of the singular value", (1, *map(float, widths)), from_zero=True),
            decades("Share of the sum", [*shares, *(1 / width for width in widths)]),
            reference,
        ),
        series,
    )


def _cosines(judged: Sequence[Evaluated]) -> list[Element]:
    """Draw one histogram for each evaluation that measured cosines. All histograms have the same axes."""
    known = [each for each in judged if each.get("geometry", "cosine_histogram", "share")]
    edges = [edge for each in known for edge in each.get("geometry", "cosine_histogram", "edges")]
    shares = [share for each in known for share in each.get("geometry", "cosine_histogram", "share")]
    return [
        histogram(
            Caption(
                f"cosines-{i}",
                f"Cosines of different sentences{f', {each.name}' if len(judged) > 1 else ''}.",
                "Share of the pairs in each bin. "
                f"Over all pairs: mean {number(each.get('geometry', 'random_cosine_mean'), 3)}, "
                f"standard deviation {number(each.get('geometry', 'random_cosine_sd'), 3)}.",
            ),
            Plane(linear("Cosine", edges, most=6), linear("Share of the pairs", shares, from_zero=True)),
            each.get("geometry", "cosine_histogram", "edges"),
            Series(each.name, each.mark, [(0.0, y) for y in each.get("geometry", "cosine_histogram", "share")]),
        )
        for i, each in enumerate(known)
    ]


def _nearest(judged: Sequence[Evaluated]) -> Part:
    """Plot the cosines of the four nearest in-batch neighbours against batch size."""
    series = nearest_series(judged[0].get("geometry", "nearest_cosines") or {}) if len(judged) == 1 else []
    shown = "each of" if series else "the mean of"
    series = series or [
        Series(each.name, each.mark, _by_size(known))
        for each in judged
        if (known := each.get("geometry", "top4_cosine"))
    ]
    measured = {int(size) for each in series for size, _ in each.points}
    if len(measured) < 2:
        return None
    cosines = [cosine for each in series for _, cosine in each.points]
    return lines(
        Caption(
            "nearest",
            "Nearest in-batch negatives.",
            f"Mean cosine of a sentence to {shown} the four most similar others of its batch. The axis of the batch "
            "size is logarithmic.",
        ),
        Plane(sizes("Batch size, sentences", measured), linear("Cosine", cosines)),
        series,
        dots=True,
    )


def nearest_series(cosines: Mapping[str, Sequence[float]]) -> list[Series]:
    """Make a series for the nearest neighbour in the batch, one for the second nearest, and so on.

    The points are (batch size, cosine), as in GS-InfoNCE's Figure 1. `cosines` maps each batch size to the mean cosines
    of a sentence to its neighbours, nearest first.
    """
    return [
        Series(f"{place + 1}. nearest", svg.mark(place), _by_size({size: of[place] for size, of in cosines.items()}))
        for place in range(min(map(len, cosines.values()), default=0))
    ]


def _by_size(cosines: Mapping[str, float]) -> list[tuple[float, float]]:
    return sorted((float(size), cosine) for size, cosine in cosines.items())


# The learning curve: measurements of the encoder over its training steps.

QUANTITIES = {
    "stsb_dev_spearman": ("STS-B dev", "Spearman × 100", "Higher is better."),
    "sickr_dev_spearman": ("SICK-R dev", "Spearman × 100", "Higher is better."),
    "sts_dev_spearman": ("Mean of STS-B and SICK-R dev", "Spearman × 100", "Higher is better."),
    "dev_spearman": ("Own development pairs", "Spearman × 100", "Higher is better."),
    "known_item_ndcg10": ("Known items", "nDCG@10 × 100", "Titles and sentences retrieve passages. Higher is better."),
    "self_retrieval_mrr10": (
        "Self-retrieval",
        "MRR@10",
        "One half of a sentence retrieves the other half. Higher is better.",
    ),
    "uniformity": ("Uniformity", "Uniformity", "Lower is better."),
    "alignment": ("Alignment", "Alignment", "Lower is better."),
    "effective_rank": (
        "Effective rank",
        "Effective rank",
        "Number of directions that the vectors use, at most their width.",
    ),
    "removed_share": (
        "Removed negatives",
        "Share of the in-batch negatives",
        "Negatives that DCLR's weights remove, on average since the previous evaluation.",
    ),
}
"""Titles, axis labels and explanations of the learning curve's figures, by key."""


def curve(judged: Sequence[Evaluated]) -> Element | None:
    """Make the section about the learning curve, or return None if no evaluation has one.

    Each quantity has its own plot, because two scales in one plot would suggest a relation.
    """
    figures = [figure for name in QUANTITIES if (figure := _panel(name, judged)) is not None]
    if not figures:
        return None
    return section("curve", "Learning curve", element("div", *figures, class_="figures"))


def _panel(name: str, judged: Sequence[Evaluated]) -> Part:
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


def _points(judged: Evaluated, name: str) -> list[tuple[float, float]]:
    """Return the points (step, value) of a quantity, in the order of the steps."""
    curve = judged.get("curve") or []
    known = [point for point in curve if point.get(name) is not None and point.get("step") is not None]
    return sorted((float(point["step"]), float(point[name])) for point in known)


def _said(chosen: Sequence[tuple[Evaluated, int]]) -> str:
    """Return the sentence of a plot's caption about the dashed lines, which mark the chosen steps.

    The sentence names the steps only if there are several. A single step is labelled in the plot. Without a chosen
    step, the result is "".
    """
    if len(chosen) < 2:
        return "Dashed: the chosen step. " if chosen else ""
    steps = ", ".join(f"{step} of {each.name}" for each, step in chosen)
    return f"Dashed: the chosen steps, {steps}. "


def _chosen(chosen: Sequence[tuple[Evaluated, int]]) -> Extra:
    """Return a function that draws a vertical line at each chosen step. If there is only one line, it is labelled."""

    def drawn(frame: Frame) -> list[Element]:
        marks = [svg.upright(frame, step, f"chosen {each.mark}") for each, step in chosen]
        if len(chosen) == 1:
            ((each, step),) = chosen
            side, anchor = (-5, "end") if frame.x.at(step) > 0.5 else (5, "start")
            at = (frame.across(step) + side, frame.top - 3)
            marks.append(svg.text(at, f"step {step}", f"name {each.mark}", anchor=anchor))
        return marks

    return drawn
