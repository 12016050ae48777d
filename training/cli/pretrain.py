"""`pretrain`: train a masked language model, from random or existing weights, as a backbone for encoders."""

from __future__ import annotations

import argparse
import shlex
import sys

from training.cli.options import add_corpus, add_set_and_resume, add_text_column, given_fields, resumed
from training.machine.interrupt import terminable
from training.pretraining.config import PretrainConfig
from training.pretraining.run import fit
from training.pretraining.start import backbone_fields


def add_pretrain(command: argparse.ArgumentParser) -> None:
    add_corpus(command)
    add_text_column(command)
    command.add_argument("--backbone", metavar="NAME|DIR", help="BERT to continue from (default: random weights)")
    command.add_argument("--tokenizer", metavar="NAME|DIR", help="source of the WordPiece vocabulary (default: minilm)")
    command.add_argument("--out", metavar="DIR", help="folder of the model (default: artifacts/mlm)")
    add_set_and_resume(command)
    command.set_defaults(command=pretrain)


def pretrain(options: argparse.Namespace) -> int:
    """Train the model, and write it to its folder."""
    config = resolve(options)
    with terminable():
        fit(config, sys.stderr, resume=options.resume)
    print(f"{config.out}: isosphere train simcse --backbone {shlex.quote(config.out)}")
    return 0


def resolve(options: argparse.Namespace) -> PretrainConfig:
    """Return the configuration that the options describe.

    With `--resume`, return the stored configuration if the options do not contradict it.

    Raises:
        ConfigError, RunError, SourceError: the run or the backbone does not exist; the message names the option.
    """
    given = given_fields(options, ("text_column", "backbone", "tokenizer", "out", "seed"), PretrainConfig())
    if options.resume:
        return resumed(given.get("run", PretrainConfig.run), given, PretrainConfig)
    backbone = given.get("backbone")
    return PretrainConfig().override(given if backbone is None else backbone_fields(backbone) | given)
