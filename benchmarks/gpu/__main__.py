"""Command `python -m benchmarks.gpu`: run the GPU measurements, part by part, each within its planned time.

    python -m benchmarks.gpu --plan
    python -m benchmarks.gpu --corpus wiki200k.txt --data senteval --to benchmarks/results/gpu
    python -m benchmarks.gpu --device cpu --tiny --to /tmp/gpu          # a rehearsal, in under two minutes

If a part fails or takes too long, its file has the measurements so far and an `error`. The other parts continue.
"""

from __future__ import annotations

import argparse
import shlex
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory

import torch

from benchmarks.gpu.parts import LAST, PARTS, REHEARSAL, Setting, carry_out, table
from benchmarks.surroundings import RESULTS
from models import cpus
from models.cli.command_line import Parser

STSB = {"dev": 1500, "test": 1379}
"""Numbers of pairs in STS-B's dev and test sets."""
WORDS = ("man", "woman", "dog", "cat", "bird", "fish", "horse", "guitar", "river", "city")


def main() -> int:
    """Run the named parts, or all parts. The exit status is 1 if anything failed."""
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
        default=RESULTS / "gpu",
        metavar="DIR",
        help="folder of the results (default: benchmarks/results/gpu)",
    )
    parser.add_argument("--plan", action="store_true", help="print the expected seconds of every part and exit")
    asked = parser.parse_args()
    if unknown := {*asked.parts, *asked.without} - set(PARTS):
        parser.error(f"no part {', '.join(sorted(unknown))}; available: {', '.join(PARTS)}")
    if asked.plan:
        print(table())
        return 0
    if asked.device == "cuda" and not torch.cuda.is_available():
        parser.error("torch finds no CUDA device; for a rehearsal, use --device cpu --tiny")
    if asked.device == "cpu" and not asked.tiny:
        parser.error("--device cpu would take hours; add --tiny to rehearse")
    chosen = [part for part in PARTS if part in (asked.parts or PARTS) and part not in asked.without]
    if "studies" in chosen and not (asked.data or asked.tiny):
        parser.error("a study needs evaluation data: name their folder with --data, or add --without studies")
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
    """Run the parts of a rehearsal in parallel, one per CPU, because a rehearsal measures nothing."""
    with TemporaryDirectory() as folder, ThreadPoolExecutor(cpus.available()) as pool:
        given = equipped(setting, Path(folder))
        return list(pool.map(lambda part: carry_out(part, given, REHEARSAL), parts))


def _in_order(parts: list[str], setting: Setting) -> list[bool]:
    """Run all parts in order. The last part also gets the seconds that the other parts did not use."""
    spare, done = 0.0, []
    for part in parts:
        began, seconds = time.monotonic(), PARTS[part].seconds + (spare if part == LAST else 0.0)
        done.append(carry_out(part, setting, seconds))
        spare += seconds - (time.monotonic() - began)
    return done


def equipped(setting: Setting, folder: Path) -> Setting:
    """Return the setting. A rehearsal without corpus or evaluation data gets data that are generated in `folder`."""
    return replace(
        setting, corpus=setting.corpus or (str(corpus(folder / "corpus.txt")),), data=setting.data or str(data(folder))
    )


def corpus(file: Path) -> Path:
    """Write a file with a thousand distinct sentences, and return its path."""
    lines = (f"the {one} and the {other} can see a {third}\n" for one, other, third in product(WORDS, repeat=3))
    file.write_text("".join(lines), encoding="utf-8")
    return file


def data(folder: Path) -> Path:
    """Write an STS-B with few distinct sentences in SentEval's layout, and return its path."""
    place = folder / "STS" / "STSBenchmark"
    place.mkdir(parents=True)
    for part, pairs in STSB.items():
        rows = (_row(pair, WORDS[pair % 10], WORDS[pair // 10 % 10]) for pair in range(pairs))
        (place / f"sts-{part}.csv").write_text("".join(rows), encoding="utf-8")
    return folder


def _row(pair: int, one: str, other: str) -> str:
    return f"g\tf\ty\t{pair}\t{5 - pair % 6}\tthe {one} can see\ta {other} can see\n"


if __name__ == "__main__":
    sys.exit(main())
