"""What a run leaves behind: `config.json`, `environment.json`, `metrics.jsonl` and TensorBoard's events."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch.utils.tensorboard import SummaryWriter

from training.config import RunConfig

CONFIG = "config.json"
ENVIRONMENT = "environment.json"
METRICS = "metrics.jsonl"


class RunError(ValueError):
    """The folder of the run stands in the way; the message names it."""


class Record:
    """The open record of a run. Lines of metrics reach the disk as they are written."""

    def __init__(self, folder: Path, *, step: int) -> None:
        """Goes on after `step`; what an interrupted run wrote later is dropped."""
        _keep_until(folder / METRICS, step)
        self._metrics = (folder / METRICS).open("a", encoding="utf-8")
        self._events = SummaryWriter(str(folder), purge_step=step + 1)

    def write(self, kind: str, step: int, values: Mapping[str, float]) -> None:
        """One line: `kind` is `train` or `evaluation`."""
        self._metrics.write(json.dumps({"kind": kind, "step": step, **values}) + "\n")
        self._metrics.flush()
        for name, value in values.items():
            self._events.add_scalar(f"{kind}/{name}", value, step)

    def close(self) -> None:
        """Closes both files."""
        self._metrics.close()
        self._events.close()


def start(config: RunConfig, environment: Mapping[str, Any]) -> Path:
    """Creates the folder of a new run and describes the run in it.

    Raises:
        RunError: the folder holds a run already.
    """
    folder = Path(config.run)
    refuse_second(folder)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RunError(f"{folder}: {error.strerror}") from error
    write_whole(folder / ENVIRONMENT, json.dumps(environment, indent=2) + "\n")
    write_whole(folder / CONFIG, config.to_json())
    return folder


def refuse_second(folder: Path) -> None:
    """Raises `RunError` if `folder` holds a run."""
    if (folder / CONFIG).exists():
        raise RunError(f"{folder} holds a run already: --resume it, remove it, or choose another --set run=FOLDER")


def stored(folder: Path) -> RunConfig:
    """The configuration of the run in `folder`.

    Raises:
        RunError: there is no run.
        ConfigError: its configuration can't be read.
    """
    try:
        return RunConfig.from_json((folder / CONFIG).read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise RunError(f"{folder} holds no run to resume") from None


def write_whole(file: Path, text: str) -> None:
    """Replaces `file` so that a reader finds the old text or the new, never a part."""
    beside = file.with_name(file.name + ".part")
    with beside.open("w", encoding="utf-8") as stream:
        stream.write(text)
        stream.flush()
        os.fsync(stream.fileno())
    beside.replace(file)


def _keep_until(metrics: Path, step: int) -> None:
    """Drops lines after `step`, and the torn last one that a kill leaves."""
    if not metrics.exists():
        return
    kept = []
    for line in metrics.read_text(encoding="utf-8").splitlines(keepends=True):
        if not line.endswith("\n") or json.loads(line)["step"] > step:
            break
        kept.append(line)
    write_whole(metrics, "".join(kept))
