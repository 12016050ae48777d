"""What transformers and the hub say unasked while they load weights, and a command's user has no use for."""

from __future__ import annotations

import os
import sys


def quieten() -> None:
    """No bar for each file that transformers or the hub open, no report on weights that pooling does without.

    Both read these variables when they are loaded, which takes seconds and which not every command does; of what is
    loaded already, each is told. Processes that are started from here on are quiet, too.
    """
    os.environ["TRANSFORMERS_VERBOSITY"] = "error"
    os.environ["HF_HUB_DISABLE_PROGRESS_BARS"] = "1"
    if hub := sys.modules.get("huggingface_hub.utils"):
        hub.disable_progress_bars()
    if logging := sys.modules.get("transformers.utils.logging"):
        logging.disable_progress_bar()
        logging.set_verbosity_error()
