"""Tests of optimum's exporter in the environment of `make optimum`: the vectors are the same."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch

from models.bundle import bundle
from models.bundle.bundle import Bundle
from models.encoder.encoder import Encoder
from models.encoder.pooling import POOLINGS
from models.encoder.transform import Affine, Flow, Transform
from models.export.export import GOLDEN_SENTENCES, export
from models.runtimes.graph import Graph
from tests.models.test_families import FAMILIES, Family

PYTHON = Path(__file__).parents[2] / ".venv-optimum" / "bin" / "python"
TEXTS = [*GOLDEN_SENTENCES, "a", "", " ".join(GOLDEN_SENTENCES * 8)]
EVERY = "import json, sys; from models.__main__ import main; sys.exit(max(map(main, json.load(sys.stdin))))"

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not PYTHON.exists(), reason="`make optimum` makes the environment"),
]


def run(commands: list[list[str]]) -> subprocess.CompletedProcess[str]:
    """Run all commands in one process, because importing torch takes long."""
    return subprocess.run(
        [PYTHON, "-c", EVERY], input=json.dumps(commands), capture_output=True, text=True, check=False
    )


def by_optimum(sources: Sequence[str | Path], folder: Path) -> list[Bundle]:
    made = [folder / f"{i}-{Path(source).name}" for i, source in enumerate(sources)]
    options = ["--exporter", "optimum", "--no-measure"]
    commands = [["export", str(source), "--out", str(out), *options] for source, out in zip(sources, made, strict=True)]
    ended = run(commands)
    assert ended.returncode == 0, ended.stderr
    return [bundle.load(out) for out in made]


def least_cosine(one: Bundle, other: Bundle) -> float:
    vectors = [Graph(each, threads=1).encode(TEXTS) for each in (one, other)]
    return float((vectors[0] * vectors[1]).sum(axis=1).min())


def test_minilm_by_either_exporter_is_the_same_encoder(tmp_path: Path) -> None:
    ours = export(Encoder.load("minilm"), tmp_path / "ours", name="minilm", backbone="minilm")
    afresh, again = by_optimum(["minilm", ours.folder], tmp_path)
    for theirs in (afresh, again):
        assert least_cosine(ours, theirs) >= 0.99999
        assert theirs.manifest.files["model.safetensors"] == ours.manifest.files["model.safetensors"]
    assert again.manifest.fingerprint == ours.manifest.fingerprint


def _torchs(folder: Path, pooling: str, transform: Transform | None = None) -> Path:
    encoder = Encoder.load(folder, pooling=pooling)
    if transform:
        encoder.attach(transform)
    name = transform.kind if transform else pooling
    return export(encoder, folder.with_name(f"{folder.name}-{name}"), name="t", backbone="tiny").folder


def test_every_family_pooling_and_transform_is_carried(tmp_path: Path) -> None:
    def written(family: Family) -> Path:
        family.write(tmp_path / family.name)
        return tmp_path / family.name

    *plain, modern = [written(family) for family in FAMILIES]
    draw = torch.Generator().manual_seed(1)
    affine = Affine.of(torch.randn(32, generator=draw), torch.randn(32, 8, generator=draw))
    sources = [
        *(_torchs(folder, "mean") for folder in plain),
        *(_torchs(modern, pooling) for pooling in POOLINGS),
        _torchs(plain[0], "cls", affine),
        _torchs(plain[0], "mean", Flow(dim=32, levels=2, depth=1, hidden=16)),
    ]
    for source, theirs in zip(sources, by_optimum(sources, tmp_path / "optimum"), strict=True):
        ours = bundle.load(source)
        assert least_cosine(ours, theirs) >= 0.99999, source.name
        assert theirs.manifest.fingerprint == ours.manifest.fingerprint, source.name


def test_a_family_that_optimum_does_not_know_is_refused_in_one_line(tmp_path: Path) -> None:
    Family("Ernie").write(tmp_path / "ernie")
    source = _torchs(tmp_path / "ernie", "mean")
    ended = run([["export", str(source), "--out", str(tmp_path / "out"), "--exporter", "optimum"]])
    (line,) = ended.stderr.splitlines()
    assert ended.returncode == 2 and "no exporter for ernie" in line and "--exporter torch" in line
    assert not (tmp_path / "out").exists()
