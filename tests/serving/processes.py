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
    """This Python in the repository's folder, run to its end; `before` is a command that runs it."""
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
    """The command of a server whose demo corpus has at most so many documents."""
    main = f"demo.MAX_DOCUMENTS = {documents}; sys.exit(__main__.main())"
    return (
        sys.executable,
        "-c",
        f"import sys; from serving import __main__; from serving.commands import demo; {main}",
    )


def refused(*arguments: str, env: dict[str, str] | None = None) -> str:
    """The one line on stderr of a start that ends with 2."""
    ended = python("-m", "serving", *arguments, env=env)
    assert ended.returncode == 2, ended
    assert "Traceback" not in ended.stderr
    return ended.stderr.splitlines()[-1]


def asked_itself(bundle: Path, data: Path, before: Sequence[str] = ()) -> dict[str, Any]:
    """What `asking_itself` found, with a server of `bundle` that keeps its data in `data`."""
    ended = python("-m", "tests.serving.asking_itself", bundle, data, before=before)
    assert ended.returncode == 0, ended.stderr
    found: dict[str, Any] = json.loads(ended.stdout.splitlines()[-1])
    return found
