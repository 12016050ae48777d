"""Tests of the ingest benchmark: its job stores everything that it counts, and a failed job is an error."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.serving import contestants, ingest
from benchmarks.serving.client import ReplyError
from benchmarks.serving.contestants import OURS, Server, specs, started
from benchmarks.serving.loads import Population


@pytest.fixture
def server(tiny_bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    monkeypatch.setattr(contestants, "BUNDLE", tiny_bundle)
    with started(specs()[OURS], {}, 16, "a text", tmp_path) as one:
        assert isinstance(one, Server)
        yield one


@pytest.mark.slow
def test_a_job_counts_what_it_has_stored_and_leaves_nothing(server: Server) -> None:
    mixed = Population([f"text number {i}" for i in range(600)], [5] * 600)
    sample = ingest._job(server, mixed, "first")
    assert (sample.texts, sample.tokens) == (600, 3000) and sample.seconds > 0
    with pytest.raises(ReplyError, match="404"):
        ingest._answered(server, "GET", "/corpora/first")


@pytest.mark.slow
def test_a_job_that_fails_is_no_figure(server: Server) -> None:
    with pytest.raises(ReplyError, match="failed"):
        ingest._job(server, Population(["a text"] * 600 + ["\ud800"], [3] * 601), "second")


@pytest.mark.slow
def test_everybody_takes_part(tiny_bundle: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (contestants, ingest):
        monkeypatch.setattr(module, "BUNDLE", tiny_bundle)
    monkeypatch.setattr(ingest, "SECONDS", 0.1)
    measured = ingest.measure(texts=2000, rounds=1)
    figures = measured["figures"]
    assert set(figures) == {"job", "requests", "bare"} and figures["job"]["job_times_it"] == 1
    for one in figures.values():
        assert one["job_times_it"] == pytest.approx(figures["job"]["texts_per_s"] / one["texts_per_s"], rel=0.05)
