"""Suppression of messages that transformers and the hub print while they load weights."""

from __future__ import annotations

import os
import sys


def quieten() -> None:
    """Turn off progress bars of transformers and the hub, and reports on weights that pooling does not need.

    This sets environment variables, because importing the libraries takes seconds, and not every command imports them.
    The libraries read the variables when they are imported, and child processes inherit them. Libraries that are
    already imported are configured directly.
    """
    os.environ["TRANSFORMERS_VERBOSITY"] = "error"
    os.environ["HF_HUB_DISABLE_PROGRESS_BARS"] = "1"
    if hub := sys.modules.get("huggingface_hub.utils"):
        hub.disable_progress_bars()
    if logging := sys.modules.get("transformers.utils.logging"):
        logging.disable_progress_bar()
        logging.set_verbosity_error()
