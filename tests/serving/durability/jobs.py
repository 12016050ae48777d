"""Jobs of a server: start, and wait for the end."""

from __future__ import annotations

import time
from typing import Any

import httpx

FINAL = ("succeeded", "failed", "cancelled")
NAP = 0.02


class JobFailedError(RuntimeError):
    """A job did not succeed. The message describes the job."""


def started(answer: httpx.Response) -> str:
    """Return the id of the accepted job."""
    if answer.status_code != 202:
        raise JobFailedError(f"{answer.request.url}: {answer.status_code} {answer.text[:300]}")
    return str(answer.json()["id"])


def ended(client: httpx.Client, job: str) -> dict[str, Any]:
    """Wait for the end of a job and return it.

    Raises:
        JobFailedError: it did not succeed.
    """
    while (found := _job(client, job))["state"] not in FINAL:
        time.sleep(NAP)
    if found["state"] != "succeeded":
        raise JobFailedError(str(found))
    return found


def all_ended(client: httpx.Client) -> None:
    """Wait for the end of all jobs, successful or not."""
    while any(job["state"] not in FINAL for job in client.get("/jobs").raise_for_status().json()["jobs"]):
        time.sleep(NAP)


def _job(client: httpx.Client, job: str) -> dict[str, Any]:
    found: dict[str, Any] = client.get(f"/jobs/{job}").raise_for_status().json()
    return found
