"""`postprocess`: fit a transform to an encoder's vectors, and export the encoder with the transform as a bundle."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import Any

from models.bundle.sources import manifest_of
from models.cli.fields import field_types, parse_settings
from models.encoder.encoder import Encoder
from models.export import destination
from models.export.export import ExportError, export
from training.checkpoints.publish import corpus_counts, sts_manifest_scores, sts_scores
from training.config import MIN_LENGTH, ConfigError, check_seed
from training.data.corpus import open_corpus
from training.evaluation import sts
from training.evaluation.pairs import STS_TASKS, DataError, sts_tasks
from training.machine.hardware import environment, pick_device
from training.postprocess import POSTPROCESSES


def postprocess(options: argparse.Namespace) -> int:
    """Fit the transform, evaluate the encoder if there is evaluation data, and export the bundle.

    Raises:
        ConfigError: `--max-length`, `--seed` or a setting of `--set` is not valid.
        DataError: the folder of the evaluation data contains no STS task.
        ExportError: see `models.export.export.export`.
    """
    destination.refuse_foreign(options.out)
    if options.max_length is not None and options.max_length < MIN_LENGTH:
        raise ConfigError(f"--max-length {options.max_length} leaves no room between the special tokens")
    check_seed(options.seed)
    chosen = POSTPROCESSES[options.name]
    params = _overridden(chosen.params, options.set)
    tasks = sts_tasks(options.eval_data) if options.eval_data else {}
    if options.eval_data and not tasks:
        raise DataError(f"{options.eval_data}: contains none of {', '.join(STS_TASKS)}")
    corpus = open_corpus(options.corpus, column=options.text_column)
    origin = manifest_of(options.source)
    encoder = Encoder.load(options.source, pooling=options.pooling, max_length=options.max_length)
    encoder.to(pick_device("auto"))
    fitted = chosen.apply(encoder, corpus, params, seed=options.seed, stream=sys.stderr)
    encoder.eval().cpu()
    scores = sts_scores(encoder, tasks, sys.stderr)
    if scores:
        print(sts.table(scores))
    try:
        made = export(
            encoder,
            options.out,
            name=options.out.resolve().name,
            backbone=origin.backbone if origin else options.source,
            objective=origin.objective if origin else None,
            run={
                "postprocess": options.name,
                "source": options.source,
                "pooling": encoder.pooling,
                "max_length": encoder.max_length,
                "params": asdict(params),
                "seed": options.seed,
                "corpus": {"name": corpus.name, **corpus_counts(corpus.census)},
                "fitted": dict(fitted.facts),
                "environment": environment(),
            },
            scores=sts_manifest_scores(scores),
            citations=[chosen.citation],
            adapter=origin.adapter if origin else None,
        )
    except ExportError as error:
        if options.name != "whitening":
            raise
        raise ExportError(
            f"{error}: the encoder's vectors probably have directions with almost no variance, and whitening amplifies "
            "rounding errors in these directions; keep fewer dimensions (--set dims=N) or use a lower power (--set "
            "power=0.5)"
        ) from error
    facts = ", ".join(f"{name.replace('_', ' ')} {value:g}" for name, value in fitted.facts.items())
    print(f"{made.folder}: {options.name}, {encoder.pooled_dim} to {encoder.dim} dimensions, {facts}")
    return 0


def _overridden(params: Any, texts: Sequence[str]) -> Any:
    """Return `params`, changed by the settings `key=value` in `texts`. Values get the types of their fields.

    Raises:
        ConfigError: a key is unknown, or a value has the wrong type or is out of range.
    """
    try:
        return replace(params, **parse_settings(texts, field_types(type(params))))
    except ValueError as error:
        raise ConfigError(str(error)) from error
