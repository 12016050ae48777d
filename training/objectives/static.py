"""Static distillation: token vectors whose means imitate the vectors of an encoder.

The student has no layers (`training.encoding.static`), so large batches are cheap.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import cosine_similarity

from models.encoder.encoder import full_precision
from training.objectives.base import Needs, Objective, Preset, Recipe, Views
from training.objectives.contrastive import similarity_distance


@dataclass(frozen=True, kw_only=True)
class StaticParams:
    """Parameters of static distillation. The defaults are ours, not from a paper."""

    similarity: float = 4.0
    """Weight of the term for the similarities within the batch."""

    def __post_init__(self) -> None:
        if self.similarity < 0:
            raise ValueError(f"similarity {self.similarity} is below 0")


class Static(Objective):
    """Mean of 1 - cos(z_i, s_i), plus `similarity` times the mean of (cos(z_i, z_j) - cos(s_i, s_j))^2.

    The first mean is over the sentences of the batch, and the second mean is over all pairs. z_i (N, D) are the
    student's vectors, and s_i (N, D) are the vectors of the frozen backbone with all its layers.

    In Matryoshka training, z_i can be prefixes. In the first term, a prefix z_i is compared with the prefix of s_i that
    has the same width. In the second term, the similarities of prefixes are compared with those of the whole s_i.
    """

    needs = Needs(views=1, start=True)

    def __init__(self, params: StaticParams, dim: int) -> None:  # noqa: ARG002 - the objective has no weights
        super().__init__()
        self.params = params

    def forward(self, views: Views, rng: torch.Generator) -> dict[str, Tensor]:  # noqa: ARG002 - nothing is drawn
        assert views.start is not None, "`needs` requests these vectors"
        own = full_precision(views.noisy[0])
        target = views.start.detach().to(own)
        terms = {"cosine": (1 - cosine_similarity(own, target[:, : own.shape[1]], dim=1)).mean()}
        if self.params.similarity:
            terms["similarity"] = self.params.similarity * similarity_distance(own, target)
        return terms


CITATION = """\
@inproceedings{arora2017simple,
  title = {A Simple but Tough-to-Beat Baseline for Sentence Embeddings},
  author = {Arora, Sanjeev and Liang, Yingyu and Ma, Tengyu},
  booktitle = {International Conference on Learning Representations},
  year = {2017},
  url = {https://openreview.net/forum?id=SyK00v5xx}
}
"""

RECIPE = Recipe(
    summary="one vector per token, without a transformer: the means imitate the vectors of the backbone",
    citation=CITATION,
    build=Static,
    presets={
        "minilm": Preset(
            source="ours: chosen by the experiments of ADR 0055",
            batch_size=256,
            learning_rate=6e-3,
            pooling="mean",
            params=StaticParams(),
            epochs=2,
            dropout=0.0,
            max_length=64,
            layers=(),
        ),
    },
    ablations={"no-similarity": {"similarity": 0.0}},
)
