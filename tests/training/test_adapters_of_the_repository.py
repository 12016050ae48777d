"""Tests of the encoders in models/adapters: their scores are those of their manifests and README."""

from __future__ import annotations

import re
import shutil
from contextlib import closing
from pathlib import Path
from statistics import fmean

import pytest

from models.__main__ import main
from models.bundle import adapter, card, origin, sources
from models.bundle.bundle import CARD
from models.encoder.encoder import Encoder
from training import cli
from training.checkpoints.publish import sts_manifest_scores
from training.evaluation import sts
from training.evaluation.labelled import TRANSFER_TASKS
from training.evaluation.pairs import STS_TASKS
from training.evaluation.selection import by_stsb_dev
from training.evaluation.subjects import open_subject

README = Path(__file__).parents[2] / "README.md"

TOLERANCE = 0.05


@pytest.mark.parametrize(
    "tasks",
    [pytest.param(["STSB"], marks=pytest.mark.slow), pytest.param([*STS_TASKS], marks=pytest.mark.nightly)],
    ids=["STS-B", "all"],
)
@pytest.mark.parametrize("name", sources.shipped())
def test_the_recorded_scores_come_out_again(name: str, tasks: list[str], test_data: Path) -> None:
    made = sources.manifest_of(name)
    assert made and made.scores
    with closing(open_subject(name, key=None)) as judged:
        assert (judged.facts["kind"], judged.facts["fingerprint"]) == ("adapter", made.fingerprint)
        assert judged.facts["engine"].startswith("onnxruntime"), "the graph that a server runs"
        scores = sts_manifest_scores(
            sts.evaluate(judged.encode, {one: STS_TASKS[one].load(test_data) for one in tasks})
        )
    assert {*STS_TASKS, "STS mean"} <= made.scores.keys()
    assert scores == pytest.approx({task: made.scores[task] for task in scores}, abs=TOLERANCE)


@pytest.mark.parametrize("name", sources.shipped())
def test_cards_say_what_is_known_as_it_is_said_today(name: str) -> None:
    folder = sources.resolve(name)
    said = sources.manifest_of(name)
    assert said
    assert (folder / CARD).read_text() == card.text(said, origin.read(name, folder)), "`evaluate --record` writes it"


def test_readme_has_a_row_for_every_encoder_with_its_size_and_scores() -> None:
    rows = re.findall(
        r"^\| `([\w-]+)` \| .+? \| ([\d.]+) \| ([\d.]+) \| ([\d.]+) \| ([\d.]+) \|$", README.read_text(), re.M
    )
    told = {name: figures for name, *figures in rows}
    assert {f"minilm+{name}" for name in told} == set(sources.shipped())
    for name, (megabytes, mean, transfer, ndcg) in told.items():
        folder = sources.resolve(f"minilm+{name}")
        said = sources.manifest_of(f"minilm+{name}")
        scores = said.scores if said and said.scores else {}
        assert float(megabytes) == round(sum(file.stat().st_size for file in folder.iterdir()) / 1e6, 2), name
        assert float(mean) == scores["STS mean"], name
        assert float(transfer) == round(fmean(scores[task] for task in TRANSFER_TASKS), 2), name
        assert float(ndcg) == scores["scifact nDCG@10"], name


def test_extraction_compares_by_sts_b_dev(
    tiny_backbone: Path, other_bundle: Path, stsb_data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Let `models` find the evaluation by its entry point, without an import of `training`."""
    options = ["--base", str(tiny_backbone), "--rank", "32", "--data", str(stsb_data), "--out", str(tmp_path / "a")]
    assert main(["adapter", "extract", str(other_bundle), *options]) == 0
    tuned = by_stsb_dev(stsb_data).scores(Encoder.load(other_bundle).encode)["stsb_dev_spearman"]
    assert f", and {tuned:.2f} for {other_bundle}" in capsys.readouterr().out


def test_scores_of_another_pooling_are_not_recorded(
    stsb_data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = ["--data", str(stsb_data), "--record"]
    assert cli.main(["evaluate", "minilm+default", "--pooling", "cls", *data]) == 2
    assert cli.main(["evaluate", "minilm", *data]) == 2
    assert "--record" in capsys.readouterr().err


def test_an_adapter_that_can_t_record_scores_is_refused_before_the_evaluation(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "of-peft"
    shutil.copytree(sources.resolve("minilm+dclr"), folder)
    (folder / adapter.MANIFEST).unlink()
    assert cli.main(["evaluate", str(folder), "--data", str(tmp_path / "none"), "--record"]) == 2
    assert f"--record: {folder}" in capsys.readouterr().err
