"""The studies that are shipped: each is a set of runs that can be made, for the encoder here and for the papers'."""

from __future__ import annotations

from pathlib import Path

import pytest

from training.objectives import OBJECTIVES
from training.studies.description import STUDIES, Study
from training.studies.papers import EARLIER, LEFT_OUT
from training.studies.trial import Trial

OF_PAPERS = {
    "dclr/figure-3": 30, "dclr/figure-4": 6, "dclr/figure-5": 36, "dclr/figure-6": 36, "dclr/table-1": 6,
    "dclr/table-2": 24, "gs-infonce/figure-1": 7, "gs-infonce/table-1": 6, "gs-infonce/table-3": 27,
    "imsimcse/table-1": 15, "imsimcse/table-2": 15, "imsimcse/table-3": 6, "imsimcse/table-4": 21,
    "imsimcse/table-5": 54, "whitenedcse/table-1": 6, "whitenedcse/table-2": 6, "whitenedcse/table-3": 15,
    "whitenedcse/table-4": 36, "whitenedcse/table-5": 12, "whitenedcse/table-6": 18,
}  # fmt: skip
OURS = {
    "adapters": 6, "adaptation": 16, "adaptation_python": 16, "adaptation_rates": 21, "batch_size": 72,
    "from_medium": 17, "from_minilm": 16, "from_pretrained": 17, "objectives": 30, "passages_python": 22, "poolings": 5,
    "published_parts": 9, "rates": 30, "swapping": 12, "transfer": 15,
}  # fmt: skip
SIZES = {**OF_PAPERS, **OURS}
"""Runs, as the tables have rows and the files seeds."""
SHARED = {"dclr/figure-6": 3, "imsimcse/table-5": 6}
"""Runs that are there twice: phi 0.9 and k 1 are DCLR; m 0.9, tau 5 and lambda 0.1 are ImSimCSE."""
FILES = [STUDIES / f"{name}.toml" for name in SIZES]
STEPS = {
    **dict.fromkeys(OF_PAPERS, 100),
    **dict.fromkeys(("adaptation", "adaptation_python", "adaptation_rates", "from_minilm"), 200),
    "from_pretrained": 500,
    "passages_python": None,  # three passes over the passages
    "from_medium": 3000,
    **dict.fromkeys(("adapters", "rates", "swapping"), 100),
}
"""Of minilm; 300 in the others."""
FEWER = {"passages_python": 45}
"""Steps of the arm with other learning rates."""
WIDTHS = {"from_medium": 512}
"""Of the one encoder that a file is written for; its groups divide no other."""


def of_minilm(file: Path) -> list[Trial]:
    """Whatever encoder it starts from, which may have to be made first."""
    return Study.read(file).override({"backbone": "minilm"}).trials()


def test_each_is_known() -> None:
    files = {
        file for file in STUDIES.rglob("*.toml") if file not in (LEFT_OUT, EARLIER) and file.parent.name != "recipes"
    }
    assert {Study.read(file).name for file in files} == SIZES.keys()


@pytest.mark.parametrize("name", SIZES)
def test_every_run_can_be_made(name: str) -> None:
    trials = of_minilm(STUDIES / f"{name}.toml")
    assert len(trials) == SIZES[name]
    check_built(trials, WIDTHS.get(name, 384))
    steps = STEPS.get(name, 300)
    assert {trial.config.max_steps for trial in trials if not trial.untrained} <= {steps, FEWER.get(name, steps)}


@pytest.mark.parametrize("name", [*OF_PAPERS, "objectives", "batch_size", "transfer"])
def test_every_published_run_can_be_made_from_its_backbones_preset(name: str) -> None:
    """Epochs, and what the file leaves open, are the paper's."""
    trials = Study.read(STUDIES / f"{name}.toml").as_published().trials()
    for trial in trials:
        config = trial.config
        assert config.max_steps is None or trial.untrained
        preset = config.preset.partition("+")[0]
        if not trial.untrained:
            named = f"-{config.backbone.rpartition('/')[2]}-"
            assert f"-{preset.removesuffix('-uncased')}-" in named and (preset == config.backbone) == (
                "/" not in config.backbone
            )
    check_built([trial for trial in trials if "large" in trial.config.backbone], 1024)
    check_built([trial for trial in trials if "large" not in trial.config.backbone], 768)


def check_built(trials: list[Trial], width: int) -> None:
    for objective, params in {(trial.config.objective, trial.config.params) for trial in trials}:
        OBJECTIVES[objective].build(params, width)


@pytest.mark.parametrize("name", OF_PAPERS)
def test_what_a_paper_reports_is_of_arms_that_there_are(name: str) -> None:
    study = Study.read(STUDIES / f"{name}.toml")
    labels = {trial.label for trial in (*study.trials(), *study.as_published().trials())}
    assert study.reported is None or study.reported.scores.keys() <= labels


def test_each_is_in_the_documentation_as_the_list_has_it() -> None:
    page = (STUDIES.parent / "docs" / "studies.md").read_text()
    for name, size in OURS.items():
        assert f"| `{name}.toml` | {size} |" in page
    for name, size in OF_PAPERS.items():
        study = Study.read(STUDIES / f"{name}.toml")
        assert f"| `{name}` | {size - SHARED.get(name, 0)} | {study.paper}: {study.about} |" in page


@pytest.mark.slow
def test_paths_are_left_to_the_command_line() -> None:
    for file in FILES:
        assert all(trial.config.eval_data is None and not trial.config.corpus for trial in of_minilm(file))


@pytest.mark.slow
def test_settings_that_several_arms_share_are_one_run() -> None:
    """The sweeps pass through the method itself; nothing else is there twice."""
    again = {}
    for name, file in zip(SIZES, FILES, strict=True):
        trials = of_minilm(file)
        again[name] = len(trials) - len({trial.id for trial in trials})
    assert again == {**dict.fromkeys(SIZES, 0), **SHARED}
