"""The git commit of the running code."""

from __future__ import annotations

import subprocess
from pathlib import Path


def checkout() -> dict[str, str | bool | None]:
    """Return the commit, None outside git, and whether tracked files are modified."""
    return {
        "git_commit": _git("rev-parse", "HEAD"),
        "git_modified": bool(_git("status", "--porcelain", "--untracked-files=no")),
    }


def _git(*command: str) -> str | None:
    folder = Path(__file__).parent
    try:
        done = subprocess.run(["git", "-C", folder, *command], capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    return done.stdout.strip()
