"""Tests of the cache of a host's measurements, also if the cache is damaged or unavailable."""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from models.bundle import bundle
from models.bundle.bundle import Bundle
from models.runtimes import REFERENCE, Pair, choice
from models.runtimes.base import Options, RuntimeUnavailable
from models.runtimes.choice import Choice, choose
from models.runtimes.measurement import Measured

OPTIONS = Options("cpu", 1)


@pytest.fixture(scope="module")
def opened(tiny_bundle: Path) -> Bundle:
    return bundle.load(tiny_bundle)


@pytest.fixture(autouse=True)
def cache_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "isosphere" / "engines"


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> list[Bundle]:
    """Replace the machine by one with two pairs, whose measurement takes no time. Return the measured bundles."""
    found: list[Bundle] = []
    pairs = [REFERENCE, Pair("openvino", "bf16")]

    def measure(source: Bundle, options: Options) -> Sequence[Measured]:
        found.append(source)
        return [Measured(*REFERENCE, 10.0, 1.0, 1.0, 0.0), Measured("openvino", "bf16", 40.0, 4.0, 0.99998, 0.003)]

    monkeypatch.setattr(choice, "available", lambda *_, **__: pairs)
    monkeypatch.setattr(choice, "measure", measure)
    return found


def test_a_host_measures_once(opened: Bundle, counted: list[Bundle], cache_folder: Path) -> None:
    first, second = choose(opened, OPTIONS), choose(opened, OPTIONS)
    assert first == second and first.pair == Pair("openvino", "bf16")
    assert len(counted) == 1
    assert [file.suffix for file in cache_folder.iterdir()] == [".json"], "no part of a file"


def test_another_bundle_graph_host_or_number_of_threads_is_measured(
    opened: Bundle, counted: list[Bundle], monkeypatch: pytest.MonkeyPatch
) -> None:
    choose(opened, OPTIONS)
    choose(replace(opened, manifest=replace(opened.manifest, fingerprint="another")), OPTIONS)
    files = opened.manifest.files | {bundle.ONNX: "another"}
    choose(replace(opened, manifest=replace(opened.manifest, files=files)), OPTIONS)
    choose(opened, Options("cpu", 2))
    assert len(counted) == 4
    monkeypatch.setattr(choice, "cpu", lambda: "another CPU")
    choose(opened, OPTIONS)
    assert len(counted) == 5
    monkeypatch.setattr(choice, "_facts", lambda _: {"version": "another"})
    choose(opened, OPTIONS)
    assert len(counted) == 6
    monkeypatch.setattr(choice, "instruction_sets", lambda: "others")
    choose(opened, OPTIONS)
    assert len(counted) == 7
    monkeypatch.setattr(choice, "gpu", lambda _: "another GPU")
    choose(opened, OPTIONS)
    assert len(counted) == 8


DAMAGES = ["", "{", "[]", "null", '{"key": 1}', "\x00", '{"key": null, "measured": [{}]}', "[" * 100_000]


@pytest.mark.parametrize("damage", DAMAGES, ids=lambda damage: damage[:30])
def test_a_damaged_cache_is_said_and_measured_anew(
    damage: str, opened: Bundle, counted: list[Bundle], cache_folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    whole = choose(opened, OPTIONS)
    (file,) = cache_folder.iterdir()
    file.write_text(damage)
    with caplog.at_level(logging.WARNING):
        assert choose(opened, OPTIONS) == whole
    assert str(file) in caplog.text and len(counted) == 2
    assert choose(opened, OPTIONS) == whole and len(counted) == 2, "mended"


@pytest.mark.parametrize(
    "change",
    [
        {"times_reference": "4"},
        {"least_cosine": [1]},
        {"rank_loss": "0"},
        {"barred": 1},
        {"new": 1},
        {"runtime": None},
        {"precision": [1]},
        {"error": 1},
    ],
    ids=str,
)
def test_a_row_that_is_none_is_damage(
    change: dict[str, Any], opened: Bundle, counted: list[Bundle], cache_folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    choose(opened, OPTIONS)
    (file,) = cache_folder.iterdir()
    kept: dict[str, Any] = json.loads(file.read_text())
    kept["measured"][1] |= change
    file.write_text(json.dumps(kept))
    assert choose(opened, OPTIONS).pair == Pair("openvino", "bf16")
    assert str(file) in caplog.text and len(counted) == 2


@pytest.mark.parametrize("rows", [["x"], [None], {"a": 1}, [[]], [], 1, None], ids=str)
def test_a_table_without_rows_is_damage(
    rows: Any, opened: Bundle, counted: list[Bundle], cache_folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    whole = choose(opened, OPTIONS)
    (file,) = cache_folder.iterdir()
    file.write_text(json.dumps(json.loads(file.read_text()) | {"measured": rows}))
    assert choose(opened, OPTIONS) == whole
    assert str(file) in caplog.text and len(counted) == 2


def test_who_has_no_home_measures_at_each_start(
    opened: Bundle, counted: list[Bundle], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def homeless() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setattr(Path, "home", homeless)
    assert choose(opened, OPTIONS) == choose(opened, OPTIONS) and len(counted) == 2
    assert "no home" in caplog.text and "the next start measures again" in caplog.text


def test_a_table_with_a_pair_that_failed_is_not_kept(
    opened: Bundle, counted: list[Bundle], monkeypatch: pytest.MonkeyPatch, cache_folder: Path
) -> None:
    once = Measured("openvino", "bf16", error="out of memory")
    with monkeypatch.context() as failing:
        failing.setattr(choice, "measure", lambda *_: [Measured(*REFERENCE, 10.0, 1.0, 1.0, 0.0), once])
        assert choose(opened, OPTIONS).pair == REFERENCE
    assert choose(opened, OPTIONS).pair == Pair("openvino", "bf16")


def test_the_file_that_is_written_and_read_is_named(
    opened: Bundle, counted: list[Bundle], cache_folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in ("written", "read"):
        with caplog.at_level(logging.INFO):
            choose(opened, OPTIONS)
        (file,) = cache_folder.iterdir()
        assert str(file) in caplog.text
        caplog.clear()


def test_a_table_of_another_key_under_this_name_is_not_used(
    opened: Bundle, counted: list[Bundle], cache_folder: Path
) -> None:
    choose(opened, OPTIONS)
    (file,) = cache_folder.iterdir()
    kept: dict[str, Any] = json.loads(file.read_text())
    kept["key"]["host"]["cpu"] = "another CPU"
    file.write_text(json.dumps(kept))
    choose(opened, OPTIONS)
    assert len(counted) == 2


def test_a_cache_that_cannot_be_written_stops_nobody(
    opened: Bundle, counted: list[Bundle], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "isosphere").write_text("a file where the folder should be")
    assert choose(opened, OPTIONS).pair == Pair("openvino", "bf16")
    assert "the next start measures again" in caplog.text


def test_a_named_pair_is_not_measured(opened: Bundle, counted: list[Bundle]) -> None:
    assert choose(opened, OPTIONS, precision="fp32") == Choice(REFERENCE)
    assert counted == []
    with pytest.raises(
        RuntimeUnavailable, match="no runtime of this machine supports int8; available: onnxruntime fp32, openvino bf16"
    ):
        choose(opened, OPTIONS, precision="int8")


def test_the_cpu_is_named_by_the_kernel_or_by_the_platform(tmp_path: Path) -> None:
    file = tmp_path / "cpuinfo"
    file.write_text("processor\t: 0\nmodel name\t: Some CPU @ 2 GHz\nflags: a b\n")
    assert choice.cpu(file) == "Some CPU @ 2 GHz"
    assert choice.cpu(tmp_path / "none")


def test_cpus_of_one_name_are_told_apart_by_their_instruction_sets(tmp_path: Path) -> None:
    texts = ["model name\t: AMD EPYC\nflags\t\t: avx2\n", "model name\t: AMD EPYC\nflags\t\t: avx2 avx512_vnni\n"]
    arm = ["processor\t: 0\nFeatures\t: asimd\n", "processor\t: 0\nFeatures\t: asimd i8mm\n"]
    found = set()
    for i, text in enumerate(texts + arm):
        (tmp_path / str(i)).write_text(text)
        found.add(choice.instruction_sets(tmp_path / str(i)))
    assert len(found) == 4
    assert choice.instruction_sets(tmp_path / "none") == ""
