"""Tests of promotions and refusals. A refusal changes nothing."""

from __future__ import annotations

import hashlib
import json
import shutil
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from models.bundle import bundle
from models.bundle.bundle import Bundle, BundleError
from models.export import destination
from models.runtimes.graph import Graph
from training.cli import main
from training.cli.options import SERVED
from training.evaluation import sts
from training.evaluation.pairs import STS_TASKS, STSB_DEV, DataError
from training.evaluation.report.published import STS
from training.promotion.ledger import PromotionError
from training.promotion.yardsticks import StsYardstick, choose_yardstick

Command = Callable[..., int]
Rewritten = Callable[..., Bundle]


def tree(folder: Path) -> dict[str, str]:
    """Return every path except the ledger and the lock, with its content or target."""
    return {
        str(path.relative_to(folder)): str(path.readlink())
        if path.is_symlink()
        else hashlib.sha256(path.read_bytes()).hexdigest()
        if path.is_file()
        else "folder"
        for path in folder.rglob("*")
        if path.name not in ("promotions.jsonl", ".promotion.lock")
    }


def decisions(artifacts: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (artifacts / "promotions.jsonl").read_text().splitlines()]


def served(artifacts: Path) -> str:
    return bundle.load(artifacts / "default").manifest.name


def test_the_first_is_promoted_as_a_copy_behind_a_link(artifacts: Path, command: Command) -> None:
    assert command("promote", "tiny") == 0
    source, found = bundle.load(artifacts / "tiny"), bundle.load(artifacts / "default")
    name = source.manifest.fingerprint[:12]
    assert (artifacts / "default").readlink() == Path("promoted") / name
    assert found.folder == artifacts / "promoted" / name
    assert found.manifest.fingerprint == source.manifest.fingerprint
    assert found.manifest.golden == source.manifest.golden and found.manifest.scores == source.manifest.scores
    assert set(found.manifest.files) == {*source.manifest.files, "report.json", "report.html"}
    assert found.onnx.stat().st_ino == source.onnx.stat().st_ino, "hard links"
    (line,) = decisions(artifacts)
    assert (line["outcome"], line["copy"], line["forced"], line["incumbent"]) == ("promoted", name, False, None)
    assert [check["passed"] for check in line["checks"]] == [True] * 5
    assert line["host"]["cpus"] > 0
    report = json.loads((artifacts / "default" / "report.json").read_text())
    assert report["format"] == 1 and report["promotion"] == line
    rows = {row["method"]: row for row in report["papers"]["sts"]["rows"]}
    assert report["papers"]["sts"]["tasks"] == list(STS) and rows["SimCSE"]["mean"] == 76.25
    assert "<html" in (artifacts / "default" / "report.html").read_text()


def test_training_it_again_does_not_change_what_is_served(artifacts: Path, command: Command) -> None:
    assert command("promote", "tiny") == 0
    before = tree(artifacts / "promoted")
    with destination.writing(artifacts / "tiny") as draft:
        shutil.copytree(artifacts / "other", draft, dirs_exist_ok=True)
    assert tree(artifacts / "promoted") == before
    assert served(artifacts) == "tiny"


def test_a_real_folder_becomes_a_copy_that_a_rollback_finds(artifacts: Path, command: Command) -> None:
    (artifacts / "tiny").rename(artifacts / "default")
    assert command("promote", "other", "--margin", "100") == 0
    assert (artifacts / "default").is_symlink() and served(artifacts) == "other"
    assert {path.name for path in artifacts.iterdir()} == {
        "default",
        "other",
        "promoted",
        "promotions.jsonl",
        ".promotion.lock",
    }
    assert command("rollback") == 0
    assert served(artifacts) == "tiny"


def test_one_flipped_byte_is_refused_and_can_not_be_forced(
    artifacts: Path, command: Command, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command("promote", "tiny") == 0
    graph = artifacts / "other" / "onnx" / "model.onnx"
    flipped = bytearray(graph.read_bytes())
    flipped[len(flipped) // 2] ^= 1
    graph.write_bytes(flipped)
    before = tree(artifacts)
    for arguments in ([], ["--force"]):
        assert command("promote", "other", *arguments) == 1
        assert "model.onnx: changed (its SHA-256 differs" in capsys.readouterr().err
        line = decisions(artifacts)[-1]
        assert (line["outcome"], line["failed"], line["forced"]) == ("refused", ["verified"], False)
    assert tree(artifacts) == before


def test_golden_vectors_that_no_longer_hold_can_not_be_forced(
    artifacts: Path, command: Command, rewritten: Rewritten
) -> None:
    shutil.copy(artifacts / "tiny" / "onnx" / "model.onnx", artifacts / "other" / "onnx" / "model.onnx")
    rewritten(artifacts / "other")
    assert command("promote", "other", "--force") == 1
    assert decisions(artifacts)[-1]["failed"] == ["golden vectors"]
    assert not (artifacts / "default").exists()


@pytest.fixture
def worse(artifacts: Path, corpus: Path) -> tuple[str, str, float]:
    """Return the better and the worse bundle, and the difference of their scores in points."""
    yardstick = choose_yardstick(None, [str(corpus)])
    scores = {name: yardstick.judge(Graph(bundle.load(artifacts / name)).encode).score for name in ("tiny", "other")}
    better, other = sorted(scores, key=lambda name: -scores[name])
    assert scores[better] - scores[other] > 0.5, "or they are no use here"
    return better, other, scores[better] - scores[other]


def test_the_margin_both_ways(
    artifacts: Path, command: Command, worse: tuple[str, str, float], capsys: pytest.CaptureFixture[str]
) -> None:
    better, other, points = worse
    assert command("promote", better) == 0
    before = tree(artifacts)
    assert command("promote", other, "--margin", f"{points - 0.001:.6f}") == 1
    said = capsys.readouterr().err
    assert "not worse: self-retrieval" in said and f"-{points:.2f}" in said and "interval" in said
    assert "--retrieval NAME" in said, "a way out of a crude question"
    assert tree(artifacts) == before, "a refusal changes nothing"
    line = decisions(artifacts)[-1]
    assert (line["outcome"], line["winner"]) == ("refused", "incumbent")
    assert line["by"] == pytest.approx(points)
    (check,) = [check for check in line["checks"] if check["name"] == "not worse"]
    numbers = check["numbers"]
    assert numbers["low"] <= numbers["difference"] <= numbers["high"]
    assert numbers["difference"] == pytest.approx(-points)
    assert command("promote", other, "--margin", f"{points + 0.001:.6f}") == 0
    assert served(artifacts) == other
    assert command("promote", better) == 0, "the better one needs no margin"
    assert decisions(artifacts)[-1]["winner"] == "candidate"


def test_the_same_encoder_again_needs_no_margin(artifacts: Path, command: Command) -> None:
    assert command("promote", "tiny") == 0
    assert command("promote", "tiny", "--margin", "0") == 0
    (check,) = [check for check in decisions(artifacts)[-1]["checks"] if check["name"] == "not worse"]
    assert check["numbers"]["difference"] == 0


def test_forced_is_recorded_with_what_failed(artifacts: Path, command: Command, worse: tuple[str, str, float]) -> None:
    better, other, _ = worse
    assert command("promote", better) == 0
    assert command("promote", other, "--margin", "0", "--require", "sts", "--force") == 0
    line = decisions(artifacts)[-1]
    assert (line["outcome"], line["forced"]) == ("promoted", True)
    assert line["failed"] == ["required tasks", "not worse"]
    assert served(artifacts) == other


def test_missing_tasks_are_named(artifacts: Path, command: Command, capsys: pytest.CaptureFixture[str]) -> None:
    assert command("promote", "other", "--require", "STS12,scifact,sts") == 1
    said = capsys.readouterr().err
    assert "no score of scifact, STS14, STS15, STS16, STSB, SICKR" in said
    (check,) = [check for check in decisions(artifacts)[-1]["checks"] if check["name"] == "required tasks"]
    assert check["numbers"]["missing"] == ["scifact", "STS14", "STS15", "STS16", "STSB", "SICKR"]
    assert command("promote", "other", "--require", "STS12,STS13") == 0


def test_bad_input_is_no_decision(artifacts: Path, command: Command, tmp_path: Path) -> None:
    with pytest.raises(BundleError, match=r"nothing/manifest\.json: missing"):
        command("promote", "nothing")
    with pytest.raises(DataError):
        command("promote", "tiny", "--data", str(tmp_path))
    for margin in ("-1", "nan"):
        with pytest.raises(PromotionError, match="--margin"):
            command("promote", "tiny", "--margin", margin)
    with pytest.raises(PromotionError, match="there is no earlier bundle to go back to"):
        command("rollback")
    assert not (artifacts / "promotions.jsonl").exists()
    assert command("promote", "tiny") == 0
    with pytest.raises(PromotionError, match=r".* already serves this bundle"):
        command("promote", "default")


def test_an_incumbent_that_does_not_verify_needs_force_and_is_kept_aside(artifacts: Path, command: Command) -> None:
    shutil.copytree(artifacts / "tiny", artifacts / "default")
    (artifacts / "default" / "tokenizer.json").write_text("{}")
    assert command("promote", "other") == 1
    assert decisions(artifacts)[-1]["failed"] == ["not worse"]
    assert command("promote", "other", "--force") == 0
    assert served(artifacts) == "other"
    assert (artifacts / "promoted" / "unverified" / "tokenizer.json").read_text() == "{}"
    with pytest.raises(PromotionError, match="there is no earlier bundle to go back to"):
        command("rollback")


def test_a_dangling_link_is_replaced(artifacts: Path, command: Command) -> None:
    (artifacts / "default").symlink_to("promoted/gone")
    assert command("promote", "tiny", "--force") == 0
    assert served(artifacts) == "tiny"


def test_an_export_does_not_write_through_the_link(artifacts: Path, command: Command) -> None:
    assert command("promote", "tiny") == 0
    before = tree(artifacts)
    with pytest.raises(BundleError, match="a link to promoted/"), destination.writing(artifacts / "default"):
        pass
    assert tree(artifacts) == before


def test_the_default_is_the_servers() -> None:
    from serving.settings import Settings

    assert [Path(folder) for folder in Settings().bundles] == [SERVED]


@pytest.mark.slow
def test_real_labels(artifacts: Path, command: Command, test_data: Path) -> None:
    assert command("promote", "tiny", "--data", str(test_data)) == 1, "STS must have been measured where it can be"
    assert decisions(artifacts)[-1]["failed"] == ["required tasks"]
    assert command("promote", "tiny", "--data", str(test_data), "--require", "") == 0
    assert command("promote", "other", "--data", str(test_data), "--require", "STS12", "--margin", "100") == 0
    (check,) = [check for check in decisions(artifacts)[-1]["checks"] if check["name"] == "not worse"]
    assert check["numbers"]["metric"] == "STS-B dev"
    assert check["numbers"]["low"] < check["numbers"]["difference"] < check["numbers"]["high"]


def test_the_command_line_ends_as_it_should(artifacts: Path, corpus: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def run(*given: str) -> int:
        return main([*given, "--default", str(artifacts / "default")])

    compared = ("--corpus", str(corpus))
    assert run("promote", str(artifacts / "nothing"), *compared) == 2
    assert run("rollback") == 2
    said = capsys.readouterr().err.splitlines()
    assert (
        len(said) == 2 and "manifest.json: missing" in said[0] and "there is no earlier bundle to go back to" in said[1]
    )
    assert run("promote", str(artifacts / "tiny"), *compared, "--require", "sts") == 1
    assert "refused" in capsys.readouterr().err
    assert run("promote", str(artifacts / "tiny"), *compared) == 0
    assert f"{artifacts / 'default'}: now " in capsys.readouterr().out


def test_where_all_tasks_are_there_engines_are_held_against_their_mean_too(test_data: Path) -> None:
    def encode(texts: Sequence[str]) -> NDArray[np.float32]:
        return np.stack([np.random.default_rng(zlib.crc32(text.encode())).standard_normal(8) for text in texts])

    yardstick = StsYardstick(test_data)
    tasks = {name: files.load(test_data) for name, files in STS_TASKS.items()}
    dev = sts.evaluate(encode, {"dev": STSB_DEV.load(test_data)})["dev"].spearman.all
    assert yardstick.limits == {"STS-B dev": 0.1, "mean STS": 0.2}
    assert yardstick.scores(encode) == {"STS-B dev": dev, "mean STS": sts.mean_of_tasks(sts.evaluate(encode, tasks))}
    assert (yardstick.metric, yardstick.judge(encode).score) == ("STS-B dev", dev)
