"""The studies that are shipped: each is a set of runs that can be made, for the encoder here and for the papers'."""

from __future__ import annotations

from pathlib import Path

import pytest

from training.objectives import OBJECTIVES
from training.study.description import Study, settings
from training.study.trial import Trial

FILES = sorted((Path(__file__).parents[3] / "studies").glob("*.toml"))
SIZES = {
    "adapters": 6, "adaptation": 16, "adaptation_python": 16, "adaptation_rates": 21, "batch_size": 72,
    "dclr_ablations": 60, "dclr_augmentations": 30, "dclr_few_shot": 36, "from_medium": 17, "from_minilm": 16,
    "from_pretrained": 17, "gs_infonce_negatives": 24, "imsimcse_ablations": 87, "objectives": 25, "poolings": 5,
    "published_parts": 9, "rates": 30, "swapping": 12, "transfer": 15, "whitenedcse_groups": 36,
    "whitenedcse_positives": 33,
}  # fmt: skip
"""Runs, as the tables have rows and the files seeds."""
STEPS = {
    **dict.fromkeys(("adaptation", "adaptation_python", "adaptation_rates", "from_minilm"), 200),
    "from_pretrained": 500,
    "from_medium": 3000,
    **dict.fromkeys(("adapters", "rates", "swapping"), 100),
}
"""Of minilm; 300 in the others."""
WIDTHS = {"from_medium": 512}
"""Of the one encoder that a file is written for; its groups divide no other."""


def of_minilm(file: Path) -> list[Trial]:
    """Whatever encoder it starts from, which may have to be made first."""
    return Study.read(file).override({"backbone": "minilm"}).trials()


def test_each_is_known() -> None:
    assert {file.stem for file in FILES} == SIZES.keys()


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
@pytest.mark.parametrize(
    ("backbone", "width"), [("minilm", 384), pytest.param("bert-base-uncased", 768, marks=pytest.mark.slow)]
)
def test_every_run_can_be_made(file: Path, backbone: str, width: int) -> None:
    published = settings([f"backbone={backbone}"] + (["max_steps=none"] if backbone != "minilm" else []))
    trials = Study.read(file).override(published).trials()
    assert len(trials) == SIZES[file.stem]
    assert {trial.config.backbone for trial in trials} == {backbone}
    for objective, params in {(trial.config.objective, trial.config.params) for trial in trials}:
        OBJECTIVES[objective].build(params, WIDTHS.get(file.stem, width))
    for trial in trials:
        if not trial.untrained:
            assert trial.config.preset.partition("+")[0] == backbone
            assert trial.config.max_steps == (STEPS.get(file.stem, 300) if backbone == "minilm" else None)


def test_each_is_in_the_documentation() -> None:
    page = (FILES[0].parents[1] / "docs" / "studies.md").read_text()
    for name, size in SIZES.items():
        assert f"| `{name}.toml` | {size} |" in page


@pytest.mark.slow
def test_paths_are_left_to_the_command_line() -> None:
    for file in FILES:
        assert all(trial.config.eval_data is None and not trial.config.corpus for trial in of_minilm(file))


@pytest.mark.slow
def test_settings_that_several_arms_share_are_one_run() -> None:
    """The sweeps pass through the method itself; nothing else is there twice."""
    again = {}
    for file in FILES:
        trials = of_minilm(file)
        again[file.stem] = len(trials) - len({trial.id for trial in trials})
    assert again == {
        **dict.fromkeys(SIZES, 0),
        "dclr_ablations": 6,  # phi 0.9 and k 1 are DCLR
        "imsimcse_ablations": 9,  # m 0.9, tau 5 and lambda 0.1 are ImSimCSE
        "whitenedcse_positives": 6,  # 3 views are shuffled groups, 2 are one whitened positive
    }
