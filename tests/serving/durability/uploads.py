"""Long uploads with concurrent writers of the same documents. Writes during a job survive its end."""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

import httpx
import numpy as np
import orjson

from tests.serving.durability.fakes import FINGERPRINTS, embedded
from tests.serving.durability.history import Verdict, body, sort_out
from tests.serving.durability.overlaps import Change, Overlaps
from tests.serving.durability.server import NAP, JobFailedError, all_ended, ended, started
from tests.serving.durability.traffic import DIM, MOST, REFUSED, listed

LONG = "long"
"""Name of the corpus of long uploads, which moves between encoders, and of its writer."""
PLACE = f"/corpora/{LONG}/documents"
DOCUMENTS = 600
"""Documents of a long upload. They take at least three commits, so that it can be interrupted in the middle."""
TOGETHER = 2
"""Number of uploads at once. One waits for the other."""
AFTER_RESTART = 20
"""Number of writes while the jobs of a previous server continue."""


@dataclass
class Uploads:
    """Upload jobs, and concurrent changes of their documents."""

    verdict: Verdict
    encoders: Sequence[str] = ()
    """Encoders that the corpus moves between."""
    there: bool = False
    """True once the creation of the corpus was acknowledged."""
    documents: Overlaps = field(default_factory=Overlaps)
    accepted: dict[str, Change] = field(default_factory=dict)
    """Jobs that were not seen to end, oldest first."""
    rng: random.Random = field(default_factory=lambda: random.Random(0))

    def long_uploads(self, client: httpx.Client) -> None:
        """Run jobs that write new versions of many documents. Then re-embed with another encoder, if there is one."""
        client.put(f"/corpora/{LONG}").raise_for_status()
        self.there = True
        for _ in range(TOGETHER):
            self._upload(client)
        self._end(client)
        self._judge(client)
        if self.encoders:
            model = next(one for one in self.encoders if FINGERPRINTS[one] != _encoder(client))
            ended(client, started(client.post(f"/corpora/{LONG}/reembed", json={"model": model})))
            if (served := _encoder(client)) != FINGERPRINTS[model]:
                raise JobFailedError(f"embedded again by {model}, but is of {served}")

    def rival_writes(self, client: httpx.Client) -> None:
        """Write, remove or read a document of the uploads."""
        if not self.there:
            time.sleep(NAP)
            return
        name, kind = f"{LONG}-{self.rng.randrange(DOCUMENTS)}", self.rng.random()
        since = self.documents.now()
        if kind < 0.3:
            answer = client.get(f"{PLACE}/{name}")
            seen = answer.json()["metadata"]["version"] if answer.status_code == 200 else None
            self.documents.judge_one(name, seen, since, self.verdict, "get beside uploads")
            return
        version = None if kind < 0.6 else self.documents.next_version()
        change = self.documents.send([name], version)
        if version is None:
            answer = client.delete(f"{PLACE}/{name}")
        else:
            answer = client.post(PLACE, json={"documents": [body(name, version, LONG)]})
        self._answered(answer, name, change, since)

    def check(self, client: httpx.Client, *, there: bool) -> None:
        """Check after a start that acknowledged changes are there, and that jobs end despite concurrent writes."""
        self.documents.cut()
        if not there:
            if self.there:
                self.verdict.note("lost", f"corpus {LONG}")
            return
        self._judge(client)
        for _ in range(AFTER_RESTART):
            self.rival_writes(client)
        try:
            self._end(client)
        except (httpx.HTTPStatusError, JobFailedError) as error:
            self.verdict.note("lost", f"jobs {list(self.accepted)}: {error}")
            self.accepted.clear()
        all_ended(client)
        self.documents.settle(self._judge(client))
        self._check_vectors(client)

    def _upload(self, client: httpx.Client) -> None:
        version, names = self.documents.next_version(), [f"{LONG}-{i}" for i in range(DOCUMENTS)]
        lines = b"\n".join(orjson.dumps(body(name, version, LONG)) for name in names)
        change = self.documents.send(names, version)
        kind = {"content-type": "application/x-ndjson"}
        job = started(client.post(f"{PLACE}?async=true", content=lines, headers=kind))
        self.documents.accept(change)
        self.accepted[job] = change

    def _end(self, client: httpx.Client) -> None:
        """Wait for the accepted jobs."""
        for job, change in list(self.accepted.items()):
            ended(client, job)
            self.documents.finish(change)
            del self.accepted[job]

    def _answered(self, answer: httpx.Response, name: str, change: Change, since: int) -> None:
        if answer.status_code in REFUSED:
            self.documents.refuse(name, change)
            time.sleep(NAP)
        elif answer.status_code == 404 and change.version is None:
            self.documents.refuse(name, change)
            self.documents.judge_one(name, None, since, self.verdict, "delete beside uploads")
        else:
            answer.raise_for_status()
            self.documents.finish(change)

    def _judge(self, client: httpx.Client) -> dict[str, int]:
        since = self.documents.now()
        found = sort_out(listed(client, LONG), self.verdict, LONG).get(LONG, {})
        self.documents.judge(found, since, self.verdict, LONG)
        return found

    def _check_vectors(self, client: httpx.Client) -> None:
        """Check that all vectors are from the encoder that the corpus names."""
        fingerprint = _encoder(client)
        asked = {"vector": [1.0] * DIM, "k": MOST, "with_vector": True}
        hits = client.post(f"/corpora/{LONG}/search", json=asked).raise_for_status().json()["hits"]
        vectors = np.array([hit["vector"] for hit in hits]).reshape(len(hits), DIM)
        if not np.allclose(vectors, embedded([hit["text"] for hit in hits], fingerprint), atol=1e-5):
            self.verdict.note("torn", f"{LONG}: vectors that are not of {fingerprint}")


def _encoder(client: httpx.Client) -> str:
    """Return the fingerprint of the encoder that embedded the corpus."""
    return str(client.get(f"/corpora/{LONG}").raise_for_status().json()["fingerprint"])
