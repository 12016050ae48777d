"""Command `python -m benchmarks.gpu.part NAME SETTING`, which runs one part. `benchmarks.gpu` starts it."""

from __future__ import annotations

import subprocess
import sys
from importlib import import_module
from typing import Any

import torch

from benchmarks.gpu.parts import Report, Setting
from benchmarks.surroundings import surroundings


def main() -> int:
    """Run the part. Return 1 if anything failed."""
    name, given = sys.argv[1:]
    setting = Setting.from_json(given)
    report = Report(setting.file(name), head(name, setting))
    with report.attempt(name):
        import_module(f"benchmarks.gpu.{name}").measure(setting, report)
    return int(report.failed)


def head(name: str, setting: Setting) -> dict[str, Any]:
    """Return facts about the environment in which a part's figures were measured."""
    around = surroundings()
    return {
        "part": name,
        "command": setting.command,
        "tiny": setting.tiny,
        "device": device(setting),
        **around,
        "git_commit": around["git_commit"] or setting.commit,
    }


def device(setting: Setting) -> dict[str, Any]:
    """Return facts about the device and its driver."""
    if setting.device == "cpu":
        return {"name": "cpu"}
    properties = torch.cuda.get_device_properties(0)
    return {
        "name": properties.name,
        "memory_bytes": properties.total_memory,
        "capability": f"{properties.major}.{properties.minor}",
        "driver": _driver(),
        "cuda": torch.version.cuda,
        "cudnn": torch.backends.cudnn.version(),  # type: ignore[no-untyped-call]
    }


def _driver() -> str | None:
    """Return the driver's version from nvidia-smi, or None if nvidia-smi is not installed."""
    command = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()[0]
    except (OSError, subprocess.CalledProcessError):
        return None


if __name__ == "__main__":
    sys.exit(main())
