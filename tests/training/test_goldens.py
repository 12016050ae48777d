"""Values that the papers' published code computes on fixed tensors, one test a file."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from training.evaluation import sts
from training.objectives.base import Views
from training.objectives.simcse import SimCSE, SimCSEParams

FOLDER = Path(os.environ.get("ISOSPHERE_GOLDENS", ""))
Arrays = dict[str, NDArray[Any]]


def golden_files(prefix: str) -> pytest.MarkDecorator:
    files = sorted(FOLDER.glob(f"{prefix}*.npz")) if os.environ.get("ISOSPHERE_GOLDENS") else []
    absent = pytest.param(None, marks=pytest.mark.skip(reason="ISOSPHERE_GOLDENS has no such file"), id=prefix)
    return pytest.mark.parametrize("file", [pytest.param(f, id=f.stem) for f in files] or [absent])


def read(file: Path) -> tuple[Arrays, dict[str, Any]]:
    with np.load(file) as archive:
        arrays = {name: archive[name] for name in archive.files}
    return arrays, json.loads(file.with_suffix(".json").read_text(encoding="utf-8"))


def close(actual: Any, expected: NDArray[Any], precision: torch.dtype, *, gradient: bool = False) -> None:
    rtol = 1e-10 if precision == torch.float64 else 1e-3 if gradient else 1e-4
    atol = 1e-14 if precision == torch.float64 else 1e-7
    np.testing.assert_allclose(np.asarray(actual, dtype=np.float64), expected, rtol=rtol, atol=atol)


def views_of(arrays: Arrays, precision: torch.dtype) -> Views:
    return Views(torch.from_numpy(np.stack([arrays["z1"], arrays["z2"]])).to(precision).requires_grad_())


precisions = pytest.mark.parametrize("precision", [torch.float64, torch.float32], ids=["f64", "f32"])


@golden_files("simcse_")
@precisions
def test_simcse_loss_and_gradients(file: Path, precision: torch.dtype) -> None:
    arrays, facts = read(file)
    views = views_of(arrays, precision)
    objective = SimCSE(SimCSEParams(temperature=facts["temp"], head=False), facts["D"])
    loss = objective(views, torch.Generator())["info_nce"]
    loss.backward()
    assert views.noisy.grad is not None
    close(loss.item(), arrays["official_loss"], precision)
    close(loss.item(), arrays["paper_loss"], precision)
    close(views.noisy.grad[0], arrays["official_grad_z1"], precision, gradient=True)
    close(views.noisy.grad[1], arrays["official_grad_z2"], precision, gradient=True)


@golden_files("simcse_")
@precisions
def test_simcse_loss_and_gradients_through_the_head(file: Path, precision: torch.dtype) -> None:
    arrays, facts = read(file)
    views = views_of(arrays, precision)
    objective = SimCSE(SimCSEParams(temperature=facts["temp"]), facts["D"]).to(precision)
    weight, bias = (torch.from_numpy(arrays[name]) for name in ("mlp_weight", "mlp_bias"))
    objective.load_state_dict({"head.0.weight": weight, "head.0.bias": bias})
    loss = objective(views, torch.Generator())["info_nce"]
    loss.backward()
    gradients = {name: parameter.grad for name, parameter in objective.named_parameters()}
    assert views.noisy.grad is not None
    close(loss.item(), arrays["official_mlp_loss"], precision)
    close(views.noisy.grad[0], arrays["official_mlp_grad_z1"], precision, gradient=True)
    close(gradients["head.0.weight"], arrays["official_mlp_grad_weight"], precision, gradient=True)
    close(gradients["head.0.bias"], arrays["official_mlp_grad_bias"], precision, gradient=True)


@golden_files("sts_aggregation")
def test_sts_aggregation(file: Path) -> None:
    arrays, facts = read(file)
    names = list(facts["sizes"])
    cosines, golds = {}, {}
    for name in names:
        a, b = (arrays[f"emb{side}_{name}"] for side in (1, 2))
        norms = np.linalg.norm(a, axis=1) * np.linalg.norm(b, axis=1)
        cosines[name] = (a * b).sum(axis=1) / np.where(norms > 0, norms, 1)
        golds[name] = arrays[f"gold_{name}"]
    score = sts.aggregate(cosines, golds, task="golden")
    for kind in ("spearman", "pearson"):
        aggregates = getattr(score, kind)
        for aggregation in ("all", "mean", "wmean"):
            expected = 100 * arrays[f"official_{kind}_{aggregation}"]
            close(getattr(aggregates, aggregation), expected, torch.float64)
        for name in names:
            expected = 100 * arrays[f"official_{kind}_{name}"]
            close(getattr(score.subsets[name], kind), expected, torch.float64)


@golden_files("optimizer_schedule")
def test_optimiser_and_learning_rate(file: Path) -> None:
    arrays, facts = read(file)
    from training.loop import adamw, learning_rate

    weights = torch.from_numpy(arrays["p0"]).requires_grad_()
    optimiser = adamw([weights], learning_rate=facts["lr"], weight_decay=0.0, fused=True)
    for step, gradient in enumerate(arrays["grads"]):
        rate = learning_rate(facts["lr"], step, facts["total_steps"])
        assert rate == pytest.approx(float(arrays["official_lrs"][step]), rel=1e-12)
        optimiser.param_groups[0]["lr"] = rate
        weights.grad = torch.from_numpy(gradient)
        optimiser.step()
        close(weights.detach(), arrays["official_params_torch"][step], torch.float64)
