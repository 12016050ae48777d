"""`adapt`: an encoder for your own documents by one command, which trains, whitens in part and compares."""

from __future__ import annotations

import argparse
import sys
from types import ModuleType

from models.encoder import Encoder
from training import gain
from training.commands import postprocess, promote, train
from training.config import ConfigError
from training.corpus.corpus import holds_passages, open_corpus
from training.evaluation.beir import Collection
from training.gain import Searched
from training.objectives.base import FOR_PASSAGES
from training.progress import encode_visibly

OBJECTIVE = "simcse"
"""Found most of CPython's documentation after training on it: docs/adaptation.md."""
WHITENING = ("--set", "power=0.3", "--set", "centred=false")
"""The part of a whitening that SciFact's training queries chose: ADR 0025."""


def add(command: argparse.ArgumentParser) -> None:
    """Its options."""
    command.add_argument(
        "corpus",
        nargs="+",
        metavar="FILE",
        help="JSON lines, CSV or Parquet with a column text, maybe title",
    )
    command.add_argument("--text-column", metavar="NAME", help="of the texts (default: text or sentence)")
    command.add_argument("--objective", default=OBJECTIVE, metavar="NAME", help=f"default: {OBJECTIVE}")
    command.add_argument("--backbone", default="minilm", metavar="NAME|DIR", help="what to adapt (default: minilm)")
    command.add_argument("--max-steps", metavar="N", help="default: three passes over the corpus")
    command.add_argument("--out", default="artifacts/adapted", metavar="DIR", help="default: artifacts/adapted")
    command.add_argument("--force", action="store_true", help="replace an earlier run of this name")
    command.add_argument("--promote", action="store_true", help="serve the result by default if it is not worse")
    command.set_defaults(command=adapt)


def adapt(options: argparse.Namespace) -> int:
    """Train on the passages, whiten the result in part, compare all three on held-out passages.

    Raises:
        ConfigError: the corpus holds sentences, not passages.
    """
    if not holds_passages(options.corpus, column=options.text_column):
        raise ConfigError(
            f"{options.corpus[0]}: holds single sentences, and adapt takes passages: JSON lines, CSV or Parquet with a "
            "document of several sentences in each row; isosphere train takes sentences"
        )
    column = ["--text-column", options.text_column] if options.text_column else []
    corpus = ["--corpus", *options.corpus, *column]
    trained = f"{options.out}-trained"
    steps = ["--max-steps", options.max_steps] if options.max_steps else []
    force = ["--force"] if options.force else []
    described = [options.objective, "--backbone", options.backbone, "--out", trained, *steps, *force]
    settings = [word for name, value in FOR_PASSAGES.items() for word in ("--set", f"{name}={value}")]
    _run(train, [*described, *settings, *corpus])
    _run(postprocess, ["whitening", trained, "--out", options.out, *WHITENING, *corpus])

    passages = open_corpus(options.corpus, column=options.text_column, passages=True)
    collection = gain.held_out(passages)
    start = _searched(options.backbone, collection)
    found = {folder: _searched(folder, collection) for folder in (trained, options.out)}
    print(f"nDCG@10 of {len(start.values)} queries over {len(collection.documents)} passages, and the gain (95 %):")
    print(f"  {options.backbone}: {start.values.mean():.2f}")
    for folder, searched in found.items():
        print(f"  {folder}: {searched.against(start)}")
    best = max(found, key=lambda folder: found[folder].values.mean())
    if found[best].values.mean() <= start.values.mean():
        print(f"neither searches better than {options.backbone}: keep that")
        return 0
    if options.promote:
        return _run(promote, [best, *corpus])
    print(f"next: isosphere serve --bundle {best} tries the better one, isosphere promote {best} serves it by default")
    return 0


def _run(command: ModuleType, arguments: list[str]) -> int:
    parser = argparse.ArgumentParser()
    command.add(parser)
    options = parser.parse_args(arguments)
    return int(options.command(options))


def _searched(source: str, collection: Collection) -> Searched:
    encoder = Encoder.load(source).eval()
    return Searched.by(encode_visibly(encoder.encode, sys.stderr), collection)
