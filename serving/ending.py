"""The end of the process."""

from __future__ import annotations

import logging
import os
import sys
import threading

from serving.encoders.loading import THREAD as LOADS
from serving.indexes.building import THREAD as BUILDS


def ended(status: int) -> int:
    """Return `status`, or exit at once if a thread still loads a model or builds an index.

    These threads can't be interrupted, and native code that runs during Python's shutdown may crash. Call this last.
    """
    if any(thread.name in (BUILDS, LOADS) for thread in threading.enumerate()):
        logging.shutdown()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)
    return status
