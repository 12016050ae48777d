"""Record of a run's environment, for traceability and reproduction."""

from __future__ import annotations

import platform
import subprocess
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

PACKAGES = ("isosphere", "torch", "transformers", "tokenizers", "safetensors", "numpy", "scipy")


def environment() -> dict[str, Any]:
    """Return versions, hardware, and the git commit of this code (None outside a checkout)."""
    return {
        "python": platform.python_version(),
        "packages": {name: _version(name) for name in PACKAGES},
        "platform": platform.platform(),
        "threads": torch.get_num_threads(),
        "cuda": torch.version.cuda if torch.cuda.is_available() else None,
        **git_state(),
    }


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


# The git commit of the running code.


def git_state() -> dict[str, str | bool | None]:
    """Return the commit (None outside git), and whether tracked files are modified (False outside git)."""
    return {
        "git_commit": _run_git("rev-parse", "HEAD"),
        "git_modified": bool(_run_git("status", "--porcelain", "--untracked-files=no")),
    }


def _run_git(*command: str) -> str | None:
    folder = Path(__file__).parent
    try:
        done = subprocess.run(["git", "-C", folder, *command], capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    return done.stdout.strip()
