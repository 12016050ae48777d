"""Files that a rehearsal uses instead of those for measurements."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from pathlib import Path

from benchmarks.gpu.setting import Setting

STSB = {"dev": 1500, "test": 1379}
"""Numbers of pairs in STS-B's splits."""
WORDS = ("man", "woman", "dog", "cat", "bird", "fish", "horse", "guitar", "river", "city")


def equipped(setting: Setting, folder: Path) -> Setting:
    """Give a rehearsal a generated corpus and evaluation data in `folder`, if it has none."""
    return replace(
        setting, corpus=setting.corpus or (str(corpus(folder / "corpus.txt")),), data=setting.data or str(data(folder))
    )


def corpus(file: Path) -> Path:
    """Write a thousand distinct sentences."""
    lines = (f"the {one} and the {other} can see a {third}\n" for one, other, third in product(WORDS, repeat=3))
    file.write_text("".join(lines), encoding="utf-8")
    return file


def data(folder: Path) -> Path:
    """Write an STS-B of few distinct sentences in SentEval's layout."""
    place = folder / "STS" / "STSBenchmark"
    place.mkdir(parents=True)
    for part, pairs in STSB.items():
        rows = (_row(pair, WORDS[pair % 10], WORDS[pair // 10 % 10]) for pair in range(pairs))
        (place / f"sts-{part}.csv").write_text("".join(rows), encoding="utf-8")
    return folder


def _row(pair: int, one: str, other: str) -> str:
    return f"g\tf\ty\t{pair}\t{5 - pair % 6}\tthe {one} can see\ta {other} can see\n"
