"""GS-InfoNCE: Gaussian noise as additional negatives ("Smoothed Contrastive Learning", Wu et al., COLING 2022)."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from training.objectives.base import Needs, Objective, Preset, Recipe, Views, minilm_presets
from training.objectives.contrastive import MLP, check_ratio, cosine_logits, gaussian_negatives, info_nce


@dataclass(frozen=True, kw_only=True)
class GSInfoNCEParams:
    """Parameters of GS-InfoNCE. The defaults are the published values."""

    temperature: float = 0.05
    noise_ratio: float = 3.0
    """M / N, the ratio of noise negatives to sentences of the batch."""
    noise_weight: float = 1.0
    """Lambda, the weight of a noise negative relative to an in-batch negative."""
    head: bool = True
    """True to put a linear layer with tanh between the pooled vector and the loss."""

    def __post_init__(self) -> None:
        for name in ("temperature", "noise_weight"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} {getattr(self, name)} is not above 0")
        check_ratio(self.noise_ratio)


def smoothed_logits(
    anchors: Tensor, positives: Tensor, noise: Tensor, *, temperature: float, noise_weight: float = 1.0
) -> Tensor:
    """Compute the logits s(h_i, h'_j) and s(h_i, g_k) + log(lambda) of equation 5.

    Shapes: (N, D), (N, D) and (M, D) to (N, N + M).
    """
    in_batch = cosine_logits(anchors, positives, temperature)
    return torch.cat([in_batch, cosine_logits(anchors, noise, temperature) + math.log(noise_weight)], dim=1)


class GSInfoNCE(Objective):
    """GS-InfoNCE: InfoNCE with Gaussian noise as additional negatives, equation 5 of the paper.

    The loss of a sentence i is -log (exp s(z_i, z'_i) / (sum_j exp s(z_i, z'_j) + lambda sum_k exp s(z_i, g_k))).
    The noise g_k ~ N(0, 1) is drawn anew in each step.
    """

    needs = Needs(views=2)

    def __init__(self, params: GSInfoNCEParams, dim: int) -> None:
        super().__init__()
        self.params = params
        self.head = MLP(dim) if params.head else nn.Identity()

    def forward(self, views: Views, rng: torch.Generator) -> dict[str, Tensor]:
        anchors, positives = self.head(views.noisy)
        noise = gaussian_negatives(anchors, self.params.noise_ratio, rng)
        logits = smoothed_logits(
            anchors,
            positives,
            noise,
            temperature=self.params.temperature,
            noise_weight=self.params.noise_weight,
        )
        return {"info_nce": info_nce(logits)}


SCRIPT = "run.sh of gsInfoNCE in caskcsg/sentemb at 5eeec55"

RATIOS = (0, 0.5, 1, 2, 3, 4, 8, 16)


def _published(
    batch_size: int, learning_rate: float, *, dropout: float, noise_ratio: float = 3.0, source: str = SCRIPT
) -> Preset[GSInfoNCEParams]:
    return Preset(
        source=source,
        batch_size=batch_size,
        learning_rate=learning_rate,
        dropout=dropout,
        params=GSInfoNCEParams(noise_ratio=noise_ratio),
    )


CITATION = """\
@inproceedings{wu2022smoothed,
  title = {Smoothed Contrastive Learning for Unsupervised Sentence Embedding},
  author = {Wu, Xing and Gao, Chaochen and Su, Yipeng and Han, Jizhong and Wang, Zhongyuan and Hu, Songlin},
  booktitle = {Proceedings of the 29th International Conference on Computational Linguistics},
  year = {2022},
  url = {https://aclanthology.org/2022.coling-1.434}
}
"""

RECIPE = Recipe(
    summary="SimCSE with Gaussian noise as additional negatives",
    citation=CITATION,
    build=GSInfoNCE,
    presets={
        "bert-base-uncased": _published(64, 3e-5, dropout=0.2, source=f"{SCRIPT}; the paper has no word on dropout"),
        "bert-large-uncased": _published(64, 1e-5, dropout=0.2, source=f"{SCRIPT}; the paper has no word on dropout"),
        "roberta-base": _published(64, 1e-5, dropout=0.1),
        "roberta-large": _published(
            128, 2e-5, dropout=0.1, noise_ratio=1.5, source=f"{SCRIPT}; the paper says a batch of 64 and a ratio of 3"
        ),
        "roberta-large-paper": _published(
            64,
            3e-5,
            dropout=0.1,
            source="the paper's batch and ratio; everything else as SimCSE, as the paper states: 3e-5",
        ),
        **minilm_presets(
            "ours: the paper's noise; head and learning rate chosen by STS-B dev, the search in docs/log.md",
            3e-5,
            GSInfoNCEParams(head=False),
            published=GSInfoNCEParams(),
        ),
    },
    as_simcse={"noise_ratio": 0.0},
    ablations={**{f"noise-{ratio}": {"noise_ratio": float(ratio)} for ratio in RATIOS}, "no-head": {"head": False}},
)
