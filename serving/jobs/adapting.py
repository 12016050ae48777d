"""Adaptation of an encoder to the texts of a corpus, by a child process with the command `isosphere adapt`."""

from __future__ import annotations

import fcntl
import json
import os
import re
import shutil
import signal
import subprocess
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib.util import find_spec
from itertools import islice
from pathlib import Path
from time import sleep
from typing import Any

from models import cpus
from models.bundle.disk import fsync, make_folder, replacing
from serving.corpora.backend import Backend
from serving.corpora.snapshots import Progress
from serving.corpora.values import Content
from serving.errors import Conflict, Invalid, ServiceError, Stopped, TooLarge, Unhealthy, Unsupported
from serving.inference.encoders import ServedModel
from serving.jobs.job import Job, as_json
from serving.operations.child_process import CHECKED_EVERY, drained, lines, reaped, running
from serving.operations.files import disk_errors
from serving.operations.threads import check_cancelled
from serving.settings import Settings

MODULE = "isosphere"
MISSING = (
    "adapting an encoder needs the extra 'train', which is not installed on the server: pip install 'isosphere[train]'"
)
MOST_PASSAGES = 10_000
"""Maximum number of passages for training, because more would take hours. Of a larger corpus, every n-th passage is
used."""
MOST_CHARACTERS = 5000
"""Maximum characters of a passage that are used for training. Encoders read fewer characters than that."""
MOST_TITLE_CHARACTERS = 500
MOST_KEPT = 5
"""Maximum number of adapted encoders that the server keeps for a corpus."""
NICE = 10
"""Amount by which the niceness of the child process exceeds that of the server, so that requests are served first."""
GRACE_SECONDS = 10.0
"""Maximum seconds that a cancelled child process may take to finish its step and save a checkpoint."""
INHERITED = ("CUDA_VISIBLE_DEVICES", "HOME", "LD_LIBRARY_PATH", "PATH", "TMPDIR", "XDG_CACHE_HOME")
"""Environment variables that the child process inherits."""
RESULT = "result.json"
STEP = re.compile(rb"step (\d+)/(\d+): ")
"""Pattern for the beginning of a progress line (`training.checkpoints.progress`)."""
COMPLAINT = "isosphere: "
"""Prefix of the line in which a command reports why it failed."""
LAST_LINES = 20


def is_installed() -> bool:
    """Return whether the packages for training are installed."""
    return all(find_spec(name) for name in ("torch", "transformers"))


def check_allowed(settings: Settings) -> None:
    """Raise `Unsupported` if `--no-adapt` is set or the packages for training are not installed."""
    if settings.no_adapt:
        raise Unsupported("this server does not adapt encoders, because it was started with --no-adapt")
    if not is_installed():
        raise Unsupported(MISSING)


@dataclass(frozen=True)
class Adaptations:
    """The folders of running jobs (`working`) and of adapted encoders (`made`). The methods block.

    Both folders have a subfolder for each corpus. The files of a subfolder count towards the disk quota of each API key
    that may use the corpus.
    """

    working: Path
    made: Path

    def work(self, job: Job) -> Path:
        """Return the folder in which a job works. This folder contains the texts and checkpoints of the training."""
        return self.working / job.corpus / job.id

    def check_room(self, job: Job) -> None:
        """Raise `Conflict` if the server already keeps `MOST_KEPT` encoders for the corpus of `job`.

        Encoders that `job` itself made are not counted. Nothing is deleted to make room, because a server may be
        started with any of these encoders.
        """
        made = self.made / job.corpus
        kept = [one for one in made.glob("*") if not one.name.startswith(_name(job))]
        if len(kept) >= MOST_KEPT:
            raise Conflict(
                f"the server already keeps {len(kept)} encoders for the corpus {job.corpus!r}, which is the "
                f"maximum: ask its operator to delete folders in {made} that no server uses"
            )

    def discard(self, job: Job) -> None:
        """Delete the folder in which a job worked."""
        shutil.rmtree(self.work(job), ignore_errors=True)

    def sweep(self, unfinished: Callable[[str], Sequence[str]]) -> None:
        """Delete the work folders of ended jobs. `unfinished` returns the ids of a corpus's unfinished jobs."""
        for folder in self.working.glob("*/*"):
            if folder.name not in unfinished(folder.parent.name):
                shutil.rmtree(folder, ignore_errors=True)


def adapted(
    corpora: Backend, served: ServedModel, adaptations: Adaptations, job: Job, progress: Progress
) -> dict[str, Any]:
    """Adapt a served encoder to the passages of a corpus, and report finished steps to `progress`. This call blocks.

    The command `isosphere adapt` does the work in a child process. Return the command's report, with the name (`model`)
    and the folder (`bundle`) of the best new encoder, and with the requests that bring this encoder into use (`next`).
    If no new encoder is better than the served encoder, `model` and `bundle` are None, and `next` is empty.

    An interrupted job continues from the last checkpoint of its training. It uses the passages that it read at its
    first start.

    Raises:
        Stopped: the work was cancelled; the child process has ended.
        Invalid: the corpus has too few passages, or most of them are single sentences.
        TooLarge: the memory of the server is not enough.
        Unhealthy: the child process failed for another reason.
        InsufficientStorage: the disk is full.
    """
    work, name = adaptations.work(job), _name(job)
    with disk_errors(work), locked(work) as lock:
        texts, start = work / f"{job.corpus}.jsonl", work / Path(served.name).name
        if not texts.exists():
            _write(corpora, job.corpus, texts)
        start.unlink(missing_ok=True)
        # Use a link, so that neither errors nor the result contain paths of the server.
        start.symlink_to(served.folder.absolute())
        options = ["--backbone", f"./{start.name}", "--out", name, "--json", RESULT]
        options += ["--max-steps", str(steps)] if (steps := job.options.get("max_steps")) else []
        options += ["--resume"] if (work / "runs" / f"{name}-trained" / "config.json").exists() else []
        _run(work, lock, progress, "adapt", texts.name, *options)
        report = json.loads((work / RESULT).read_text(encoding="utf-8"))
        folders = {one["stage"]: one.pop("encoder") for one in report["encoders"]}
        bundle = _kept(work / folders[report["best"]], adaptations.made / job.corpus) if report["best"] else None
    return {
        **report,
        "start": served.name,
        "model": bundle and bundle.name,
        "bundle": bundle and str(bundle),
        "next": _next(bundle, job.corpus) if bundle else [],
    }


def _name(job: Job) -> str:
    """Return the name of the whitened encoder that a job makes.

    The encoder that the job trains first, without whitening, has the same name with the suffix `-trained`.
    """
    return f"{job.corpus}-{job.id[:8]}"


def _kept(bundle: Path, made: Path) -> Path:
    """Move a bundle to the folder of a corpus's adapted encoders. Return the new path of the bundle."""
    kept = made.absolute() / bundle.name
    make_folder(made)
    # An earlier run of this job may have moved a bundle before the server was killed.
    shutil.rmtree(kept, ignore_errors=True)
    bundle.rename(kept)
    fsync(made)
    return kept


def _next(bundle: Path, corpus: str) -> list[dict[str, Any]]:
    """Return the two requests that load a bundle and then embed the corpus with it."""
    return [
        {"method": "POST", "path": "/admin/models", "body": {"bundle": str(bundle)}},
        {"method": "POST", "path": f"/corpora/{corpus}/reembed", "body": {"model": bundle.name}},
    ]


def _write(corpora: Backend, name: str, file: Path) -> None:
    """Write at most `MOST_PASSAGES` passages of a corpus, with their documents' titles, to a file of JSON lines."""
    _, size = corpora.corpus(name)
    some = islice(_rows(corpora.contents(name)), 0, None, max(1, -(-size.passages // MOST_PASSAGES)))
    with replacing(file) as part, part.open("w", encoding="utf-8") as written:
        written.writelines(as_json(row) + "\n" for row in some)


def _rows(contents: Iterable[Content]) -> Iterator[dict[str, str]]:
    for content in contents:
        check_cancelled()
        for place, document in enumerate(content.documents):
            title = document.metadata.get("title")
            titled = {"title": title[:MOST_TITLE_CHARACTERS]} if isinstance(title, str) else {}
            spans = content.spans[place] if content.spans else [(0, len(document.text))]
            for start, end in spans:
                yield titled | {"text": document.text[start : min(end, start + MOST_CHARACTERS)]}


@contextmanager
def locked(folder: Path) -> Iterator[int]:
    """Lock a folder while the block runs, and yield the file descriptor of the lock.

    The child process of a job inherits the descriptor. If the server is killed, the child process keeps the lock until
    it ends. The next server process waits for the lock.
    """
    make_folder(folder)
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        while True:
            with suppress(BlockingIOError):
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            check_cancelled()
            sleep(CHECKED_EVERY)
        yield descriptor
    finally:
        os.close(descriptor)


def _run(folder: Path, lock: int, progress: Progress, *arguments: str) -> None:
    threads = str(max(1, cpus.available() // 2))
    variables = {name: os.environ[name] for name in INHERITED if name in os.environ}
    variables |= {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": threads, "RAYON_NUM_THREADS": threads}
    last: deque[bytes] = deque(maxlen=LAST_LINES)
    with running(
        MODULE,
        *arguments,
        stdin=subprocess.DEVNULL,
        stderr=subprocess.STDOUT,
        variables=variables,
        folder=folder,
        descriptors=[lock],
    ) as child:
        with suppress(OSError):  # a sandbox may forbid this call
            os.setpriority(os.PRIO_PROCESS, child.pid, min(os.nice(0) + NICE, 19))
        with suppress(OSError):  # if memory runs out, Linux then kills this process instead of the server
            Path(f"/proc/{child.pid}/oom_score_adj").write_text("1000")
        try:
            for line in lines(child):
                last.append(line)
                if found := STEP.match(line):
                    done, total = map(int, found.groups())
                    progress.expect(total, total)
                    progress.add(done - progress.done)
        except Stopped:
            child.terminate()  # the process saves a checkpoint after the current training step
            drained(child, GRACE_SECONDS)
            raise
        if status := reaped(child):
            raise _ended(status, [line.decode(errors="replace").strip() for line in last])


def _ended(status: int, said: Sequence[str]) -> ServiceError:
    """Return the error for a child process that failed. `said` has the last lines of its output."""
    if status == -signal.SIGKILL:
        return TooLarge("adapting the encoder needs more memory than the server has")
    why = next((line.removeprefix(COMPLAINT) for line in reversed(said) if line.startswith(COMPLAINT)), None)
    if status == 2 and why:
        return Invalid(why)
    why = why or next(filter(None, reversed(said)), f"exit status {status}")
    return Unhealthy(f"the process that adapts encoders failed: {why}")
