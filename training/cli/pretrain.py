"""`pretrain`: train a masked language model from random or existing weights. The result is a backbone for encoders."""

from __future__ import annotations

import argparse
import shlex
import sys

from training.cli.train import given_fields, resumed
from training.machine.interrupt import terminable
from training.pretraining.config import PretrainConfig
from training.pretraining.model import backbone_fields
from training.pretraining.run import fit


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
        ConfigError: an option is invalid, or contradicts the stored configuration; the message names the option.
        RunError: with `--resume`, there is no run to continue.
        SourceError: the backbone does not exist.
    """
    given = given_fields(options, ("text_column", "backbone", "tokenizer", "out", "seed"), PretrainConfig())
    if options.resume:
        return resumed(given.get("run", PretrainConfig.run), given, PretrainConfig)
    backbone = given.get("backbone")
    return PretrainConfig().override(given if backbone is None else backbone_fields(backbone) | given)
