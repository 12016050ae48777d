from __future__ import annotations

import subprocess
import sys

import pytest

PROBE = """
from models.cli.command_line import quieten
quieten()
from huggingface_hub.utils import are_progress_bars_disabled
from transformers.utils.logging import ERROR, get_verbosity, is_progress_bar_enabled
print(are_progress_bars_disabled(), is_progress_bar_enabled(), get_verbosity() == ERROR)
"""


@pytest.mark.slow
@pytest.mark.parametrize("loaded", ["sys", "huggingface_hub.utils", "models.export.export", "transformers"])
def test_whatever_is_loaded_already_nothing_is_said_unasked(loaded: str) -> None:
    command = [sys.executable, "-c", f"import {loaded}\n{PROBE}"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert (done.stdout.split(), done.stderr) == (["True", "False", "True"], "")
