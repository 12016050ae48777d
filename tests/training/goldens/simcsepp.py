"""SimCSE++: off-dropout negatives, the contrast between dimensions, means of views and added noise."""

from __future__ import annotations

import torch
from torch import Tensor

from tests.training.goldens.golden import Golden, gradients
from training.objectives.contrastive import DCLForm, cosine_logits, dimension_contrast
from training.objectives.imsimcse import WeightOn, off_info_nce

FORMS: dict[str, tuple[WeightOn, DCLForm, float]] = {
    "official": ("positive-logit", "per-sentence", 1e-5),
    "paper": ("negatives", "printed", 0.0),
}
"""Position of m, form of the contrast and its eps, in the published code and as printed."""


def check(golden: Golden, dtype: torch.dtype) -> None:
    check_off_dropout(golden)
    check_dimension_contrast(golden)
    check_means(golden)
    check_noise(golden)


def check_off_dropout(golden: Golden) -> None:
    z1, z2, z0 = (golden.leaf(key) for key in ("z1", "z2", "z0"))
    positives, negatives = logits(golden, z1, z2).diagonal(), logits(golden, z0, z0)
    for reading, (m_on, form, eps) in FORMS.items():
        contrast = dimension_contrast(z1, z2, golden.facts["tau_dcl"], form=form, eps=eps)
        for m in golden.facts["m"]:
            loss = off_info_nce(positives, negatives, m, m_on)
            for total, name in ((loss, "off_info"), (loss + golden.facts["lam"] * contrast, "combined")):
                key = f"{reading}_{name}_m{m}"
                golden.close(total, key)
                for gradient, leaf in zip(gradients(total, z1, z2, z0), ("z1", "z2", "z0"), strict=True):
                    golden.close(gradient, f"grad_{leaf}__{key}")


def check_dimension_contrast(golden: Golden) -> None:
    z1, z2 = golden.leaf("z1"), golden["z2"]
    for reading, (_, form, eps) in FORMS.items():
        for key in golden.keys(f"{reading}_dcl_tau"):
            if key.endswith("_f32"):
                continue
            tau = key.removeprefix(f"{reading}_dcl_tau")
            loss = dimension_contrast(z1, z2, float(tau), form=form, eps=eps)
            golden.close(loss, key, *([f"transcribed_code_dcl_tau{tau}"] if reading == "official" else []))
            golden.close(gradients(loss, z1)[0], f"grad_z1__{key}")
    for key in golden.keys("official_dcl_only_run_temp"):
        if key.endswith("_f32"):
            continue
        temperature, weight = map(float, key.removeprefix("official_dcl_only_run_temp").split("_w"))
        similarities = logits(golden, z1, z2)
        total = off_info_nce(similarities.diagonal(), similarities, 1.0) + weight * dimension_contrast(
            z1, z2, temperature
        )
        golden.close(total, key)
        golden.close(gradients(total, z1)[0], "grad_z1__official_dcl_only_run")


def check_means(golden: Golden) -> None:
    z1, z2, views = golden["z1"], golden["z2"], golden.leaf("views")  # (N, K, D)
    count = views.shape[1]
    mean, halves = views.mean(1), (views[:, : count // 2].mean(1), views[:, count // 2 :].mean(1))

    shared = off_info_nce(logits(golden, views[:, 0], views[:, 1]).diagonal(), logits(golden, mean, mean), 1.0)
    golden.close(shared, f"official_neg_mean_K{count}")
    golden.close(gradients(shared, views)[0], f"grad_views__official_neg_mean_K{count}")
    pair = (z1 + z2) / 2
    golden.close(
        off_info_nce(logits(golden, z1, z2).diagonal(), logits(golden, pair, pair), 1.0),
        "official_neg_mean_K2_models_both",
    )

    plain, means = logits(golden, z1, z2), logits(golden, *halves)
    golden.close(off_info_nce(means.diagonal(), plain, 1.0), "paper_pos_minus_noise")
    golden.close(off_info_nce(plain.diagonal(), means, 1.0), "paper_neg_minus_noise")


def check_noise(golden: Golden) -> None:
    z1, z2 = golden["z1"], golden["z2"]
    plain, noised = logits(golden, z1, z2), logits(golden, z1 + golden["gauss1"], z2 + golden["gauss2"])
    golden.close(off_info_nce(noised.diagonal(), plain, 1.0), "paper_pos_plus_noise")
    golden.close(off_info_nce(plain.diagonal(), noised, 1.0), "paper_neg_plus_noise")


def logits(golden: Golden, a: Tensor, b: Tensor) -> Tensor:
    return cosine_logits(a, b, golden.facts["temp"])
