"""The parts of a GPU session: the plan with the seconds of each part, the settings, the results and the processes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import traceback
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any, Literal, NamedTuple, Self

from benchmarks.surroundings import read
from models.bundle.disk import make_folder, write_whole
from models.errors import first_line

LIMIT = 11 * 60
"""Maximum seconds of the whole session."""
ROOT = Path(__file__).parents[2]
PROGRAM = (sys.executable, "-m", "benchmarks.gpu.part")
GRACE = 5.0
"""Seconds at the end of a part's time limit in which the part is ended."""
LAST_LINES = 15
"""Number of lines that are shown from the output of a failed part."""


@dataclass(frozen=True, kw_only=True)
class Setting:
    """Options of the command, and the time at which the part must end."""

    device: Literal["cuda", "cpu"]
    tiny: bool
    """True for a rehearsal, which runs the same code on sizes that are too small to measure anything."""
    corpus: tuple[str, ...]
    """Files with one sentence per line. Empty means CPython's documentation."""
    data: str | None
    """Evaluation data: a folder in SentEval's layout."""
    to: str
    """Folder of the results."""
    command: str
    commit: str | None
    """Commit of the code, if the checkout has no git."""
    ends: float
    """Time at which the part must end, in seconds of `time.monotonic`, which all processes of a machine share."""

    @property
    def left(self) -> float:
        return self.ends - time.monotonic()

    def file(self, part: str) -> Path:
        return Path(self.to) / f"{part}.json"

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Self:
        values: dict[str, Any] = json.loads(text)
        return cls(**values | {"corpus": tuple(values["corpus"])})


class Step(NamedTuple):
    """A step of the plan: a transfer to the GPU machine, or a part of the benchmark."""

    seconds: int
    """Maximum seconds of the step. A part that takes longer is ended."""
    what: str


TRANSFERS = {
    "runtimes": Step(50, "this repository, ONNX Runtime with CUDA and the server's packages"),
    "faiss": Step(25, "FAISS with its CUDA libraries"),
    "data": Step(15, "minilm's weights, a corpus, the STS data"),
}
PARTS = {
    "checks": Step(65, "the tests that need a device, and the contract tests of every runtime on it"),
    "serving": Step(125, "our server in float16 compared with sentence-transformers and ONNX Runtime alone"),
    "search": Step(110, "FAISS on the device compared with HNSW on the CPU"),
    "training": Step(170, "training steps of every objective and of two peers, and one run over a million sentences"),
    "studies": Step(50, "the papers' ablations from minilm, several runs at once"),
    "pretraining": Step(50, "a language model, and encoders trained from it"),
}
"""Parts of the benchmark, most important first. Each is a module of this package with a function `measure`."""
LAST = "pretraining"
"""Name of the last part, which also gets the seconds that earlier parts did not use."""
REHEARSAL = 600
"""Maximum seconds of each part of a rehearsal, which may run beside other work."""

STUDIES = ("studies/gs-infonce/table-3.toml", "studies/whitenedcse/table-5.toml")
"""Study files of the part `studies`, in the order in which they run until the part's time is up."""
JOBS = 12
"""Number of a study's runs that use the device at the same time."""


def table() -> str:
    """Return the plan as text for a terminal, with a line for each transfer and each part, and the sum."""
    rows = [
        *((f"transfer {name}", *step) for name, step in TRANSFERS.items()),
        *((name, *step) for name, step in PARTS.items()),
        ("all", total(), f"of {LIMIT}"),
    ]
    return "\n".join(f"{name:18}{seconds:5} s  {what}" for name, seconds, what in rows)


def total() -> int:
    return sum(step.seconds for step in (*TRANSFERS.values(), *PARTS.values()))


class Report:
    """Writer of a part's results. It rewrites `PART.json` after each measurement."""

    def __init__(self, file: Path, head: Mapping[str, Any]) -> None:
        self._file, self._began = file, time.monotonic()
        self._head, self._figures, self._errors = dict(head), dict[str, Any](), list[str]()
        make_folder(file.parent)
        self._write()

    @property
    def failed(self) -> bool:
        return bool(self._errors)

    def keep(self, name: str, figures: Any) -> None:
        """Store the figures of a measurement under `name`, and replace earlier figures of this name."""
        self._figures[name] = figures
        self._write()

    @contextmanager
    def attempt(self, name: str) -> Iterator[None]:
        """Record an error of the measurement in the block, and continue after the block."""
        try:
            yield
        except Exception as error:
            traceback.print_exc()
            self.fail(f"{name}: {type(error).__name__}: {first_line(error)}")

    def fail(self, error: str) -> None:
        """Append a message to the file's `error`."""
        self._errors.append(error)
        self._write()

    def _write(self) -> None:
        content = self._head | {"seconds": round(time.monotonic() - self._began, 1)}
        content |= {"error": "; ".join(self._errors)} if self._errors else {}
        write_whole(self._file, json.dumps(content | {"figures": self._figures}, indent=1) + "\n")


def add_error(file: Path, part: str, command: str, error: str) -> None:
    """Record the reason why a part's process ended, if the process could not do this itself."""
    content = read(file) or {"part": part, "command": command}
    figures = content.pop("figures", {})
    said = [content["error"], error] if "error" in content else [error]
    content |= {"error": "; ".join(said), "figures": figures}
    make_folder(file.parent)
    write_whole(file, json.dumps(content, indent=1) + "\n")


def carry_out(part: str, setting: Setting, seconds: float, program: Sequence[str] = PROGRAM) -> bool:
    """Run a part for at most `seconds`, and return whether everything succeeded."""
    began, file = time.monotonic(), setting.file(part)
    file.unlink(missing_ok=True)
    told = replace(setting, ends=began + seconds - GRACE)
    with TemporaryFile() as log:
        code = end_of([*program, part, told.to_json()], log.fileno(), seconds)
        log.seek(0)
        lines = log.read().decode(errors="replace").splitlines()
    if code:
        print(*deque(lines, LAST_LINES), sep="\n", file=sys.stderr, flush=True)
    if code is None:
        add_error(file, part, setting.command, f"not finished within its limit of {seconds:.0f} seconds")
    elif code not in (0, 1) or not file.exists():
        add_error(file, part, setting.command, f"ended with exit code {code}: {(lines or ['no output'])[-1]}")
    print(f"{part}: {time.monotonic() - began:.0f} s, {'failed' if code != 0 else 'done'}: {file}", flush=True)
    return code == 0


def end_of(command: Sequence[str], log: int, seconds: float) -> int | None:
    """Wait for a process and return its exit status, or None if it was ended because its time was up.

    The process leads a process group. All servers and workers that it started are ended with it, which frees the
    device.
    """
    path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    process = subprocess.Popen(
        command,
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": path, "HF_HUB_OFFLINE": "1"},
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )
    try:
        return process.wait(seconds - GRACE / 2)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGTERM)
        with suppress(subprocess.TimeoutExpired):
            process.wait(GRACE / 2)
        return None
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
