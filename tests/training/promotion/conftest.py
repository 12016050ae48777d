"""Fixtures: bundles to choose between, a corpus for comparisons, and the commands."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import onnxruntime
import pytest
from onnxruntime import InferenceSession, SessionOptions

from models.bundle import bundle
from models.bundle.bundle import Bundle
from models.runtimes import RUNTIMES
from tests.conftest import WORDS
from training.cli.options import parse

Command = Callable[..., int]


@pytest.fixture(autouse=True)
def _graphs_opened_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Share one session between all tests of the same graph, because opening takes longer than running."""

    def opened(graph: str, settings: SessionOptions, providers: list[str]) -> InferenceSession:
        return _session(Path(graph).read_bytes(), settings.intra_op_num_threads, *providers)

    monkeypatch.setattr(onnxruntime, "InferenceSession", opened)


@cache
def _session(graph: bytes, threads: int, *providers: str) -> InferenceSession:
    settings = SessionOptions()
    settings.intra_op_num_threads = threads
    settings.inter_op_num_threads = 1
    settings.enable_mem_pattern = False  # The options are those of `models.runtimes.onnxruntime`.
    return InferenceSession(graph, settings, providers=list(providers))


@pytest.fixture(autouse=True)
def _onnxruntime_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Simulate a machine without other runtimes and without earlier measurements."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    all_of_them = dict(RUNTIMES)
    del RUNTIMES["openvino"]
    yield
    RUNTIMES.clear()
    RUNTIMES.update(all_of_them)  # The order of runtimes is the order of their errors.


@pytest.fixture(scope="session")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write sentences of words that the tiny encoders know."""
    draw = random.Random(0)
    file = tmp_path_factory.mktemp("corpus") / "corpus.txt"
    lines = (" ".join(draw.choices(WORDS, k=draw.randint(6, 12))) for _ in range(60))
    file.write_text("\n".join(lines) + "\n")
    return file


@pytest.fixture
def artifacts(tmp_path: Path, tiny_bundle: Path, other_bundle: Path) -> Path:
    """Return a folder `artifacts` with the bundles `tiny` and `other`, without a served bundle."""
    folder = tmp_path / "artifacts"
    shutil.copytree(tiny_bundle, folder / "tiny")
    shutil.copytree(other_bundle, folder / "other")
    return folder


@pytest.fixture
def command(artifacts: Path, corpus: Path) -> Command:
    """Return a function that runs `promote NAME …` or `rollback` on `artifacts`, and returns the exit code."""

    def run(verb: str, *arguments: str) -> int:
        given = [verb, "--default", str(artifacts / "default"), *arguments]
        if verb == "promote":
            given[3] = str(artifacts / arguments[0])
            given += [] if "--data" in arguments else ["--corpus", str(corpus)]
        options = parse(given)
        return int(options.load()(options))

    return run


@pytest.fixture
def rewritten() -> Callable[..., Bundle]:
    """Return a function that writes a bundle's manifest again, with other facts."""

    def write(folder: Path, **facts: object) -> Bundle:
        stored = json.loads((folder / bundle.MANIFEST).read_text())
        kept = {
            name: stored[name] for name in stored if name not in ("format_version", "files", "fingerprint", "golden")
        }
        golden = [bundle.Golden(**one) for one in stored["golden"]]
        bundle.write_manifest(folder, **(kept | {"golden": golden} | facts))
        return bundle.load(folder)

    return write
