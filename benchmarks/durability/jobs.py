"""Jobs of a server: started, waited for."""

from __future__ import annotations

import time
from typing import Any

import httpx

FINAL = ("succeeded", "failed", "cancelled")
NAP = 0.02


class JobFailedError(RuntimeError):
    """It ended otherwise than well; the message is the job."""


def started(answer: httpx.Response) -> str:
    """The id of what was accepted."""
    if answer.status_code != 202:
        raise JobFailedError(f"{answer.request.url}: {answer.status_code} {answer.text[:300]}")
    return str(answer.json()["id"])


def ended(client: httpx.Client, job: str) -> dict[str, Any]:
    """The job, once it succeeded.

    Raises:
        JobFailedError: it did not.
    """
    while (found := _job(client, job))["state"] not in FINAL:
        time.sleep(NAP)
    if found["state"] != "succeeded":
        raise JobFailedError(str(found))
    return found


def all_ended(client: httpx.Client) -> None:
    """Whatever they came to."""
    while any(job["state"] not in FINAL for job in client.get("/jobs").raise_for_status().json()["jobs"]):
        time.sleep(NAP)


def _job(client: httpx.Client, job: str) -> dict[str, Any]:
    found: dict[str, Any] = client.get(f"/jobs/{job}").raise_for_status().json()
    return found
