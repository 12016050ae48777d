"""Damages copies of a data folder, one case after another, and looks at what a server makes of each.

Reads lines of JSON: first the folder, a place to work and the states that may be found, then a case a line; prints a
verdict and a reason for each. A process of its own, since a case may end it.
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

from benchmarks.durability.copies import COPY
from benchmarks.durability.history import State, Verdict, sort_out
from benchmarks.durability.inside import FailedError, serving
from benchmarks.durability.jobs import FINAL
from benchmarks.durability.traffic import CORPUS, DIM, MOST, listed
from serving.engines.fake import FakeEngine
from serving.ports import StoreError

Look = Literal["opened", "restored", "continued"]
"""What is done with a damaged folder: a server looks at the corpus, restores the snapshot, goes on with the upload."""
LONGEST = 30.0
"""Seconds that a job may take."""


@dataclass(frozen=True)
class Case:
    """A byte of a file, and what becomes of it."""

    file: str
    at: int
    how: str
    """flip: all its bits; cut: the file ends before it."""

    def damage(self, folder: Path) -> None:
        """Do it."""
        file = folder / self.file
        content = bytearray(file.read_bytes())
        if self.how == "cut":
            del content[self.at :]
        else:
            content[self.at] ^= 0xFF
        file.write_bytes(content)

    @property
    def name(self) -> str:
        """What the file is called where it is spoken of: by its corpus if it is a log, a snapshot by its id."""
        return Path(self.file).name.removesuffix("-wal").removesuffix(".tar.zst")

    def refused(self, why: str) -> tuple[str, str]:
        """What it is to say so."""
        return ("refused" if self.name in why else "unnamed"), why[:300]


class RefusedError(RuntimeError):
    """A request was answered with an error, or a job failed; the message is the server's."""


class WrongError(RuntimeError):
    """It is not what it may be; the message is what it is."""


@dataclass(frozen=True)
class Task:
    """What all cases of a specimen have in common."""

    folder: str
    work: str
    """Folder for the damaged copies, one after another."""
    states: Sequence[State]
    look: Look
    subject: str
    """The snapshot that is restored, or the job that is gone on with."""

    def looked(self, case: Case) -> tuple[str, str]:
        """right, earlier (a state before), refused (naming the file), unnamed (refused without), wrong; and why."""
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
    """Under another name; what was there stays as it is in any case."""
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
    """Whatever came of the upload, what is there was uploaded; if it succeeded, all of it is there.

    A log without a byte is none: the file beside it is then the last good record, and knows no job.
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
    """Why it did, once it has ended; None if it succeeded."""
    ends = time.monotonic() + LONGEST
    while (found := _checked(client, "GET", f"/jobs/{job}"))["state"] not in FINAL:
        if time.monotonic() > ends:
            raise WrongError(f"no end of {found}")
        time.sleep(0.002)
    return None if found["state"] == "succeeded" else "; ".join(error["error"] for error in found["errors"])


def _found(client: httpx.Client, corpus: str) -> State:
    """What every view of a corpus shows.

    Raises:
        RefusedError: it is not served.
        WrongError: it is gone, or what is shown was never written, or the views differ.
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
    """Until there are no more cases."""
    logging.disable()
    task = Task(**json.loads(sys.stdin.readline()))
    for line in sys.stdin:
        case, work = Case(**json.loads(line)), Path(task.work)
        shutil.rmtree(work, ignore_errors=True)
        shutil.copytree(task.folder, work)
        case.damage(work)
        print(json.dumps(task.looked(case)), flush=True)


if __name__ == "__main__":
    main()
