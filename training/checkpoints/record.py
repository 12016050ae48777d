"""Files that record a run: `config.json`, `environment.json`, `metrics.jsonl` and TensorBoard events."""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from itertools import takewhile
from pathlib import Path
from statistics import fmean
from typing import Any, TypeVar

from models.bundle.disk import fsync, naming, replacing, write_whole
from models.errors import Refused
from training.checkpoints.checkpoint import CHECKPOINT
from training.config import Configuration, RunConfig
from training.machine.interrupt import LOCK, locked
from training.objectives.base import MEASURED

CONFIG = "config.json"
ENVIRONMENT = "environment.json"
METRICS = "metrics.jsonl"
RUN_FILES = (
    *(CONFIG, ENVIRONMENT, METRICS, LOCK, "events.out.tfevents.*", "adapter", "*.vectors"),
    *(CHECKPOINT, "best-*.safetensors", "diverged-*.safetensors"),
    *(".*.part", ".tmp??????", ".adapter.*-bundle*"),  # temporary files of killed processes
)
"""Patterns of the names of all files and folders that a run writes to its folder."""

C = TypeVar("C", bound=Configuration)

WriteMetrics = Callable[[str, int, Mapping[str, float]], None]
"""Type of `Record.write`. A process that writes no record uses a function of this type that does nothing."""


class RunError(Refused):
    """The folder of the run can't be used. The message names the folder."""


class Record:
    """The open files for the metrics of a run: `metrics.jsonl`, which is flushed after each line, and TensorBoard's."""

    def __init__(self, folder: Path, *, step: int) -> None:
        """Open the record of a run that continues after `step`.

        Delete the lines of later steps, because the resumed run repeats these steps.
        """
        # Imported here because only the process that writes the record needs TensorBoard.
        from torch.utils.tensorboard import SummaryWriter

        self._file = folder / METRICS
        _keep_until(self._file, step)
        self._metrics = self._file.open("a", encoding="utf-8")
        self._events = SummaryWriter(str(folder), purge_step=step + 1)

    def write(self, kind: str, step: int, values: Mapping[str, float]) -> None:
        """Write one line of metrics, and the same values for TensorBoard. `kind` is `train` or `evaluation`."""
        with naming(self._file):
            numbers = {name: value if math.isfinite(value) else None for name, value in values.items()}
            self._metrics.write(json.dumps({"kind": kind, "step": step, **numbers}) + "\n")
            self._metrics.flush()
        for name, value in values.items():
            self._events.add_scalar(f"{kind}/{name}", value, step)

    def close(self) -> None:
        try:
            with naming(self._file):
                self._metrics.close()
        finally:
            self._events.close()


def create_run(config: Configuration, environment: Mapping[str, Any]) -> None:
    """Write the configuration and environment of a new run to the run's folder.

    This process must have locked the folder.

    If a partly removed run has left a checkpoint in the folder, remove the checkpoint.

    Raises:
        RunError: the folder already has a run.
    """
    folder = Path(config.run)
    check_no_run(folder)
    (folder / CHECKPOINT).unlink(missing_ok=True)  # It remained from a run that was only partly removed.
    write_whole(folder / ENVIRONMENT, json.dumps(environment, indent=2) + "\n")
    write_whole(folder / CONFIG, config.to_json())


def has_run(folder: Path) -> bool:
    return (folder / CONFIG).exists()


def check_no_run(folder: Path, *, replace: str = "remove it") -> None:
    """Check that `folder` has no run.

    `replace` is the part of the message that tells the user how to replace the run.

    Raises:
        RunError: the folder already has a run.
    """
    if has_run(folder):
        raise RunError(f"{folder} already contains a run: resume it with --resume, {replace}, or choose another --out")


def remove_run(folder: Path) -> None:
    """Remove the run in `folder`, if there is one.

    Raises:
        LockError: another process uses the folder.
        RunError: the run's configuration can't be read; the folder has files that are not of the run, such as other
            runs; or the folder can't be removed.
    """
    if not has_run(folder):
        return
    # `read_config` refuses a transformers model folder, which also contains a config.json.
    stored_config(folder, RunConfig)
    with locked(folder):
        check_files(folder)
        try:
            shutil.rmtree(folder)
        except OSError as error:
            raise RunError(f"{folder}: {error.strerror}") from error


def check_files(folder: Path) -> None:
    """Check that the folder of a run has only files of the run.

    Raises:
        RunError: the folder has other files, such as other runs.
    """
    others = (one for one in folder.iterdir() if not any(fnmatchcase(one.name, name) for name in RUN_FILES))
    if other := min(others, default=None):
        raise RunError(f"{other}: is not a file of the run, so {folder} is not removed: move it to another folder")


def stored_config(folder: Path, kind: type[C]) -> C:
    """Read the configuration of the run in `folder`.

    Raises:
        RunError: the folder has no run, or the run's configuration can't be read.
    """
    if not has_run(folder):
        raise RunError(f"{folder} contains no run")
    return read_config(folder / CONFIG, kind)


def read_config(file: Path, kind: type[C]) -> C:
    """Read the configuration in a `config.json`.

    Raises:
        RunError: the configuration can't be read.
    """
    try:
        return kind.from_json(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise RunError(f"{file}: {error.strerror}") from error
    except ValueError as error:  # The error is a ConfigError, or the file is not UTF-8.
        raise RunError(f"{file}: {error}") from error
    except RecursionError as error:
        raise RunError(f"{file}: nested too deep") from error


def evaluations(folder: Path, *, until: float = math.inf) -> list[dict[str, Any]]:
    """Return every evaluation of the run in `folder`, up to the step `until`.

    Each evaluation has its step and its scores. It also has the mean of each measure of the objective, over the steps
    since the previous evaluation.
    """
    file = folder / METRICS
    with naming(file):
        lines = [json.loads(line) for line in _lines_until(file, until)]
    found, steps = [], list[dict[str, Any]]()
    for line in lines:
        if line.pop("kind") == "train":
            steps.append(line)
        else:
            found.append(line | _means(steps))
            steps.clear()
    return found


def _means(steps: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Return the mean of each measure of the objective over `steps`. Leave out measures that some steps lack."""
    return {
        name: fmean(step[name] for step in steps) for name in MEASURED if steps and all(name in each for each in steps)
    }


def fsync_metrics(folder: Path) -> None:
    """Flush the metrics of the run in `folder` to disk.

    Call this before a checkpoint is written. Otherwise a power loss could keep the checkpoint but lose the metrics of
    earlier steps.

    Raises:
        OSError: the disk fails; the error names the file.
    """
    metrics = folder / METRICS
    with naming(metrics):
        fsync(metrics)


def _keep_until(metrics: Path, step: int) -> None:
    """Delete the lines of steps after `step`, and everything from the first broken line on.

    A broken line is half a line that a killed process left, or NUL bytes that a power loss left.
    """
    if metrics.exists():
        with replacing(metrics) as beside:
            beside.write_bytes(b"".join(_lines_until(metrics, step)))


def _lines_until(metrics: Path, step: float) -> Iterator[bytes]:
    lines = metrics.read_bytes().splitlines(keepends=True)
    return takewhile(lambda line: (at := _step_of(line)) is not None and at <= step, lines)


def _step_of(line: bytes) -> int | None:
    """Return the step of a line of metrics, or None if the line is incomplete."""
    try:
        values = json.loads(line) if line.endswith(b"\n") else None
    except ValueError:
        return None
    step = values.get("step") if isinstance(values, dict) else None
    return step if isinstance(step, int) else None
