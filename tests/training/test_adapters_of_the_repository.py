"""The encoders in models/adapters score what their manifests and README say."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from models import sources
from models.assembly import assemble
from training.evaluation import sts
from training.evaluation.pairs import STS_TASKS, sts_tasks
from training.evaluation.subjects import subject
from training.publish import spearman

README = Path(__file__).parents[2] / "README.md"
TOLERANCE = 0.05


@pytest.mark.slow
@pytest.mark.parametrize("name", sources.shipped())
def test_the_recorded_scores_come_out_again(name: str, test_data: Path, tmp_path: Path) -> None:
    made = assemble(name, tmp_path / "bundle", name="bundle")
    judged = subject(str(made.folder), key=None)
    scores = spearman(sts.evaluate(judged.encode, sts_tasks(test_data)))
    recorded = made.manifest.scores or {}
    assert {*STS_TASKS, "STS mean"} <= recorded.keys()
    assert scores == pytest.approx({task: recorded[task] for task in scores}, abs=TOLERANCE)


def test_readme_has_a_row_for_every_encoder_with_its_size_and_scores() -> None:
    rows = re.findall(
        r"^\| `([\w-]+)` \| .+? \| ([\d.]+) \| ([\d.]+) \| ([\d.]+|–) \| .+ \|$", README.read_text(), re.M
    )
    told = {name: figures for name, *figures in rows if name != "minilm"}
    assert {f"minilm+{name}" for name in told} == set(sources.shipped())
    for name, (megabytes, mean, ndcg) in told.items():
        folder = sources.resolve(f"minilm+{name}")
        said = sources.manifest_of(f"minilm+{name}")
        scores = said.scores if said and said.scores else {}
        assert float(megabytes) == round(sum(file.stat().st_size for file in folder.iterdir()) / 1e6, 2), name
        assert float(mean) == scores["STS mean"], name
        assert (ndcg == "–") == ("scifact nDCG@10" not in scores) and ndcg in (
            "–",
            f"{scores.get('scifact nDCG@10', 0):.2f}",
        )
