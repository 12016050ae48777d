"""The end of the process."""

from __future__ import annotations

import logging
import os
import sys
import threading

from serving.encoders.loading import THREAD as LOADS
from serving.indexes.building import THREAD as BUILDS


def ended(status: int) -> int:
    """The status, when all else is closed; the process ends here if a thread still loads a model or builds an index.

    Nothing can interrupt them, and what native code does under Python's end is anyone's guess.
    """
    if any(thread.name in (BUILDS, LOADS) for thread in threading.enumerate()):
        logging.shutdown()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)
    return status
