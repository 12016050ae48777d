"""Tests against values that the papers' published code computes on fixed tensors, by file and precision.

A file's name begins with the name of the module in `goldens/` that checks it.
"""

from __future__ import annotations

import importlib
import os
from pathlib import Path
from typing import Any, cast

import pytest
import torch

from tests.training.goldens.golden import Check, Golden

PREFIXES = (
    *("simcse", "gs_infonce", "dclr", "simcsepp", "barlow", "whitenedcse", "whitening_variants", "multi_positive"),
    *("augmentations", "bert_whitening", "optimizer_schedule", "sts_aggregation"),
)

NOT_OURS = {
    *("pgd_max_angle_rad", "pgd_mean_noise_norm"),  # Remarks on the noise.
    "rank_deficient_num_nonpositive_or_tiny",  # A remark on a batch whose roots are checked.
    "official_loss_f32_std0.1",  # The scale of the noise, which can't be set.
    # An augmentation that is not offered.
    *("random_0.2__out", *(f"random_0.2__shuffled_index_{i}" for i in range(3))),
    *("transcribed_spearman_all", "sys_scores_all"),  # Facts about the author of the file.
}
"""Keys that are not about this code."""


def golden_files() -> list[Any]:
    """Return (prefix, file) for the folder's files. A prefix without a file is skipped with a reason."""
    folder = os.environ.get("ISOSPHERE_GOLDENS")
    found = []
    for prefix in PREFIXES:
        files = sorted(Path(folder).glob("*.npz")) if folder else []
        files = [file for file in files if f"{file.stem}_".startswith(f"{prefix}_")]
        reason = f"ISOSPHERE_GOLDENS has no {prefix}*.npz" if folder else "ISOSPHERE_GOLDENS is not set"
        absent = pytest.param(prefix, None, marks=pytest.mark.skip(reason=reason), id=prefix)
        found += [pytest.param(prefix, file, id=file.stem) for file in files] or [absent]
    return found


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=["float64", "float32"])
@pytest.mark.parametrize(("prefix", "file"), golden_files())
def test_equals_the_published_code(prefix: str, file: Path, dtype: torch.dtype) -> None:
    check = cast(Check, importlib.import_module(f"tests.training.goldens.{prefix}").check)
    golden = Golden(file, dtype)
    check(golden, dtype)
    assert golden.compared, f"{file.name} holds nothing that was compared"
    assert not golden.ignored - NOT_OURS, "keys that no check looks at"
