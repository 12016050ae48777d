"""Tests of short stress trials with a small encoder.

They check what must never happen. Speed is only measured in full trials.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from contextlib import nullcontext
from itertools import repeat
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from benchmarks.serving import client
from benchmarks.serving.client import Address
from benchmarks.serving.loads import Request
from benchmarks.stress import __main__ as command
from benchmarks.stress import flood, neighbour, trials
from benchmarks.stress.__main__ import keep
from benchmarks.stress.costly import Costly
from benchmarks.stress.server import started
from benchmarks.stress.trial import Bound, Planned, Texts
from benchmarks.stress.trials import TRIALS


@pytest.mark.parametrize(
    ("name", "seconds"),
    [
        *(pytest.param(name, 1.0, marks=pytest.mark.slow) for name in ("overload", "callers")),
        *(pytest.param(name, 5.0, marks=pytest.mark.nightly) for name in ("overload", "reload", "callers", "drain")),
    ],
)
def test_nobody_is_cut_off_and_nothing_breaks(
    tiny_bundle: Path, name: str, seconds: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trials, "IDLE", 200)  # This number of connections can be opened quickly.
    planned = TRIALS[name]
    with started(tiny_bundle, planned.options, keys=planned.keys) as server:
        bounds = planned.trial(server, Texts.of(tiny_bundle), seconds)
    never = [bound for bound in bounds if bound.limit == 0]
    assert len(never) >= 2
    assert all(bound.holds for bound in never), [str(bound) for bound in bounds]


@pytest.mark.nightly
def test_a_costly_key_takes_nothing_from_another_but_time(tiny_bundle: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(neighbour, "DRAIN", 5.0)
    monkeypatch.setattr(neighbour, "_calm", lambda _: None)  # Without anything to compare with.
    planned = TRIALS["neighbour"]
    with started(tiny_bundle, ["--drain-seconds", "5"], keys=planned.keys) as server:
        bounds = planned.trial(server, Texts.of(tiny_bundle), 10.0, together=True)
    never = [bound for bound in bounds if bound.limit in (0, neighbour.MEMORY_MB)]
    assert len(never) == 4
    assert all(bound.holds for bound in never), [str(bound) for bound in bounds]


@pytest.mark.nightly
def test_a_soak_opens_no_more_and_more_files(tiny_bundle: Path) -> None:
    with started(tiny_bundle, TRIALS["soak"].options) as server:
        *_, slope, files = TRIALS["soak"].trial(server, Texts.of(tiny_bundle), 6.0)
    assert np.isfinite(slope.measured) and files.holds, [str(slope), str(files)]


def test_a_bound_is_from_above_or_from_below() -> None:
    assert Bound("resets", 0, 0).holds and not Bound("resets", 1, 0).holds
    assert Bound("goodput", 0.95, 0.9, at_least=True).holds and not Bound("goodput", 0.85, 0.9, at_least=True).holds
    assert str(Bound("resets", 1, 0)) == "FAILS  resets: 1 (≤ 0)"
    assert (
        Bound("CPUs of the client", 9).holds and str(Bound("CPUs of the client", 9)) == "       CPUs of the client: 9"
    )


def test_a_trial_is_kept_beside_the_others(tmp_path: Path) -> None:
    file = tmp_path / "stress.json"
    for name, measured in (("soak", 2), ("drain", 0), ("soak", 1)):
        keep(name, [Bound("MB a minute", measured, 1)], {"machine": "a"}, file)
    kept = json.loads(file.read_text())
    assert list(kept) == ["drain", "soak"]
    assert kept["soak"]["command"] == "python -m benchmarks.stress soak" and kept["soak"]["date"]
    assert kept["soak"]["bounds"] == [
        {"what": "MB a minute", "measured": 1, "limit": 1, "at_least": False, "holds": True}
    ]


def test_only_trials_of_the_default_bundle_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def trial(*_: object) -> list[Bound]:
        """Do nothing."""
        return []

    kept: list[str] = []
    monkeypatch.setattr(command, "TRIALS", {"drain": Planned(trial, 1.0)})
    monkeypatch.setattr(command, "surroundings", dict)
    monkeypatch.setattr(command, "started", lambda *_, **__: nullcontext())
    monkeypatch.setattr(command, "keep", lambda name, *_: kept.append(name))
    monkeypatch.setattr(Texts, "of", lambda _: None)
    monkeypatch.setattr(sys, "argv", ["stress", "--bundle", str(tmp_path)])
    assert command.main() == 0 and kept == []
    monkeypatch.setattr(sys, "argv", ["stress"])
    assert command.main() == 0 and kept == ["drain"]


def test_an_unknown_kind_of_request_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(neighbour, "_settled", lambda *_: {"a map": Costly("GET", "/")})
    unused: Any = SimpleNamespace(address=Address(1, "/"))
    with pytest.raises(SystemExit, match="no kind maps; available: a map"):
        neighbour.neighbour(unused, unused, 1.0, ["maps"])


def test_a_server_that_never_answers_ends_the_flood(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (client, flood):
        monkeypatch.setattr(module, "PATIENCE", 0.05)
    began = time.monotonic()
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = Address(silent.getsockname()[1], "/")
        came = flood.flood(address, repeat(Request(b"{}", 1, 1)), rate=100.0, seconds=0.02)
    assert came.broken == 1 and time.monotonic() - began < 10


def test_an_odd_number_of_cpus_is_divided_without_a_common_one(monkeypatch: pytest.MonkeyPatch) -> None:
    taken: list[list[int]] = []
    ended = SimpleNamespace(poll=lambda: 1, kill=lambda: None, wait=lambda: 1)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1, 2})
    monkeypatch.setattr(os, "sched_setaffinity", lambda _, cpus: taken.append(cpus))
    monkeypatch.setattr(subprocess, "Popen", lambda *_, **__: ended)
    with pytest.raises(RuntimeError), started(Path("bundle"), apart=True):
        pass
    assert taken == [[0, 1], [2], [0, 1, 2]]
