"""SimCSE: two dropout passes of the same sentence are a positive pair (Gao, Yao and Chen, EMNLP 2021)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from training.objectives.base import Needs, Objective, Preset, Recipe, Views, minilm_presets
from training.objectives.contrastive import MLP, cosine_logits, info_nce


@dataclass(frozen=True, kw_only=True)
class SimCSEParams:
    """Parameters of SimCSE. The defaults are the published values."""

    temperature: float = 0.05
    head: bool = True
    """True to put a linear layer with tanh between the pooled vector and the loss."""

    def __post_init__(self) -> None:
        if not self.temperature > 0:
            raise ValueError(f"temperature {self.temperature} is not above 0")


class SimCSE(Objective):
    """SimCSE: InfoNCE between two dropout views, equation 4 of the paper.

    The loss is the mean over the N anchors z_i of -log (exp(cos(z_i, z'_i) / tau) / sum_j exp(cos(z_i, z'_j) / tau)).
    """

    needs = Needs(views=2)

    def __init__(self, params: SimCSEParams, dim: int) -> None:
        super().__init__()
        self.params = params
        self.head = MLP(dim) if params.head else nn.Identity()

    def forward(self, views: Views, rng: torch.Generator) -> dict[str, Tensor]:  # noqa: ARG002 - nothing is drawn
        anchors, candidates = self.head(views.noisy)
        return {"info_nce": info_nce(cosine_logits(anchors, candidates, self.params.temperature))}


README = "README of princeton-nlp/SimCSE at 49fa580"


def _published(batch_size: int, learning_rate: float) -> Preset[SimCSEParams]:
    return Preset(source=README, batch_size=batch_size, learning_rate=learning_rate, params=SimCSEParams())


CITATION = """\
@inproceedings{gao2021simcse,
  title = {SimCSE: Simple Contrastive Learning of Sentence Embeddings},
  author = {Gao, Tianyu and Yao, Xingcheng and Chen, Danqi},
  booktitle = {Proceedings of the 2021 Conference on Empirical Methods in Natural Language Processing},
  year = {2021},
  url = {https://aclanthology.org/2021.emnlp-main.552}
}
"""

RECIPE = Recipe(
    summary="InfoNCE between two dropout views, with the other sentences of the batch as negatives",
    citation=CITATION,
    build=SimCSE,
    presets={
        "bert-base-uncased": _published(64, 3e-5),
        "bert-large-uncased": _published(64, 1e-5),
        "roberta-base": _published(512, 1e-5),
        "roberta-large": _published(512, 3e-5),
        **minilm_presets(
            "ours: pooling, head and learning rate chosen by STS-B dev, the search in docs/log.md",
            1e-5,
            SimCSEParams(head=False),
            published=SimCSEParams(),
        ),
    },
    ablations={"no-head": {"head": False}},
)
