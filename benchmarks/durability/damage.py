"""Damages copies of a data folder, one case after another, and looks at what a server makes of each.

Reads lines of JSON: first the folder, a place to work and the states that may be found, then a case a line; prints a
verdict and a reason for each. A process of its own, since a case may end it.
"""

from __future__ import annotations

import json
import logging
import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import numpy as np

from benchmarks.durability.history import State, Verdict, sort_out
from benchmarks.durability.inside import FailedError, serving
from benchmarks.durability.traffic import CORPUS, DIM, MOST, listed
from serving.engines.fake import FakeEngine
from serving.ports import StoreError


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


class RefusedError(RuntimeError):
    """A request was answered with an error; the message is the server's."""


def look(folder: Path, case: Case, states: Sequence[State]) -> tuple[str, str]:
    """right, earlier (a state before), refused (naming the file), unnamed (refused without), wrong; and why."""
    try:
        with serving(folder) as client:
            return _found(client, states)
    except (StoreError, FailedError, RefusedError) as error:
        name = Path(case.file).name.removesuffix("-wal")
        return ("refused" if name in str(error) else "unnamed"), str(error)[:300]


def _found(client: httpx.Client, states: Sequence[State]) -> tuple[str, str]:
    engine, verdict = FakeEngine(), Verdict()
    views = {}
    for view, more in {"search": {}, "exact": {"exact": True}}.items():
        asked = {"vector": [1.0] * DIM, "k": MOST, "with_vector": True, **more}
        hits = _checked(client, "POST", f"/corpora/{CORPUS}/search", asked)["hits"]
        embedded: Any = engine.embed(engine.tokenize([hit["text"] for hit in hits], "right")).vectors if hits else []
        for hit, vector in zip(hits, embedded, strict=True):
            if not np.allclose(hit["vector"], vector, atol=1e-5):
                return "wrong", f"{view}: the vector of {hit['id']}"
        views[view] = [{name: hit[name] for name in ("id", "text", "metadata")} for hit in hits]
    _checked(client, "GET", f"/corpora/{CORPUS}/documents")
    views["list"] = list(listed(client))
    found = {view: sort_out(documents, verdict, view) for view, documents in views.items()}
    if verdict.wrong or any(state != found["list"] for state in found.values()):
        return "wrong", str(verdict.examples or found)[:300]
    state = next(iter(found["list"].values()), {})
    if state == states[-1]:
        return "right", ""
    return ("earlier", "") if state in states else ("wrong", str(state)[:300])


def _checked(client: httpx.Client, method: str, path: str, body: object = None) -> Mapping[str, Any]:
    answer = client.request(method, path, json=body)
    if answer.status_code >= 500:
        raise RefusedError(answer.text)
    if answer.status_code == 404:
        return {"hits": []}
    found: Mapping[str, Any] = answer.raise_for_status().json()
    return found


def main() -> None:
    """Until there are no more cases."""
    logging.disable()
    task = json.loads(sys.stdin.readline())
    for line in sys.stdin:
        case, work = Case(**json.loads(line)), Path(task["work"])
        shutil.rmtree(work, ignore_errors=True)
        shutil.copytree(task["folder"], work)
        case.damage(work)
        print(json.dumps(look(work, case, task["states"])), flush=True)


if __name__ == "__main__":
    main()
