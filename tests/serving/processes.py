"""Processes that tests start and wait for."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.conftest import PATIENCE
from tests.serving.conftest import ROOT


def python(
    *arguments: str | Path, before: Sequence[str] = (), env: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run this Python in the repository's folder to its end. `before` is a command that starts it."""
    return subprocess.run(
        [*before, sys.executable, *map(str, arguments)],
        cwd=ROOT,
        env=env,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )


def small_demo(documents: int) -> tuple[str, ...]:
    """Return the command of a server whose demo corpus has at most `documents` documents."""
    main = f"demo.MAX_DOCUMENTS = {documents}; sys.exit(__main__.main())"
    return (
        sys.executable,
        "-c",
        f"import sys; from serving import __main__; from serving.commands import demo; {main}",
    )


def refused(*arguments: str, env: dict[str, str] | None = None) -> str:
    """Return the single line on stderr of a start that ends with exit code 2."""
    ended = python("-m", "serving", *arguments, env=env)
    assert ended.returncode == 2, ended
    assert "Traceback" not in ended.stderr
    return ended.stderr.splitlines()[-1]


def asked_itself(bundle: Path, data: Path, before: Sequence[str] = ()) -> dict[str, Any]:
    """Return the result of `asking_itself` with a server of `bundle` and the data folder `data`."""
    ended = python("-m", "tests.serving.asking_itself", bundle, data, before=before)
    assert ended.returncode == 0, ended.stderr
    found: dict[str, Any] = json.loads(ended.stdout.splitlines()[-1])
    return found
