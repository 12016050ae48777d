"""`adapt`: train an encoder on your own documents, apply partial whitening, and compare the results."""

from __future__ import annotations

import argparse
import json
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from models.bundle.disk import write_whole
from models.encoder.encoder import Encoder
from models.export import destination
from training import run
from training.checkpoints import record
from training.checkpoints.progress import with_progress
from training.checkpoints.publish import publish
from training.cli.evaluate import check_writable
from training.cli.options import parse
from training.cli.train import next_commands
from training.config import ConfigError, RunConfig, from_preset
from training.data.corpus import has_passages, open_corpus
from training.evaluation import known_item
from training.evaluation.beir import Collection
from training.evaluation.known_item import SearchResult
from training.machine.interrupt import terminable
from training.objectives import OBJECTIVES
from training.objectives.base import PASSAGES_SETTINGS, PASSAGES_SUFFIX

WHITENING = ("--set", "power=0.3", "--set", "centred=false")
"""Options of the partial whitening, chosen on SciFact's training queries (ADR 0025)."""


def adapt(options: argparse.Namespace) -> int:
    """Train on passages, fit a partial whitening, and compare the new encoders with the initial encoder.

    The comparison measures retrieval of held-out passages. If the corpus has too few texts for a covariance of full
    rank, or the initial encoder has a transform, the whitening is omitted. With `--promote`, promote the best new
    encoder if it is better than the initial encoder.

    Raises:
        ConfigError: the corpus has single sentences instead of passages, or too few passages; the objective is not
            supported; or options contradict each other.
        DataError: the file of `--json` can't be written.
    """
    check_writable(*filter(None, [options.json]))
    _check_passages(options)
    start = Encoder.load(options.backbone).eval()
    trained, whitened = options.out.with_name(f"{options.out.name}-trained"), options.out
    for folder in (trained, whitened):
        destination.refuse_foreign(folder)
    config = _described(options, trained, start.pooling)
    if options.resume and options.force:
        raise ConfigError("--resume continues a run and --force replaces it: leave one of them out")
    if options.resume and (changed := record.stored_config(Path(config.run), RunConfig).differences(config)):
        raise ConfigError(f"--resume continues the run with its stored options; you changed: {', '.join(changed)}")
    if not (options.resume or options.force):
        run.refuse_trained(whitened)
    collection = known_item.test_collection(run.open_run_corpus(config))
    if not collection.queries:
        raise ConfigError(
            f"{options.corpus[0]}: has too few passages to compare encoders: give at least 40 documents of several "
            "sentences"
        )
    if obstacle := _obstacle(options, start):
        print(f"{obstacle}: {whitened} is left out", file=sys.stderr)
    with terminable():
        outcome = run.fit(config, sys.stderr, resume=options.resume, force=options.force, advice=False)
    publish(config, outcome, {})
    column = ["--text-column", options.text_column] if options.text_column else []
    corpus = ["--corpus", *options.corpus, *column]
    if obstacle:
        _remove_outdated(options, whitened)
    else:
        _run("postprocess", "whitening", str(trained), "--out", str(whitened), *WHITENING, *corpus)

    made = {"trained": trained} | ({} if obstacle else {"whitened": whitened})
    report = _compare(options.backbone, start, made, collection)
    if options.json:
        write_whole(options.json, json.dumps(report, indent=2, allow_nan=False) + "\n")
    if report["best"] is None:
        return 0
    best = made[report["best"]]
    if options.promote:
        return _run("promote", str(best), *corpus)
    print(next_commands(best, corpus))
    return 0


def _obstacle(options: argparse.Namespace, start: Encoder) -> str | None:
    """Return the reason why the new encoder can't get a whitening, or None."""
    if start.transform is not None:
        return f"{options.backbone} already has a transform"
    texts = open_corpus(options.corpus, column=options.text_column).census.sentences
    return f"{texts} texts are too few to whiten {start.dim} dimensions" if texts <= start.dim else None


def _remove_outdated(options: argparse.Namespace, whitened: Path) -> None:
    """Remove the whitened encoder of an earlier run if `--force` was given. It would look like the result of this run.

    The initial encoder is kept, even if it is in this folder.
    """
    if options.force and whitened.exists() and whitened.resolve() != Path(options.backbone).resolve():
        shutil.rmtree(whitened)


def _check_passages(options: argparse.Namespace) -> None:
    """Check that `adapt` can train with the objective, and that the corpus has passages.

    The objective must have a preset for passages, and must not need a teacher that the user names.

    Raises:
        ConfigError: the objective does not meet these conditions, or the corpus has no passages.
        CorpusError: a file of the corpus can't be read.
        Refused, RemoteError: data on the hub can't be read (see `resolve_files`).
    """
    if OBJECTIVES[options.objective].needs_named_teacher:
        raise ConfigError(f"--objective {options.objective} needs a teacher: use isosphere train with --teacher")
    if not any(name.endswith(PASSAGES_SUFFIX) for name in OBJECTIVES[options.objective].presets):
        raise ConfigError(f"--objective {options.objective} has no preset for passages: use isosphere train")
    if not has_passages(options.corpus, column=options.text_column):
        raise ConfigError(
            f"{options.corpus[0]}: contains single sentences, but adapt needs documents of several sentences: give "
            "JSON lines, CSV or Parquet with one document per row, or text with one document per line; for sentences, "
            "use isosphere train"
        )


def _compare(backbone: str, start: Encoder, made: Mapping[str, Path], collection: Collection) -> dict[str, Any]:
    """Print the retrieval scores of `start` and of the new encoders, and return them for JSON.

    `made` maps each stage, `trained` or `whitened`, to the folder of its encoder. In the result, `best` is the stage of
    the best new encoder. `best` is None if no new encoder is better than `start`.
    """
    counts = {"queries": len(collection.queries), "passages": len(collection.documents)}
    report: dict[str, Any] = {**counts, "encoders": [], "best": None, "examples": []}
    before = _found(start, collection)
    found = {stage: _found(Encoder.load(folder).eval(), collection) for stage, folder in made.items()}
    print(f"nDCG@10 of {len(before.values)} queries over {len(collection.documents)} passages, and the gain (95 %):")
    print(f"  {backbone}: {before.values.mean():.2f}")
    report["encoders"].append({"stage": "start", "encoder": backbone, "ndcg10": before.values.mean()})
    for stage, after in found.items():
        print(f"  {made[stage]}: {after.against(before)}")
        gain = after.gain(before)
        scores = {"ndcg10": after.values.mean(), "gain": gain.difference, "low": gain.low, "high": gain.high}
        report["encoders"].append({"stage": stage, "encoder": str(made[stage]), **scores})
    best = max(found, key=lambda stage: float(found[stage].values.mean()))
    if found[best].values.mean() <= before.values.mean():
        print(f"no new encoder searches better than {backbone}: keep using {backbone}")
        return report
    return report | {"best": best, "examples": known_item.examples(before, found[best], collection)}


def _described(options: argparse.Namespace, out: Path, pooling: str) -> RunConfig:
    """Return the configuration of a run that trains on passages, without a head between the vectors and the loss.

    The encoder has the pooling `pooling`, and the bundle is written to `out`.
    """
    own = {"pooling": pooling, "head": False, "text_column": options.text_column, "max_steps": options.max_steps}
    folders = {"corpus": tuple(options.corpus), "out": str(out), "run": str(Path("runs") / out.name)}
    return from_preset(options.objective, backbone=options.backbone).override({**PASSAGES_SETTINGS, **own, **folders})


def _run(*arguments: str) -> int:
    options = parse(arguments)
    return options.load()(options)  # type: ignore[no-any-return]


def _found(encoder: Encoder, collection: Collection) -> SearchResult:
    return SearchResult.of(with_progress(encoder.encode, sys.stderr), collection, encoder.prompts)
