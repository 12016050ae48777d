"""Tests of the GPU benchmark that need no GPU: the plan, failing parts, and a rehearsal of all parts on the CPU."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks.gpu import __main__, encoders, parts, steps
from benchmarks.gpu.encoders import BERT_BASE, TINY
from benchmarks.gpu.parts import LAST, LIMIT, PARTS, ROOT, STUDIES, TRANSFERS, Report, Setting, carry_out, table, total
from benchmarks.gpu.steps import Size
from benchmarks.loops import PEERS
from models.bundle.sources import SourceError
from models.encoder.encoder import Encoder
from training.data.batches import Tokeniser
from training.studies.description import Study

HEAD = {"part", "command", "tiny", "device", "machine", "versions", "git_commit", "seconds", "figures"}
BRIEF = ("search", "training", "pretraining")
"""Parts that CI rehearses.

The other parts start servers, tests and studies, which have tests of their own.
"""


@pytest.fixture
def setting(tmp_path: Path) -> Setting:
    return Setting(
        device="cpu", tiny=True, corpus=(), data=None, to=str(tmp_path), command="a command", commit=None, ends=0.0
    )


def kept(setting: Setting, part: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(setting.file(part).read_text())
    return found


def test_the_plan_fits_into_a_visit_and_names_what_there_is() -> None:
    assert total() <= LIMIT and list(PARTS)[-1] == LAST
    assert all(name in table() for name in (*PARTS, *TRANSFERS))
    for part in PARTS:
        assert callable(import_module(f"benchmarks.gpu.{part}").measure)
    for file in STUDIES:
        assert Study.read(ROOT / file).trials()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "torch finds no CUDA device; for a rehearsal, use --device cpu --tiny"),
        (["--device", "cpu"], "add --tiny to rehearse"),
        (["sleeping"], "no part sleeping; available: checks, serving,"),
        (["--without", "sleeping"], "no part sleeping"),
    ],
)
def test_what_can_not_be_measured_is_said(
    arguments: list[str], message: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr("sys.argv", ["benchmarks.gpu", *arguments])
    with pytest.raises(SystemExit) as ended:
        __main__.main()
    assert ended.value.code == 2 and message in capsys.readouterr().err


def test_studies_are_refused_without_data(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr("sys.argv", ["benchmarks.gpu", "studies"])
    with pytest.raises(SystemExit):
        __main__.main()
    assert "name their folder with --data" in capsys.readouterr().err


def test_the_last_part_gets_what_the_others_left_over(setting: Setting, monkeypatch: pytest.MonkeyPatch) -> None:
    given: dict[str, float] = {}

    def at_once(part: str, _: Setting, seconds: float) -> bool:
        given[part] = seconds
        return part != "checks"

    monkeypatch.setattr(__main__, "carry_out", at_once)
    measuring = Setting(**vars(setting) | {"tiny": False})
    assert __main__._in_order(["checks", LAST], measuring) == [False, True]
    assert given["checks"] == PARTS["checks"].seconds
    assert PARTS[LAST].seconds < given[LAST] <= PARTS[LAST].seconds + PARTS["checks"].seconds


def test_a_report_is_whole_after_every_figure_and_after_an_error(setting: Setting) -> None:
    report = Report(setting.file("checks"), {"part": "checks"})
    with report.attempt("one"):
        report.keep("one", 1)
        raise ValueError("no more\nof it")
    report.keep("two", 2)
    found = kept(setting, "checks")
    assert found["error"] == "one: ValueError: no more" and found["figures"] == {"one": 1, "two": 2}
    assert report.failed


KEEPS = """
import os, sys, time
from benchmarks.gpu.parts import Report
from benchmarks.gpu.parts import Setting
name, given = sys.argv[1:]
Report(Setting.from_json(given).file(name), {"part": name}).keep("some", 1)
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("ends", "error"),
    [
        ("time.sleep(60)", "not finished within its limit of 4 seconds"),
        ("os.abort()", "ended with exit code -6"),
        ("print('the last words'); os._exit(3)", "ended with exit code 3: the last words"),
    ],
)
def test_a_part_that_ends_early_leaves_what_it_measured_and_why(
    ends: str, error: str, setting: Setting, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parts, "GRACE", 0.5)
    seconds = 4.0 if "sleep" in ends else 60.0
    assert not carry_out("checks", setting, seconds, (sys.executable, "-c", KEEPS + ends))
    found = kept(setting, "checks")
    assert error in found["error"]
    assert "sleep" in ends or found["figures"] == {"some": 1}


def test_a_part_that_says_nothing_has_a_file_too(setting: Setting) -> None:
    assert not carry_out("search", setting, 60.0, (sys.executable, "-c", "raise SystemExit('no such library')"))
    assert kept(setting, "search") == {
        "part": "search",
        "command": "a command",
        "error": "ended with exit code 1: no such library",
        "figures": {},
    }


def test_what_a_part_started_ends_with_it(setting: Setting, tmp_path: Path) -> None:
    starts = f"""
import subprocess, sys
from pathlib import Path
server = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
Path({str(tmp_path / "pid")!r}).write_text(str(server.pid))
"""
    carry_out("serving", setting, 60.0, (sys.executable, "-c", starts))
    pid = (tmp_path / "pid").read_text()
    stat = Path("/proc") / pid / "stat"
    deadline = time.monotonic() + 10
    while stat.exists() and stat.read_text().rpartition(")")[2].split()[0] != "Z" and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not stat.exists() or stat.read_text().rpartition(")")[2].split()[0] == "Z"


@pytest.mark.slow  # Slow, because 110 million weights are drawn and written.
def test_what_is_trained_has_the_shape_of_bert_base(tmp_path: Path) -> None:
    encoder = Encoder.load(encoders.backbone(BERT_BASE, tmp_path / "bert-base-uncased"), pooling="cls")
    assert (encoder.dim, encoder.backbone.config.num_hidden_layers, encoder.max_length) == (768, 12, 512)
    assert sum(weight.numel() for weight in encoder.backbone.parameters()) > 100e6


@pytest.mark.slow  # Slow, because a vocabulary is trained.
def test_without_minilm_a_vocabulary_is_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(_: str) -> Path:
        raise SourceError("minilm: not installed")

    monkeypatch.setattr(encoders, "resolve", absent)
    encoder = Encoder.load(encoders.backbone(TINY, tmp_path / "tiny"))
    (tokens,) = encoder.tokenizer.encode(["The function returns an iterator."])
    assert 6 <= tokens.length <= 12 and encoder.encode(["a text"]).shape == (1, TINY.width)


@pytest.mark.slow
def test_contestants_take_turns(tiny_backbone: Path, setting: Setting, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run two rounds on the CPU with SimCSE and WhitenedCSE as the only objectives."""
    monkeypatch.setattr(steps, "OURS", ("simcse", "whitenedcse"))
    texts = [["the man can see the river", "a dog", "the old teacher"]] * 4
    encoder = Encoder.load(tiny_backbone, pooling="cls")
    batch = Tokeniser(encoder, None, max_length=32, own=range)(texts[0])
    report, told = Report(setting.file("training"), {}), list[Mapping[str, Any]]()
    taking = steps.contestants(tiny_backbone, "cpu", texts, report)
    steps.measure(taking, "cpu", [batch, batch], Size(batch=3, steps=2, rounds=2, warmup=1), told.append)
    assert not report.failed and len(told) == 2
    assert told[-1].keys() == {"simcse", "whitenedcse", steps.LAUNCHED, *PEERS}
    for figures in told[-1].values():
        assert figures["ms_a_step"] > 0 and figures["sentences_per_s"] > 0
    assert told[-1]["published"]["times_published"] == 1
    found = steps.profile(taking["simcse"].step, "cpu", 1)
    assert found["launches_a_step"] > 100 and len(found["dearest_ms_a_step"]) == steps.KERNELS


def rehearsed(tmp_path: Path, *parts: str) -> dict[str, Any]:
    """Rehearse the named parts on the CPU, and return the complete figures of each."""
    to = tmp_path / "gpu"
    command = [sys.executable, "-m", "benchmarks.gpu", *parts, "--device", "cpu", "--tiny", "--to", str(to)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    found = {file.stem: json.loads(file.read_text()) for file in to.iterdir()}
    assert done.returncode == 0, done.stderr + str({name: each.get("error") for name, each in found.items()})
    assert found.keys() == {*parts}
    for name, content in found.items():
        assert content.keys() >= HEAD and "error" not in content, name
        assert content["part"] == name and content["device"] == {"name": "cpu"}
    return {name: content["figures"] for name, content in found.items()}


@pytest.mark.slow
def test_a_rehearsal_leaves_every_part_complete(tmp_path: Path) -> None:
    figures = rehearsed(tmp_path, *BRIEF)
    rows = [row for name, row in figures["search"].items() if name != "setting"]
    assert len(rows) == 5 and all(row["recall_fresh"] >= 0.9 and row["qps_batch"] > 0 for row in rows)
    assert figures["training"].keys() == {"setting", "peak_flops_per_s", "steps", "profile", "million"}
    assert figures["training"]["steps"].keys() == {*steps.OURS, steps.LAUNCHED, *PEERS}
    assert figures["training"]["million"]["complete"] and figures["training"]["million"]["loss"]
    assert figures["pretraining"].keys() == {"probe", "model", "simcse", "dclr"}
    assert all("STSB" in figures["pretraining"][name]["sts"] for name in ("simcse", "dclr"))


@pytest.mark.nightly
def test_a_rehearsal_of_the_longer_parts_leaves_them_complete(tmp_path: Path) -> None:
    figures = rehearsed(tmp_path, *(part for part in PARTS if part not in BRIEF))
    assert sum(each["passed"] for each in figures["checks"].values()) >= 10
    assert {"isosphere", "st_torch", "st_library", "bare_onnxruntime"} <= figures["serving"]["tiny"][
        "contestants"
    ].keys()
    assert figures["serving"]["tiny"]["loads"].keys() == {
        f"{texts}_{load}" for texts in ("short", "mixed", "long") for load in ("singles_1", "singles_2", "batch")
    }
    study = figures["studies"]["rehearsal"]
    lines = (tmp_path / "studies" / study["to"]).read_text().splitlines()
    assert study["finished"] == len(study["new"]) == len(lines) == 2
