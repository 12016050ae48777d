"""Damage of a data folder: damages copies of it, case by case, and checks the server on each.

The process reads lines of JSON: first the task with the folder, a work folder and the allowed states, then one case per
line. It prints a verdict and a reason for each. It is a separate process, because a case may end it.
"""

from __future__ import annotations

import json
import logging
import shutil
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import httpx
import numpy as np

from serving.corpora.ports import StoreError
from serving.inference.fake_engine import FakeEngine
from tests.serving.durability.chores import COPY
from tests.serving.durability.history import State, Verdict, sort_out
from tests.serving.durability.server import FINAL, FailedError, serving
from tests.serving.durability.traffic import CORPUS, DIM, MOST, listed

Look = Literal["opened", "restored", "continued"]
"""Check of a damaged folder: look at the corpus, restore the snapshot, or continue the upload."""
LONGEST = 30.0
"""Maximum seconds of a job."""


@dataclass(frozen=True)
class Case:
    """A byte of a file, with its damage."""

    file: str
    at: int
    how: str
    """Kind of damage: "flip" inverts all bits, and "cut" ends the file before the byte."""

    def damage(self, folder: Path) -> None:
        """Apply the damage."""
        file = folder / self.file
        content = bytearray(file.read_bytes())
        if self.how == "cut":
            del content[self.at :]
        else:
            content[self.at] ^= 0xFF
        file.write_bytes(content)

    @property
    def name(self) -> str:
        """Return the name that errors use for the file: the corpus of a log, or the id of a snapshot."""
        return Path(self.file).name.removesuffix("-wal").removesuffix(".tar.zst")

    def refused(self, why: str) -> tuple[str, str]:
        """Return the verdict for a refusal with this reason."""
        return ("refused" if self.name in why else "unnamed"), why[:300]


class RefusedError(RuntimeError):
    """A request was answered with an error, or a job failed. The message is the server's."""


class WrongError(RuntimeError):
    """The data are wrong. The message is the data found."""


@dataclass(frozen=True)
class Task:
    """The common part of all cases of a specimen."""

    folder: str
    work: str
    """Folder for the damaged copies, one after another."""
    states: Sequence[State]
    look: Look
    subject: str
    """Snapshot to restore, or job to continue."""

    def looked(self, case: Case) -> tuple[str, str]:
        """Return a verdict with its reason.

        Verdicts are right, earlier (an older state), refused (names the file), unnamed (refused without) and wrong.
        """
        try:
            with serving(Path(self.work)) as client:
                if self.look == "opened":
                    return _opened(client, self.states)
                look = _restored if self.look == "restored" else _continued
                return look(client, case, self.subject, self.states[-1])
        except WrongError as error:
            return "wrong", str(error)[:300]
        except (StoreError, FailedError, RefusedError) as error:
            return case.refused(str(error))


def _opened(client: httpx.Client, states: Sequence[State]) -> tuple[str, str]:
    if (state := _found(client, CORPUS)) == states[-1]:
        return "right", ""
    if state not in states:
        raise WrongError(state)
    return "earlier", ""


def _restored(client: httpx.Client, case: Case, snapshot: str, whole: State) -> tuple[str, str]:
    """Restore the snapshot under another name. The existing corpus must stay unchanged."""
    asked = {"snapshot": snapshot, "of": CORPUS}
    failed = _failed(client, str(_checked(client, "PUT", f"/corpora/{COPY}/restore", asked)["id"]))
    if _found(client, CORPUS) != whole:
        raise WrongError("the corpus that the snapshot was made of is another")
    if failed is None:
        if (state := _found(client, COPY)) != whole:
            raise WrongError(state)
        return "right", ""
    if client.get(f"/corpora/{COPY}").status_code != 404:
        raise WrongError(f"there is a copy, though {failed}")
    return case.refused(failed)


def _continued(client: httpx.Client, case: Case, job: str, whole: State) -> tuple[str, str]:
    """Continue the upload.

    Only uploaded documents may exist, and all of them if the job succeeds.

    An empty log is no log: the file beside it is then the last good record, and knows no job.
    """
    if case.file.endswith("-wal") and client.get(f"/jobs/{job}").status_code == 404:
        if _found(client, CORPUS):
            raise WrongError("there is something of an upload that is not known")
        return "earlier", ""
    failed = _failed(client, job)
    state = _found(client, CORPUS)
    if not state.items() <= whole.items() or (failed is None and state != whole):
        raise WrongError(f"{len(state)} rows: {state}")
    return ("right", "") if failed is None else case.refused(failed)


def _failed(client: httpx.Client, job: str) -> str | None:
    """Wait for the end of a job. Return the errors, or None if it succeeded."""
    ends = time.monotonic() + LONGEST
    while (found := _checked(client, "GET", f"/jobs/{job}"))["state"] not in FINAL:
        if time.monotonic() > ends:
            raise WrongError(f"no end of {found}")
        time.sleep(0.002)
    return None if found["state"] == "succeeded" else "; ".join(error["error"] for error in found["errors"])


def _found(client: httpx.Client, corpus: str) -> State:
    """Return the state that all views of a corpus show.

    Raises:
        RefusedError: the corpus is not served.
        WrongError: the corpus is gone, the views differ, or they show something that was never written.
    """
    engine, verdict = FakeEngine(), Verdict()
    views = {}
    for view, more in {"search": {}, "exact": {"exact": True}}.items():
        asked = {"vector": [1.0] * DIM, "k": MOST, "with_vector": True, **more}
        hits = _checked(client, "POST", f"/corpora/{corpus}/search", asked)["hits"]
        embedded: Any = engine.embed(engine.tokenize([hit["text"] for hit in hits], "right")).vectors if hits else []
        for hit, vector in zip(hits, embedded, strict=True):
            if not np.allclose(hit["vector"], vector, atol=1e-5):
                raise WrongError(f"{view}: the vector of {hit['id']}")
        views[view] = [{name: hit[name] for name in ("id", "text", "metadata")} for hit in hits]
    _checked(client, "GET", f"/corpora/{corpus}/documents")
    views["list"] = list(listed(client, corpus))
    found = {view: sort_out(documents, verdict, view) for view, documents in views.items()}
    if verdict.wrong or any(state != found["list"] for state in found.values()):
        raise WrongError(verdict.examples or found)
    return next(iter(found["list"].values()), {})


def _checked(client: httpx.Client, method: str, path: str, body: object = None) -> Mapping[str, Any]:
    answer = client.request(method, path, json=body)
    if answer.status_code >= 500:
        raise RefusedError(answer.text)
    if answer.status_code == 404:
        raise WrongError(answer.text)
    found: Mapping[str, Any] = answer.raise_for_status().json()
    return found


def main() -> None:
    """Run cases until stdin ends."""
    logging.disable()
    task = Task(**json.loads(sys.stdin.readline()))
    for line in sys.stdin:
        case, work = Case(**json.loads(line)), Path(task.work)
        shutil.rmtree(work, ignore_errors=True)
        shutil.copytree(task.folder, work)
        case.damage(work)
        sys.stdout.write(json.dumps(task.looked(case)) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
