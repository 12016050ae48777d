"""The studies of this repository, named after the papers' tables and figures, with their cost and data."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass

from training.study.cost import cpu_hours, gpu_hours
from training.study.description import STUDIES, Study, contents
from training.study.trial import StudyError, Trial

PAPERS = {
    "dclr": "DCLR (Zhou, Zhang, Zhao and Wen, ACL 2022)",
    "gs-infonce": "GS-InfoNCE (Wu, Gao, Su, Han, Wang and Hu, COLING 2022)",
    "whitenedcse": "WhitenedCSE (Zhuo, Sun, Wang, Zhu and Yang, ACL 2023)",
    "imsimcse": "ImSimCSE (Xu, Shao, Chen and Liu, SimCSE++, EMNLP 2023)",
}
"""Papers by the folder of their studies."""
LEFT_OUT = STUDIES / "left_out.toml"
WIDTH = 110


@dataclass(frozen=True)
class LeftOut:
    """A table or figure without a study."""

    name: str
    paper: str
    about: str
    reason: str
    instead: str = ""
    """A command that reproduces a part of the table or figure."""


def studies(paper: str) -> list[Study]:
    """Read the studies of a paper, sorted by name.

    Raises:
        StudyError: a file is no study.
    """
    return [Study.read(file) for file in sorted((STUDIES / paper).glob("*.toml"))]


def left_out(paper: str) -> list[LeftOut]:
    """Read the tables and figures of a paper without a study.

    Raises:
        StudyError: their file is damaged.
    """
    named = contents(LEFT_OUT)
    try:
        return [LeftOut(name, **values) for name, values in named.items() if name.startswith(f"{paper}/")]
    except TypeError as error:
        raise StudyError(f"{LEFT_OUT}: {error}") from error


def text(papers: Sequence[str]) -> str:
    """Describe each study of the papers, and each table and figure without one, in a paragraph."""
    parts = []
    for paper in papers:
        parts.append(PAPERS[paper])
        parts += [_paragraph(study) for study in studies(paper)]
        parts += [_reason(each) for each in left_out(paper)]
    return "\n\n".join(parts)


def _paragraph(study: Study) -> str:
    here = study.trials()
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
        textwrap.fill(line, WIDTH, initial_indent="  " * bool(number), subsequent_indent="  ")
        for number, line in enumerate(lines)
    )
