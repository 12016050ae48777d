"""What a rehearsal has in place of files that only a measurement needs."""

from __future__ import annotations

from pathlib import Path

from benchmarks.gpu.encoders import TINY, backbone

STSB = {"dev": 1500, "test": 1379}
"""Pairs, as many as the parts have."""
WORDS = ("man", "woman", "dog", "cat", "bird", "fish", "horse", "guitar", "river", "city")
STUDY = """
[base]
objective = "simcse"
backbone = "{backbone}"
device = "cpu"
max_steps = 2
eval_every = 2
batch_size = 8

[grid]
seed = [0, 1]
"""


def data(folder: Path) -> str:
    """Write an STS-B of few different sentences in SentEval's layout."""
    place = folder / "STS" / "STSBenchmark"
    place.mkdir(parents=True)
    for part, pairs in STSB.items():
        rows = (_row(pair, WORDS[pair % 10], WORDS[pair // 10 % 10]) for pair in range(pairs))
        (place / f"sts-{part}.csv").write_text("".join(rows), encoding="utf-8")
    return str(folder)


def study(folder: Path) -> str:
    """Write a study of two short runs."""
    file = folder / "rehearsal.toml"
    file.write_text(STUDY.format(backbone=backbone(TINY, folder / "tiny")), encoding="utf-8")
    return str(file)


def _row(pair: int, one: str, other: str) -> str:
    return f"g\tf\ty\t{pair}\t{5 - pair % 6}\tthe {one} can see\ta {other} can see\n"
