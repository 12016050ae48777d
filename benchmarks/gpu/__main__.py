"""The GPU measurements, part by part, each within its seconds of the plan.

    python -m benchmarks.gpu --plan
    python -m benchmarks.gpu --corpus wiki200k.txt --data senteval --to benchmarks/results/gpu
    python -m benchmarks.gpu --device cpu --tiny --to /tmp/gpu          # a rehearsal, in under two minutes

A part that fails or takes too long leaves its measurements and an `error` in its file, and the others continue.
"""

from __future__ import annotations

import argparse
import shlex
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from tempfile import TemporaryDirectory

import torch

from benchmarks.gpu.plan import LAST, PARTS, REHEARSAL, table
from benchmarks.gpu.rehearsal import equipped
from benchmarks.gpu.running import carry_out
from benchmarks.gpu.setting import Setting
from models import cpus
from models.command_line import Parser

RESULTS = Path(__file__).parents[1] / "results" / "gpu"


def main() -> int:
    """Run the named parts, or all of them. The exit code is 1 if anything failed."""
    parser = Parser(
        prog="python -m benchmarks.gpu", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"{', '.join(PARTS)} (default: all)")
    parser.add_argument("--without", nargs="+", default=[], metavar="PART", help="parts to leave out")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda", help="device (default: %(default)s)")
    parser.add_argument("--tiny", action="store_true", help="rehearse with tiny sizes, whose results are meaningless")
    parser.add_argument(
        "--corpus", nargs="+", default=[], metavar="FILE", help="corpus files (default: CPython's documentation)"
    )
    parser.add_argument("--data", metavar="DIR", help="folder of SentEval's data, to evaluate encoders")
    parser.add_argument("--commit", metavar="HASH", help="commit of this code, if there is no git repository")
    parser.add_argument(
        "--to",
        type=Path,
        default=RESULTS,
        metavar="DIR",
        help="folder of the results (default: benchmarks/results/gpu)",
    )
    parser.add_argument("--plan", action="store_true", help="print the expected seconds of every part and exit")
    asked = parser.parse_args()
    if unknown := {*asked.parts, *asked.without} - set(PARTS):
        parser.error(f"no part {', '.join(sorted(unknown))}; there are {', '.join(PARTS)}")
    if asked.plan:
        print(table())
        return 0
    if asked.device == "cuda" and not torch.cuda.is_available():
        parser.error("torch finds no CUDA device; --device cpu --tiny rehearses")
    if asked.device == "cpu" and not asked.tiny:
        parser.error("--device cpu would take hours; add --tiny to rehearse")
    chosen = [part for part in PARTS if part in (asked.parts or PARTS) and part not in asked.without]
    if "studies" in chosen and not (asked.data or asked.tiny):
        parser.error("a study judges by evaluation data: name their folder by --data, or add --without studies")
    setting = Setting(
        device=asked.device,
        tiny=asked.tiny,
        corpus=tuple(str(Path(file).resolve()) for file in asked.corpus),
        data=asked.data and str(Path(asked.data).resolve()),
        to=str(asked.to.resolve()),
        command=shlex.join(["python", "-m", "benchmarks.gpu", *sys.argv[1:]]),
        commit=asked.commit,
        ends=0.0,
    )
    return int(not all(_rehearsed(chosen, setting) if setting.tiny else _in_order(chosen, setting)))


def _rehearsed(parts: list[str], setting: Setting) -> list[bool]:
    """Run one part per CPU at once. A rehearsal has no measurements that they could disturb."""
    with TemporaryDirectory() as folder, ThreadPoolExecutor(cpus.available()) as pool:
        given = equipped(setting, Path(folder))
        return list(pool.map(lambda part: carry_out(part, given, REHEARSAL), parts))


def _in_order(parts: list[str], setting: Setting) -> list[bool]:
    """Run all parts in order, despite failures. The last part also gets the unused seconds of the others."""
    spare, done = 0.0, []
    for part in parts:
        began, seconds = time.monotonic(), PARTS[part].seconds + (spare if part == LAST else 0.0)
        done.append(carry_out(part, setting, seconds))
        spare += seconds - (time.monotonic() - began)
    return done


if __name__ == "__main__":
    sys.exit(main())
