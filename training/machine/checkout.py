"""Which commit of this code is at work."""

from __future__ import annotations

import subprocess
from pathlib import Path


def checkout() -> dict[str, str | bool | None]:
    """The commit, None outside of git, and whether files that it knows are other than it has them."""
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
