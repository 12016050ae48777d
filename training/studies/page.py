"""Page of a study: self-contained HTML with the tables of each metric, followed by figures."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from statistics import fmean
from xml.etree.ElementTree import Element

from training.evaluation.report import markup, svg
from training.evaluation.report.geometry import QUANTITIES, nearest_series
from training.evaluation.report.markup import element, number, section
from training.evaluation.report.page import document
from training.evaluation.report.plots import Bar, Plane, Series, bars, lines, points
from training.evaluation.report.svg import UNMARKED, WIDTH, Axis, Caption, Frame, linear, sizes
from training.studies import table
from training.studies.results import Result
from training.studies.summary import DECIMALS, Row, Summary
from training.studies.table import explanation, grid
from training.studies.trial import SEED, label_of


def page(name: str, about: str, *summaries: Summary) -> str:
    """Return the HTML page of a study: the tables of each summary, a table of the vectors' geometry, and figures.

    The geometry is from the first summary.
    """
    geometry = table.geometry_grid(summaries[0])
    main = [
        *(part for summary in summaries for part in (_result(summary), _tasks(summary))),
        _section("geometry", "Geometry of the vectors", geometry, table.EXPLANATION) if geometry else None,
        section("figures", "Figures", element("div", *figures(*summaries), class_="figures")),
    ]
    return document(f"{name}: study", [element("h1", name), element("p", about) if about else None], main)


def _result(summary: Summary) -> Element:
    metric, against = summary.metric, summary.against
    caption = f"Every arm against {against}, {metric.unit}"
    return _section(metric.name, metric.title, grid(summary), explanation(summary), caption=caption, own=against)


def _tasks(summary: Summary) -> Element | None:
    lines, said = table.task_grid(summary), table.task_explanation(summary)
    return _section(f"{summary.metric.name}-tasks", "Task by task", lines, said) if lines else None


def _section(
    name: str, title: str, lines: Sequence[Sequence[str]], said: str, *, caption: str = "", own: str = ""
) -> Element:
    """Return a section of the page: a table of `lines`, followed by the text `said`.

    The first line is the head of the table. The row with the label `own`, the baseline, is highlighted.
    """
    head, *arms = lines
    rows = [
        markup.row(label, *(cell.replace("-", "−") for cell in cells), kind="own" if label == own else "")
        for label, *cells in arms
    ]
    columns = [column[0].upper() + column[1:] for column in head]
    return section(name, title, markup.table(caption or title, columns, [rows]), element("p", said))


# Figures of a study. Every seed is shown as a dot, so that means do not look more certain than they are.

LINE_HEIGHT = 18
"""Height of an arm's row in a figure."""
NAME_LENGTH = 27
"""Maximum characters of an arm's name."""
MAX_ARMS = 8
"""Maximum number of arms in a figure with labels beside the data."""
LOGARITHMIC_FROM = 16.0
"""Minimum ratio of the largest to the smallest value for a logarithmic axis."""

OWN_FIGURES = {"STSB": "STS-B", "SICKR": "SICK-R"}
"""Tasks that have figures of their own, as in DCLR's figures 5 and 6."""


def figures(summary: Summary, *others: Summary) -> list[Element]:
    """Draw every figure for which there are results.

    Nearest neighbours, learning curves and geometry are drawn only once, from the first summary.
    """
    compared = [part for each in (summary, *others) for part in (_arms(each), *_gains(each), *_sweeps(each))]
    return [*compared, *_nearest(summary), *_curves(summary), *_planes(summary)]


def _arms(summary: Summary) -> Element:
    """Draw a row for each arm: its mean with the bootstrap interval over test examples, and the value of each seed."""
    rows, metric = summary.rows, summary.metric
    spread = ", and the range of 95 % of its values on resampled test sets" if any(row.interval for row in rows) else ""
    caption = Caption(
        f"{metric.name}-arms",
        f"{summary.title} of each arm.",
        f"Grey: each seed. Coloured: the mean{spread}. Dashed: the arm {summary.against!r}.",
    )
    reference = next(row.mean.mean for row in rows if row.label == summary.against)
    reach = [reference, *(value for row in rows for value in (row.mean.mean, *(row.interval or ()), *row.mean.values))]
    frame = Frame(linear(metric.unit, reach), UNMARKED, left=165, right=44, height=LINE_HEIGHT * len(rows))
    parts = [*(svg.upright(frame, tick, "grid") for tick in frame.x.ticks), svg.upright(frame, reference, "reference")]
    labels = svg.short([row.label for row in rows], NAME_LENGTH)
    for place, (row, name) in enumerate(zip(rows, labels, strict=True)):
        y = frame.top + LINE_HEIGHT * (place + 0.5)
        parts += [svg.text((frame.left - 8, y + 4), name, "name", anchor="end"), *_arm(row, frame, y)]
    return svg.figure(caption, frame, [*parts, *frame.below()])


def _arm(row: Row, frame: Frame, y: float) -> Iterable[Element]:
    if row.interval:
        low, high = map(frame.across, row.interval)
        yield svg.line((low, y), (high, y), "spread mark-0")
    for each, value in zip(row.results, row.mean.values, strict=True):
        tooltip = f"{row.label}, seed {each.axes.get(SEED, '–')}: {number(value)}"
        yield svg.dot((frame.across(value), y), "paper", tooltip)
    mean = number(row.mean.mean)
    yield svg.dot((frame.across(row.mean.mean), y), "mark-0", f"{row.label}: {mean}")
    yield svg.text((WIDTH, y + 4), mean, "value", anchor="end")


def _gains(summary: Summary) -> Iterable[Element]:
    """Draw each arm's gain over the baseline as a bar from zero, like the papers' figures of ablations."""
    gains = [
        Bar(row.label, row.gain.difference, svg.mark(0), (row.gain.low, row.gain.high))
        for row in summary.rows
        if row.gain
    ]
    if gains:
        caption = Caption(
            f"{summary.metric.name}-gains",
            f"{summary.title}: gain over {summary.against}.",
            f"Whiskers: the interval {_kinds(summary)}; an interval that includes zero shows no difference.",
        )
        yield bars(caption, f"Difference of {summary.metric.unit}", gains, digits=DECIMALS)


def _kinds(summary: Summary) -> str:
    """Return a phrase that says how the intervals of the gains were computed."""
    over_seeds = {row.gain.better is None for row in summary.rows if row.gain}
    words = {False: f"of a paired bootstrap of the {summary.metric.examples}", True: "of Welch's t-test over seeds"}
    return ", or ".join(words[kind] for kind in sorted(over_seeds))


def _sweeps(summary: Summary) -> Iterable[Element]:
    """Draw the scores against the values of each numeric axis of the study, except the seed.

    An axis is a setting with several values. Curves with a single point are left out. The papers show such data in
    DCLR's figures 5 and 6, ImSimCSE's table 5, WhitenedCSE's tables 4 to 6 and GS-InfoNCE's table 3.
    """
    names = dict.fromkeys(name for row in summary.rows for name in row.results[0].axes if name != SEED)
    for name in names:
        swept: dict[str, list[tuple[float, Row]]] = {}
        for row in summary.rows:
            value = row.results[0].axes.get(name)
            if isinstance(value, int | float) and not isinstance(value, bool):
                others = {axis: value for axis, value in row.results[0].axes.items() if axis != name}
                swept.setdefault(label_of(row.results[0].arm, others), []).append((float(value), row))
        swept = {rest: sorted(of, key=lambda each: each[0]) for rest, of in swept.items() if len(of) > 1}
        if not swept:
            continue
        yield _sweep(summary, name, swept)
        for task in OWN_FIGURES:
            if task in summary.tasks:
                yield _sweep(summary, name, swept, task)


def _sweep(
    summary: Summary, axis: str, swept: Mapping[str, Sequence[tuple[float, Row]]], task: str | None = None
) -> Element:
    """Draw the mean over tasks, or the score of one task, against the values of an axis of the study.

    `swept` has the points of each curve, by the curve's name. A point is a value of the axis and a row of the summary.
    """
    figure, title = (task.lower(), OWN_FIGURES[task]) if task else (summary.metric.name, summary.title)
    unit = summary.metric.unit

    def seeds(row: Row) -> Sequence[float]:
        return [each.scores[task] for each in row.results] if task else row.mean.values

    series = [
        Series(rest, svg.mark(place), [(x, fmean(seeds(row))) for x, row in of])
        for place, (rest, of) in enumerate(swept.items())
    ]
    arms = [(x, row, svg.mark(place)) for place, of in enumerate(swept.values()) for x, row in of]
    spreads = [(x, row.interval, mark) for x, row, mark in arms if row.interval and not task]

    def behind(frame: Frame) -> list[Element]:
        """Draw the interval of each mean, and a dot for the score of each seed. The means are later drawn on top."""
        upright = [(frame.across(x), frame.up(low), frame.up(high), mark) for x, (low, high), mark in spreads]
        return [svg.line((x, low), (x, high), f"spread {mark}") for x, low, high, mark in upright] + [
            svg.dot((frame.across(x), frame.up(y)), "paper", f"{row.label}: {y:.2f}")
            for x, row, _ in arms
            for y in seeds(row)
        ]

    reach = [y for _, row, _ in arms for y in seeds(row)] + [end for _, ends, _ in spreads for end in ends]
    plane = Plane(_scale(axis, [x for x, _, _ in arms]), linear(unit, reach), behind)
    of = f", {series[0].name}" if len(series) == 1 else ""
    said = "Grey: each seed. Lines: their means."
    said += " Vertical lines: the range of 95 % of the means on resampled test sets." if spreads else ""
    return lines(Caption(f"{figure}-over-{axis}", f"{title} over {axis}{of}.", said), plane, series, dots=True)


def _nearest(summary: Summary) -> Iterable[Element]:
    """Draw a plot for each arm, with the batch size on the x-axis, like figure 1 of GS-InfoNCE.

    The y-axis has the mean cosines of sentences to each of their four nearest neighbours in a batch.
    """
    measured = {
        row.label: _by_size([each.nearest_cosines for each in row.results])
        for row in summary.rows
        if all(len(each.nearest_cosines) > 1 for each in row.results)  # A line needs two batch sizes.
    }
    cosines = [cosine for by_size in measured.values() for of in by_size.values() for cosine in of]
    for place, (label, by_size) in enumerate(measured.items()):
        caption = Caption(f"nearest-{place}", f"Nearest in-batch negatives, {label}.", "Mean cosines, over seeds.")
        plane = Plane(sizes("Batch size, sentences", map(int, by_size)), linear("Cosine", cosines))
        yield lines(caption, plane, nearest_series(by_size), dots=True)


def _by_size(found: Sequence[Mapping[str, Sequence[float]]]) -> dict[str, list[float]]:
    """Return the means over seeds of the cosines to the nearest neighbours in a batch, by batch size.

    `found` has one mapping for each seed. A mapping has, for each batch size, the cosines to the nearest neighbour, the
    second nearest, and so on. The result has the same form.
    """
    return {size: [fmean(values) for values in zip(*(each[size] for each in found), strict=True)] for size in found[0]}


def _scale(name: str, values: Sequence[float]) -> Axis:
    """Return a logarithmic axis with ticks at `values` if these are positive and far apart, else a linear axis."""
    ticks = sorted(set(values))
    if ticks[0] > 0 and ticks[-1] / ticks[0] >= LOGARITHMIC_FROM:
        shown = [f"{100 * tick:g} %" if name == "fraction" else f"{tick:g}" for tick in ticks]
        return Axis(name, tuple(ticks), tuple(shown), logarithmic=True)
    return linear(name, values)


def _curves(summary: Summary) -> Iterable[Element]:
    """Draw the learning curves of the best arms, as in DCLR's figure 4. Each point is a mean over seeds."""
    shown = _best(summary)
    for name, (title, axis, _) in QUANTITIES.items():
        series = [
            Series(row.label, svg.mark(place), points)
            for place, row in enumerate(shown)
            if len(points := _over_steps(row.results, name)) > 1
        ]
        if series:
            steps, values = zip(*(point for each in series for point in each.points), strict=True)
            caption = Caption(f"curve-{name}", f"{title} while training.", _means(summary))
            yield lines(caption, Plane(linear("Step", steps, from_zero=True, most=5), linear(axis, values)), series)


def _over_steps(results: Sequence[Result], name: str) -> list[tuple[float, float]]:
    """Return a pair for each step that the learning curves of all results contain.

    A pair is the step and the measured value called `name`, averaged over the results.
    """
    by_step = [
        {float(point["step"]): float(point[name]) for point in result.curve if point.get(name) is not None}
        for result in results
    ]
    shared = set.intersection(*map(set, by_step))
    return [(step, fmean(values[step] for values in by_step)) for step in sorted(shared)]


def _planes(summary: Summary) -> Iterable[Element]:
    """Plot alignment against uniformity of the final encoders, as Wang and Isola do."""
    series = [
        Series(row.label, svg.mark(place), [(fmean(uniformity), fmean(alignment))])
        for place, row in enumerate(_best(summary))
        if (uniformity := [each.uniformity for each in row.results if each.uniformity is not None])
        and (alignment := [each.alignment for each in row.results if each.alignment is not None])
    ]
    if not series:
        return
    across, up = zip(*(point for each in series for point in each.points), strict=True)
    said = f"Measured on STS-B dev. Lower is better for both. {_means(summary)}"
    caption = Caption("plane", "Alignment and uniformity.", said)
    yield points(caption, Plane(linear("Uniformity", across, most=5), linear("Alignment", up)), series)


def _means(summary: Summary) -> str:
    """Return a sentence for a figure's caption: the values are means over seeds.

    If there are more than `MAX_ARMS` arms, the sentence also says that the figure shows only the best of them.
    """
    return "Means over seeds." if len(summary.rows) <= MAX_ARMS else f"Means over seeds, of the {MAX_ARMS} best arms."


def _best(summary: Summary) -> list[Row]:
    """Return the `MAX_ARMS` rows with the highest means, in the study's order."""
    best = sorted(summary.rows, key=lambda row: -row.mean.mean)[:MAX_ARMS]
    return [row for row in summary.rows if row in best]
