"""Background jobs, which survive restarts."""

from __future__ import annotations

from serving.jobs.idempotency import Answer, Keyed, Requests
from serving.jobs.job import Duplicate, Job
from serving.jobs.jobs import Jobs, Work
from serving.jobs.running import Running
from serving.jobs.spool import Spool

__all__ = ["Answer", "Duplicate", "Job", "Jobs", "Keyed", "Requests", "Running", "Spool", "Work"]
