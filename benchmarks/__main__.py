"""`python -m benchmarks [NAME …]`: measure, print, and keep the figures in benchmarks/results."""

from __future__ import annotations

import argparse
import json
import platform
import sys
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

from benchmarks import embedding, training
from serving.engines import cpus

BENCHMARKS: dict[str, Callable[[], dict[str, Any]]] = {"embedding": embedding.measure, "training": training.measure}
RESULTS = Path(__file__).parent / "results"
PACKAGES = ("torch", "transformers", "onnxruntime", "sentence-transformers", "tokenizers", "numpy")


def main() -> int:
    """Run the benchmarks named, or all of them."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"{', '.join(BENCHMARKS)} (default: all)")
    names = parser.parse_args().names or list(BENCHMARKS)
    if unknown := set(names) - set(BENCHMARKS):
        parser.error(f"no benchmark {', '.join(sorted(unknown))}; there are {', '.join(BENCHMARKS)}")
    for name in names:
        print(f"{name}: measuring …", flush=True)
        result = {
            "command": f"python -m benchmarks {name}",
            **surroundings(),
            **BENCHMARKS[name](),
        }
        file = RESULTS / f"{name}.json"
        file.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
        print(json.dumps(result["figures"], indent=2), f"\nkept in {file}", flush=True)
    return 0


def surroundings() -> dict[str, Any]:
    """What the figures were measured on and with."""
    return {
        "machine": {"cpu": _cpu(), "cpus": cpus.available(), "python": platform.python_version()},
        "versions": {package: version(package) for package in PACKAGES},
    }


def _cpu() -> str:
    rows = Path("/proc/cpuinfo")
    lines = rows.read_text().splitlines() if rows.exists() else []
    return next((line.split(":")[1].strip() for line in lines if line.startswith("model name")), platform.processor())


if __name__ == "__main__":
    sys.exit(main())
