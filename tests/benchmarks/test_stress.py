"""The trials in a short form, on a small encoder: what must never happen does not; how quick it is, they measure."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.stress import trials
from benchmarks.stress.server import started
from benchmarks.stress.trials import TRIALS, Bound, Texts


@pytest.mark.slow
@pytest.mark.parametrize("name", ["overload", "reload", "callers", "drain"])
def test_nobody_is_cut_off_and_nothing_breaks(tiny_bundle: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trials, "IDLE", 200)  # so many are soon opened
    trial, _, options = TRIALS[name]
    with started(tiny_bundle, options) as server:
        bounds = trial(server, Texts.of(tiny_bundle), 5.0)
    never = [bound for bound in bounds if bound.limit == 0]
    assert len(never) >= 2
    assert all(bound.holds for bound in never), [str(bound) for bound in bounds]


def test_a_bound_is_from_above_or_from_below() -> None:
    assert Bound("resets", 0, 0).holds and not Bound("resets", 1, 0).holds
    assert Bound("goodput", 0.95, 0.9, at_least=True).holds and not Bound("goodput", 0.85, 0.9, at_least=True).holds
    assert str(Bound("resets", 1, 0)) == "FAILS  resets: 1 (≤ 0)"
