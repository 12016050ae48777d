"""Catalogue of this repository's studies, named after the papers' tables and figures, with their cost and data."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass

from training.objectives import OBJECTIVES
from training.studies.description import STUDIES, Study, read_toml
from training.studies.trial import StudyError, Trial

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
        StudyError: the file with the list is damaged.
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
        textwrap.fill(line, WIDTH, initial_indent="  " * bool(number), subsequent_indent="  ", break_on_hyphens=False)
        for number, line in enumerate(lines)
    )


# Estimated duration of a study. It follows from the number of encoded sentences and from measured speeds.

SENTENCES = 1_000_000
"""Number of sentences in the papers' corpus. Runs whose length is given in epochs are assumed to use this corpus."""
TRAINED = 3
"""Cost of a forward and a backward pass together, relative to a forward pass."""
DEV, TASKS = 3_000, 32_000
"""Numbers of distinct sentences that are encoded in an evaluation during training, and in the final STS tasks."""
CORE = 490.0
"""Speed of minilm's forward pass on one core of a Xeon, in sentences per second.

The figure is from benchmarks/results/studies/objectives.jsonl.
"""
DEVICE = 27_600.0
"""Speed of BERT-base's forward pass on an H100, in sentences per second.

The figure is six times SimCSE's training speed in benchmarks/results/gpu/recorded_steps.json.
"""
LARGE = 3.0
"""Computation of a large model, relative to a base model."""


def cpu_hours(trials: Sequence[Trial]) -> float:
    """Estimate the hours on one CPU core for all runs, if they start from minilm.

    A run that belongs to several arms counts once.
    """
    return sum(map(_passes, _different(trials))) / CORE / 3600


def gpu_hours(trials: Sequence[Trial]) -> float:
    """Estimate the hours on one H100 for all runs, one after the other, if they start from the papers' backbones."""
    weighted = (_passes(each) * (LARGE if "large" in each.config.backbone else 1.0) for each in _different(trials))
    return sum(weighted) / DEVICE / 3600


def _different(trials: Sequence[Trial]) -> list[Trial]:
    return list({trial.id: trial for trial in trials}.values())


def _passes(trial: Trial) -> float:
    """Estimate the cost of a run as a number of forward passes of single sentences.

    Training a teacher counts as a SimCSE run.
    """
    judged = float(TASKS + trial.neighbours)
    if trial.untrained:
        return judged
    config = trial.config
    steps = config.max_steps or math.ceil(config.epochs * SENTENCES * trial.fraction / config.batch_size)
    evaluations = (steps // config.eval_every + 1) * DEV
    needs = OBJECTIVES[config.objective].build(config.params, _width(config.params)).needs
    a_sentence = TRAINED * (needs.views + needs.clean) + needs.teacher
    teacher = steps * config.batch_size * TRAINED * 2 + evaluations if needs.teacher and not config.teacher else 0
    return steps * config.batch_size * a_sentence + evaluations + teacher + judged


def _width(params: object) -> int:
    """Return a vector width that is valid for the parameters.

    The needs of an objective are independent of the width, so any valid width can be used to find them.
    """
    return 2 * int(getattr(params, "groups", 1))
