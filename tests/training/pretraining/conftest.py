from __future__ import annotations

from pathlib import Path

import pytest

from tests.training.pretraining.runs import TINY


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def small(tiny_backbone: Path, corpus_file: Path) -> list[str]:
    """Return the options of a run of 6 steps with evaluations at 0, 4 and 6."""
    settings = [*TINY, "steps=6", "eval_every=4"]
    return [
        *("pretrain", "--corpus", str(corpus_file), "--tokenizer", str(tiny_backbone)),
        *(word for setting in settings for word in ("--set", setting)),
    ]
