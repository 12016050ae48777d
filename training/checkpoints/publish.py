"""Publication of a run's outcome: the final evaluation, the exported bundle and the record."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

from models.bundle.adapter import AdapterError
from models.bundle.bundle import Bundle, BundleError
from models.bundle.disk import replacing_folder
from models.bundle.origin import read
from models.bundle.sources import SourceError, base_of, manifest_of, resolve, weights_sha256
from models.encoder.encoder import Encoder
from models.export.export import export
from models.export.extraction import describe
from training.checkpoints import record
from training.checkpoints.checkpoint import Best
from training.checkpoints.progress import with_progress
from training.config import RunConfig
from training.data.corpus import Census
from training.encoding import lora
from training.encoding.lora import Factors
from training.evaluation import sts
from training.evaluation.pairs import STS_TASKS, Subsets
from training.evaluation.sts import TaskScore
from training.machine.hardware import environment
from training.objectives import OBJECTIVES, matryoshka

log = logging.getLogger(__name__)
STS_MEAN = "STS mean"


@dataclass(frozen=True)
class Outcome:
    """Outcome of a run: the encoder with the best weights, its score, and the tasks of the final evaluation."""

    encoder: Encoder
    best: Best
    steps: int
    """Steps taken in total."""
    metric: str
    census: Census
    tasks: Mapping[str, Subsets]
    """STS tasks of the run's evaluation data."""
    first: bool = True
    """True if this process publishes the outcome."""
    adapter: Factors | None = None
    """The adapter that the encoder's weights contain, if the run trained one."""


def publish(config: RunConfig, outcome: Outcome, scores: Mapping[str, TaskScore]) -> Bundle:
    """Export a run's outcome to `config.out`, with the run's record and `scores`.

    If the run trained an adapter, also write the adapter to the folder `config.run`.
    """
    if outcome.adapter is None:
        return _export(config, outcome, scores)
    with replacing_folder(Path(config.run) / lora.FOLDER) as draft:
        written = lora.write_adapter(outcome.adapter, outcome.encoder, draft)
        merged_from = written.identity(config.backbone, weights_sha256(base_of(written)))
        made = _export(config, outcome, scores, merged_from)
        describe(
            draft,
            outcome.encoder,
            base=config.backbone,
            name=made.manifest.name,
            said=made.manifest,
            source=str(made.folder),
            citations=_citations(config),
        )
    return made


def _export(
    config: RunConfig,
    outcome: Outcome,
    scores: Mapping[str, TaskScore],
    merged_from: Mapping[str, Any] | None = None,
) -> Bundle:
    return export(
        outcome.encoder,
        Path(config.out),
        name=Path(config.out).resolve().name,
        backbone=config.backbone,
        objective=config.objective,
        run={
            "config": config.as_dict(),
            "environment": environment(),
            "corpus": corpus_counts(outcome.census),
            **({"teacher": teacher_identity(config.teacher)} if config.teacher else {}),
            "steps": outcome.steps,
            "best_step": outcome.best.step,
            "curve": record.evaluations(Path(config.run), until=outcome.steps),
        },
        scores={outcome.metric: outcome.best.score, **sts_manifest_scores(scores)},
        citations=_citations(config),
        adapter=merged_from,
    )


def _citations(config: RunConfig) -> list[str]:
    own = OBJECTIVES[config.objective].citation
    return [own] if config.matryoshka is None else [own, matryoshka.CITATION]


def teacher_identity(source: str) -> dict[str, Any]:
    """Return the name, backbone, fingerprint and licence of the teacher `source`, for the run's record.

    The name alone does not identify the teacher, because the folder of this name may later contain a different encoder.
    If the teacher is missing or damaged, return only its name. This is not an error, because a finished run does not
    need its teacher. The backbone and fingerprint are None for a teacher without a manifest.
    """
    try:
        found, origin = manifest_of(source), read(source, resolve(source))
    except (SourceError, BundleError, AdapterError) as error:
        log.warning("teacher: %s; the record contains only its name", error)
        return {"name": source}
    return {
        "name": found.name if found else source,
        "backbone": found.backbone if found else None,
        "fingerprint": found.fingerprint if found else None,
        "licence": origin.licence.get("license"),
    }


def sts_scores(encoder: Encoder, tasks: Mapping[str, Subsets], stream: TextIO) -> dict[str, TaskScore]:
    """Return an encoder's scores on the given STS tasks. Without tasks, return an empty dictionary."""
    return sts.evaluate(with_progress(encoder.encode, stream), tasks) if tasks else {}


def sts_manifest_scores(scores: Mapping[str, TaskScore]) -> dict[str, float]:
    """Return STS scores for a manifest: Spearman x 100 of each task and, if all seven tasks are present, their mean."""
    whole = {STS_MEAN: sts.mean_of_tasks(scores)} if len(scores) == len(STS_TASKS) else {}
    return {task: score.spearman.all for task, score in scores.items()} | whole


def corpus_counts(census: Census) -> dict[str, Any]:
    return {
        "sentences": census.sentences,
        "held_out": len(census.held_out),
        "duplicates": census.duplicates,
        "blank": census.blank,
        "digest": census.digest,
    }
