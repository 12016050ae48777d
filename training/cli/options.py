"""Options that the commands `train` and `pretrain` share, and their conversion to a configuration."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from training.checkpoints import record
from training.config import ConfigError, Configuration

C = TypeVar("C", bound=Configuration)


def add_corpus(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--corpus",
        nargs="+",
        default=[],
        metavar="FILE",
        help="corpus files: text with one sentence per line, or any source that train accepts",
    )


def add_text_column(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--text-column", metavar="NAME", help="column of a table with the texts (default: text or sentence)"
    )


def add_set_and_resume(command: argparse.ArgumentParser) -> None:
    command.add_argument("--seed", type=int, metavar="S")
    command.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE", help="set any other option of the run"
    )
    command.add_argument("--resume", action="store_true", help="continue the stopped run of this name")


def given_fields(options: argparse.Namespace, names: Sequence[str], base: Configuration) -> dict[str, Any]:
    """Return the configuration's fields that the options set.

    These are `names`, the corpus, the run's folder, and the fields of `--set`.

    Raises:
        ConfigError: a setting is unknown, of the wrong type, or also given by an option.
    """
    given: dict[str, Any] = {name: getattr(options, name) for name in names if getattr(options, name) is not None}
    if options.corpus:
        given["corpus"] = tuple(options.corpus)
    if options.out:
        given["run"] = str(Path("runs") / Path(options.out).resolve().name)
    return given | without_conflicts(base.parse(options.set), given)


def resumed(folder: str, given: Mapping[str, Any], kind: type[C]) -> C:
    """Return the stored configuration of the run to resume.

    Raises:
        RunError: there is no such run.
        ConfigError: the options contradict the stored configuration.
    """
    stored = record.stored_config(Path(folder), kind)
    if differences := stored.differences(stored.override(given)):
        raise ConfigError(f"--resume goes on with the run as it was; changed: {', '.join(differences)}")
    return stored


def without_conflicts(
    put: Mapping[str, Any], given: Mapping[str, Any], spelt: Mapping[str, str] | None = None
) -> dict[str, Any]:
    """Return `put`, the settings of `--set`. Check that none of its fields is in `given`, the fields of other options.

    `spelt` maps a field to its option, if the option's name differs from the field's.

    Raises:
        ConfigError: `put` and `given` set the same field. `--set run` is allowed together with `--out`, which only
            implies `run`.
    """
    if twice := sorted(put.keys() & given.keys() - {"run"}):
        option = (spelt or {}).get(twice[0], "--" + twice[0].replace("_", "-"))
        raise ConfigError(f"--set {twice[0]}: {option} is given, too, and sets the same")
    return dict(put)
