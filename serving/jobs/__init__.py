"""Background jobs. A restart of the server does not lose them."""

from __future__ import annotations

from serving.jobs.job import Duplicate, Job, Running
from serving.jobs.jobs import Jobs, Work
from serving.jobs.ledger import Answer, Keyed, Requests
from serving.jobs.spool import Spool

__all__ = ["Answer", "Duplicate", "Job", "Jobs", "Keyed", "Requests", "Running", "Spool", "Work"]
