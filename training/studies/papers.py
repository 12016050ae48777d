"""The studies of this repository, named after the papers' tables and figures.

This module makes a list of the studies with their data and cost. It also makes a page for each paper, which compares
the paper's numbers with recorded results.
"""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean
from xml.etree.ElementTree import Element

from training.evaluation.labelled import TRANSFER_TASKS
from training.evaluation.pairs import STS_TASKS
from training.evaluation.report import svg
from training.evaluation.report.markup import ABSENT
from training.evaluation.report.plots import Bar, bars
from training.evaluation.report.sheet import description_of, sheet, title_of
from training.evaluation.report.svg import Caption
from training.studies.description import STUDIES, Study, read_toml
from training.studies.page import figures
from training.studies.plan import cpu_hours, gpu_hours
from training.studies.results import Result, RunRecord, place_of, read_results
from training.studies.summary import DECIMALS, SeedScores, summarise, welch
from training.studies.trial import StudyError, Trial, label_of

PAPERS = {
    "dclr": "DCLR (Zhou, Zhang, Zhao and Wen, ACL 2022)",
    "gs-infonce": "GS-InfoNCE (Wu, Gao, Su, Han, Wang and Hu, COLING 2022)",
    "whitenedcse": "WhitenedCSE (Zhuo, Sun, Wang, Zhu and Yang, ACL 2023)",
    "imsimcse": "ImSimCSE (Xu, Shao, Chen and Liu, SimCSE++, EMNLP 2023)",
}
"""Titles of the papers, by the folder of their studies."""
LEFT_OUT = STUDIES / "left_out.toml"
WIDTH = 110


@dataclass(frozen=True)
class LeftOut:
    """A table or figure of a paper that no study of this repository reproduces."""

    name: str
    paper: str
    about: str
    reason: str
    instead: str = ""
    """A command that reproduces a part of the table or figure."""


def studies(paper: str) -> list[Study]:
    """Read the studies of a paper, sorted by name.

    Raises:
        StudyError: a file is not a study.
    """
    return [Study.read(file) for file in sorted((STUDIES / paper).glob("*.toml"))]


def left_out(paper: str) -> list[LeftOut]:
    """Read the list of a paper's tables and figures that no study reproduces.

    Raises:
        StudyError: the file with the list can't be read, or is damaged.
    """
    named = read_toml(LEFT_OUT)
    try:
        return [LeftOut(name, **values) for name, values in named.items() if name.startswith(f"{paper}/")]
    except TypeError as error:
        raise StudyError(f"{LEFT_OUT}: {error}") from error


def describe_papers(papers: Sequence[str]) -> str:
    """Return a paragraph about each study of the papers, and about each table and figure without a study."""
    parts = []
    for paper in papers:
        parts.append(PAPERS[paper])
        parts += [_paragraph(study) for study in studies(paper)]
        parts += [_reason(each) for each in left_out(paper)]
    return "\n\n".join(parts)


def _paragraph(study: Study) -> str:
    here = study.cached_trials
    lines = [
        f"{study.name}: {study.about}",
        f"{study.paper}. Arms: {'; '.join(dict.fromkeys(trial.label for trial in here))}.",
        f"Here: {_needs(here)}, about {cpu_hours(here):.1f} hours of one core.",
    ]
    if study.published:
        published = study.as_published().trials()
        lines.append(f"--published: {_needs(published)}, about {gpu_hours(published):.1f} hours of an H100.")
    return _wrapped(lines)


def _needs(trials: Sequence[Trial]) -> str:
    backbones = ", ".join(dict.fromkeys(trial.config.backbone for trial in trials))
    data = "STS and transfer tasks" if any(trial.transfer for trial in trials) else "STS tasks"
    runs = len({trial.id for trial in trials})
    return f"{runs} runs from {backbones}; --data with the {data}, --corpus with a million sentences"


def _reason(each: LeftOut) -> str:
    lines = [f"{each.name}: {each.about}", f"{each.paper}. Not a study: {each.reason}"]
    return _wrapped(lines) + (f"\n  Instead: {each.instead}" if each.instead else "")


def _wrapped(lines: Sequence[str]) -> str:
    return "\n".join(
        textwrap.fill(line, WIDTH, initial_indent="  " * bool(number), subsequent_indent="  ", break_on_hyphens=False)
        for number, line in enumerate(lines)
    )


# Pages that compare a paper's tables and figures with recorded results.

PAGES = Path("docs/papers")
RECORDED = Path("benchmarks/results/studies")
"""Folder of the recorded results."""
RECORD = "papers.jsonl"
"""Name of the record of all studies of the papers."""
EARLIER = STUDIES / "recorded.toml"
"""List of the files with results that were recorded before studies had the papers' table numbers."""
BASELINE = "SimCSE"
"""Name of the baseline arm. If a study has no such arm, its first arm is the baseline."""
REPRODUCED, NOT_REPRODUCED, NOT_RUN = "reproduced", "not reproduced", "not run yet"
NO_NUMBER = "we could not check enough of the paper's numbers to compute a difference."
HEAD = ("Arm", "Paper", "Difference", "Here", "n", "Difference", "Verdict")

INTRODUCTION = """\
# {title}

This page compares the paper's tables and figures with the results that this repository has recorded.

The command `isosphere study pages` writes this page from benchmarks/results/studies/papers.jsonl. Do not edit the page.

| column | meaning |
|---|---|
| Paper | the number in the paper; `–` means that we could not check the number in a source |
| Here | the mean of the seven STS tasks in our runs, ± the standard deviation over seeds |
| n | the number of seeds |
| Difference | the difference to SimCSE (bold), and for our runs Welch's 95 % interval over the seeds of both arms |
| Verdict | *reproduced*: our difference has the paper's sign, and its interval does not contain 0 |

If a table has no SimCSE arm, its differences are to its first arm. If a table has several SimCSE arms, each difference
is to the SimCSE arm with the same settings.
"""


def _in_words(gain: float) -> str:
    return "better" if gain > 0 else "worse"


@dataclass(frozen=True)
class Line:
    """A line of a table: an arm of a study, with the score that the paper reports and the recorded result."""

    label: str
    own: bool
    """True if the arm is the baseline itself."""
    paper: float | None
    paper_gain: float | None
    here: SeedScores | None
    gain: float | None
    noise: float | None
    """Half the width of the interval of `gain` over seeds, or None for a single seed."""

    @property
    def verdict(self) -> str:
        """Verdict on the arm's gain over the baseline, in words.

        It is empty if the arm is the baseline itself and has a result.
        """
        if self.here is None:
            return NOT_RUN
        if self.gain is None:
            return "" if self.own else f"baseline {NOT_RUN}"
        if self.noise is None:
            return "one seed: no verdict"
        decided = abs(self.gain) >= self.noise and round(self.gain, DECIMALS)
        shown = _in_words(self.gain) if decided else "no difference shown"
        if self.paper_gain is None:
            return f"{shown}; no difference in the paper to compare with"
        return REPRODUCED if shown == _in_words(self.paper_gain) else f"{NOT_REPRODUCED}: {shown}"


def files_of(paper: str, results: Path = RECORDED) -> dict[str, str]:
    """Return the contents of a paper's files, by file name: its page in Markdown, and the page's drawings in SVG.

    Raises:
        StudyError: a study or a file of results is damaged.
    """
    record = RunRecord(results / RECORD)
    sections: list[str] = []
    drawings: dict[str, Sequence[Element]] = {}
    of_tables: list[Line] = []
    for study in studies(paper):
        for each, option in ((study, ""), (study.as_published(), " --published")):
            found = recorded(each, record)
            if option and not found:
                continue
            drawings[_file(each, option)] = _drawn(each, found)
            sections.append(_section(each, found, option, drawings[_file(each, option)]))
            if not option and _compares_with_simcse(each):
                of_tables += lines(each, found)
        sections += _earlier(study, results)
    compared = [line for line in dict.fromkeys(of_tables) if not line.own]  # Tables may share an arm.
    drawings[f"{paper}-differences.svg"] = differences = _differences(compared)
    parts = [INTRODUCTION.format(title=PAPERS[paper]), *_overview(paper, compared, differences), *sections]
    if without := left_out(paper):
        parts += ["## Without a study\n", *map(_left_out, without)]
    shown = {name: sheet(drawn) for name, drawn in drawings.items() if drawn}
    return {f"{paper}.md": "\n".join(parts), **shown}


def recorded(study: Study, record: RunRecord) -> list[Result]:
    """Return the recorded results of a study. The list is empty if no run of the study was recorded.

    Raises:
        StudyError: see `RunRecord.find`.
    """
    trials = study.cached_trials
    found = record.find(trials)
    return [Result.checked({**found[each.id], **place_of(each)}) for each in trials if each.id in found]


def lines(study: Study, results: Sequence[Result]) -> list[Line]:
    """Return a line of a table for each label of the study's runs, in the study's order.

    Raises:
        StudyError: see `Study.trials`.
    """
    baselines = _baselines(study)
    reported: Mapping[str, float] = study.reported.scores if study.reported else {}
    tasks = tuple(TRANSFER_TASKS if _by_transfer(study) else STS_TASKS)
    arms = {label: [each for each in results if each.label == label] for label in baselines}
    found = []
    for label, against in baselines.items():
        base, base_paper = _spread(_same_seeds(arms[against], arms[label]), tasks), reported.get(against)
        here, paper, own = _spread(arms[label], tasks), reported.get(label), label == against
        mine = _spread(_same_seeds(arms[label], arms[against]), tasks)
        compared = None if own or mine is None or base is None else (mine, base)
        found.append(
            Line(
                label=label,
                own=own,
                paper=paper,
                paper_gain=None if own or paper is None or base_paper is None else paper - base_paper,
                here=here,
                gain=compared and compared[0].mean - compared[1].mean,
                noise=compared and welch(*compared),
            )
        )
    return found


def verdict(found: Sequence[Line], untestable: str = "") -> str:
    """Return a sentence that says whether a table was reproduced, and how many of its arms were not run.

    Args:
        untestable: reason why the runs can't test the paper's result, or "" if there is none.
    """
    reported = [line for line in found if line.paper_gain is not None]
    compared = [line for line in reported if line.noise is not None]
    if not any(line.here for line in found):
        return "Not run yet."
    if untestable or not reported:
        said = f"Not testable here: {untestable or NO_NUMBER}"
    elif not compared:
        said = "No verdict yet: no difference of the paper that we could check has two seeds or more here."
    else:
        reproduced, undecided = sum(line.verdict == REPRODUCED for line in compared), len(reported) - len(compared)
        words = "Partly reproduced" if reproduced else "Not reproduced"
        if reproduced == len(reported):
            words = "Reproduced"
        elif undecided:
            words += " so far"
        rest = f" ({undecided} without a result of two seeds)" if undecided else ""
        said = f"{words}: our runs reproduce {reproduced} of {len(reported)} differences that we could check{rest}."
    missing = sum(line.here is None for line in found)
    return said + (f" Not run yet: {missing} of {len(found)} arms." if missing else "")


def _baselines(study: Study) -> dict[str, str]:
    """Return a dictionary from the label of each run to the label of its baseline, in the order of the study's runs.

    The baseline of a run is the SimCSE run with the same values of the study's axes. A SimCSE run is a run of the arm
    "SimCSE", or of an arm whose name begins with "SimCSE, ", such as "SimCSE, its authors' weights". If no SimCSE run
    has the same values, the baseline is the first SimCSE run. If there is no SimCSE run at all, it is the study's first
    run.
    """
    trials = {trial.label: trial for trial in study.cached_trials}
    arms = dict.fromkeys(trial.arm for trial in trials.values() if f"{trial.arm}, ".startswith(f"{BASELINE}, "))
    first = next((label for label, trial in trials.items() if trial.arm in arms), next(iter(trials)))
    return {
        label: next((at for arm in arms if (at := label_of(arm, trial.axes)) in trials), first)
        for label, trial in trials.items()
    }


def _by_transfer(study: Study) -> bool:
    return any(trial.transfer for trial in study.cached_trials)


def _same_seeds(results: Sequence[Result], others: Sequence[Result]) -> Sequence[Result]:
    """Return those of `results` whose seeds also occur in `others`. If no seed occurs in both, return all `results`.

    With this function, two arms can be compared over the same seeds while one of them still lacks runs.
    """
    seeds = {each.axes.get("seed") for each in others}
    return [each for each in results if each.axes.get("seed") in seeds] or results


def _spread(results: Sequence[Result], tasks: Sequence[str]) -> SeedScores | None:
    scored = [each for each in results if all(task in each.scores for task in tasks)]
    means = tuple(fmean(round(each.scores[task], DECIMALS) for task in tasks) for each in scored)
    return SeedScores(means, seedless=all(each.untrained for each in scored)) if means else None


def _section(study: Study, results: Sequence[Result], option: str, drawn: Sequence[Element]) -> str:
    found = lines(study, results)
    backbones = ", ".join(dict.fromkeys(trial.config.backbone for trial in study.cached_trials))
    source = f" The paper's numbers: {study.reported.of}." if study.reported and study.reported.scores else ""
    source += " All means are over the seven transfer tasks." if _by_transfer(study) else ""
    commands = [f"    isosphere study run {study.name}{option} --data DATA --corpus wiki1m.txt"]
    if "/figure-" in study.name:
        commands.append(f"    isosphere study report {study.name} --html page.html    # draws the figure")
    return "\n".join(
        [
            f"## {study.paper.partition(', ')[2] or study.name}: `{study.name}{option}`\n",
            f"{study.about} **{verdict(found, study.untestable)}**{source} Backbone of our runs: {backbones}.\n",
            *commands,
            "",
            *_drawing(study, results, _file(study, option), drawn),
            *_table(HEAD, [_cells(line) for line in found]),
        ]
    )


# Drawings of a page.


def _file(study: Study, option: str) -> str:
    return f"{study.name}{option}.svg".replace("/", "-").replace(" --", "-")


def _drawn(study: Study, results: Sequence[Result]) -> list[Element]:
    """Draw the study's figures. The list is empty if the study has no figures, or an arm has no result.

    Differences are drawn only between arms that are untrained or have at least two seeds.
    """
    if not study.figures or _without_run(study, results):
        return []
    found = [*figures(summarise(results, None)), *_differences(lines(study, results))]
    return [each for name in study.figures for each in found if each.get("id", "").startswith(name)]


def _drawing(study: Study, results: Sequence[Result], file: str, drawn: Sequence[Element]) -> list[str]:
    """Return the Markdown that shows a study's figures, or that says why they are not drawn yet.

    The list is empty if the study has no figures.
    """
    if not study.figures:
        return []
    if not drawn:
        lacking = "not all arms have a run" if _without_run(study, results) else "too few seeds have a run"
        return [f"There is no drawing yet, because {lacking}.\n"]
    runs, recorded_runs = ({each.id for each in of} for of in (study.cached_trials, results))
    missing = "" if runs == recorded_runs else f" The drawing shows {len(recorded_runs)} of {len(runs)} runs."
    return _shown(f"{study.paper}, with our runs", file, drawn, missing)


def _without_run(study: Study, results: Sequence[Result]) -> set[str]:
    return {trial.label for trial in study.cached_trials} - {each.label for each in results}


def _shown(title: str, file: str, drawn: Sequence[Element], said: str) -> list[str]:
    alternative = "; ".join(map(title_of, drawn))
    descriptions = " ".join(dict.fromkeys(map(description_of, drawn)))
    return [f"![{title}: {alternative}]({file})\n", f"{descriptions}{said}\n"]


def _compares_with_simcse(study: Study) -> bool:
    """Return whether a study is shown as a table of STS scores in which every baseline is SimCSE."""
    baselines = {f"{against}, ".startswith(f"{BASELINE}, ") for against in _baselines(study).values()}
    return not study.figures and not _by_transfer(study) and all(baselines)


def _overview(paper: str, compared: Sequence[Line], drawn: Sequence[Element]) -> list[str]:
    """Return the Markdown that shows `drawn`, the drawing of all differences to SimCSE.

    The Markdown also says how many of the arms `compared` are not drawn. If `drawn` is empty, return an empty list.
    """
    if not drawn:
        return []
    missing = sum(line.noise is None for line in compared)
    said = f" Not drawn: {missing} of {len(compared)} arms, which have no interval yet." if missing else ""
    name = f"{PAPERS[paper].partition(' (')[0]}, all tables, with our runs"
    return [f"## Differences to {BASELINE} in the tables\n", *_shown(name, f"{paper}-differences.svg", drawn, said)]


def _differences(compared: Sequence[Line]) -> list[Element]:
    """Draw the differences to SimCSE that have a confidence interval over seeds.

    The list is empty if no difference has an interval.
    """
    gains = [
        Bar(each.label, each.gain, svg.mark(0), (each.gain - each.noise, each.gain + each.noise), each.paper_gain)
        for each in compared
        if each.gain is not None and each.noise is not None
    ]
    caption = Caption(
        "differences",
        f"Mean of {len(STS_TASKS)} tasks: difference to {BASELINE}.",
        "Bars: our differences, with Welch's 95 % interval over seeds. An interval that includes 0 shows no difference."
        + (" Circles: the paper's differences." if any(each.reported is not None for each in gains) else ""),
    )
    return [bars(caption, "Difference of Spearman × 100", gains, digits=DECIMALS)] if gains else []


# Tables of a page.


def _earlier(study: Study, results: Path) -> list[str]:
    """Return a Markdown table of results that were recorded before the papers' tables had studies (see `EARLIER`).

    Each row has the results of one file in `EARLIER`. Only a study that compares SimCSE with one method can have such
    results. The list is empty if there are none.
    """
    labels = list(dict.fromkeys(trial.label for trial in study.cached_trials))
    if labels[:1] != [BASELINE] or len(labels) != 2 or not study.reported or _by_transfer(study):
        return []
    method = labels[1]
    rows = []
    for name, known in read_toml(EARLIER).items():
        file, named = results / f"{name}.jsonl", known["labels"]
        if method in named and file.exists() and (of := _relabelled(read_results(file), named)):
            rows.append([f"{known['start']} (`{name}`)", *_cells(lines(study, of)[1])[1:]])
    if not rows:
        return []
    head = [f"{method} from", *HEAD[1:]]
    where = "from other starts and with other settings ([results.md](../results.md))"
    said = (
        f"Earlier runs compared {method} with {BASELINE} {where}. The second difference is to runs of {BASELINE} with "
        "the same start and settings. The table does not show these runs. The name in parentheses is a result file in "
        "benchmarks/results/studies:\n"
    )
    return ["\n".join([said, *_table(head, rows)])]


def _relabelled(results: Sequence[Result], labels: Mapping[str, str]) -> list[Result]:
    """Replace the arm of each result by the arm whose label in `labels` is the result's label, and clear `axes`.

    `labels` maps names of arms to labels. Results with a label that `labels` lacks are left out.
    """
    arms = {label: arm for arm, label in labels.items()}
    return [replace(each, arm=arms[each.label], axes={}) for each in results if each.label in arms]


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    return [*(f"| {' | '.join(cells)} |" for cells in (head, ["---"] * len(head), *rows)), ""]


def _cells(line: Line) -> list[str]:
    return [
        f"**{line.label}**" if line.own else line.label,
        ABSENT if line.paper is None else f"{line.paper:.2f}",
        ABSENT if line.paper_gain is None else f"{line.paper_gain:+.2f}",
        ABSENT if line.here is None else str(line.here),
        ABSENT if line.here is None else str(len(line.here.values)),
        _gain(line),
        line.verdict,
    ]


def _gain(line: Line) -> str:
    if line.gain is None:
        return ABSENT
    interval = "" if line.noise is None else f" [{line.gain - line.noise:+.2f}, {line.gain + line.noise:+.2f}]"
    return f"{line.gain:+.2f}{interval}"


def _left_out(each: LeftOut) -> str:
    instead = f"\n\n    {each.instead}\n" if each.instead else "\n"
    return f"**{each.paper}** (`{each.name}`). {each.about} There is no study: {each.reason}{instead}"
