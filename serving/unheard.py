"""Log failures of work whose caller was cancelled."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

from serving.errors import ServiceError

log = logging.getLogger(__name__)


async def ended(work: asyncio.Future[Any]) -> None:
    """Wait until `work` ends. Log its failure, unless it is an error meant for the caller."""
    work.add_done_callback(_heard)
    await asyncio.wait([work])


def _heard(work: asyncio.Future[Any]) -> None:
    if not work.cancelled() and (error := work.exception()) and not isinstance(error, ServiceError):
        log.error("work whose caller was cancelled failed", exc_info=error)
