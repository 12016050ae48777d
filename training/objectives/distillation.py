"""Distillation: a teacher's vectors as targets (Reimers and Gurevych, EMNLP 2020), beside the encoder's own of before.

There a student is to give the teacher's very vectors. Here it keeps a space of its own, which an isometry takes to the
teacher's: cosines are the same on both sides, and so nothing of it has to be kept after training.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cosine_similarity, normalize

from models.precision import full_precision
from training.objectives.base import Needs, Preset, Recipe, Views

NEGLIGIBLE = 1e-5
"""Of the largest singular value: directions that the sentences so far have not shown have no image yet."""


@dataclass(frozen=True, kw_only=True)
class DistillationParams:
    """Ours; no paper has them."""

    share: float = 0.5
    """Of the teacher in the loss; the rest is the encoder's own vectors of before."""
    aligned: int = 6000
    """Sentences by which the isometry is found; it stays as it is from then on."""

    def __post_init__(self) -> None:
        if not 0 < self.share <= 1:
            raise ValueError(f"share {self.share} is not above 0 and at most 1")
        if self.aligned < 1:
            raise ValueError(f"aligned {self.aligned} is less than one sentence")


class Distillation(nn.Module):
    """share · (1 - cos(z_i R, t_i)) + (1 - share) · (1 - cos(z_i, s_i)), the mean over the N sentences.

    z_i (D) is the encoder's vector of a sentence, s_i what it was before the first step, t_i (D') the teacher's. R
    (D, D') takes the s_i nearest to their t_i, of all isometries: the polar factor of the sum of s_i^T t_i (Schönemann
    1966). While it is sought it fits the batch at hand better than any other, so the first steps are short ones.
    """

    needs = Needs(views=1, teacher=True, start=True, host=True)
    covariance: Tensor
    """The sum of s_i^T t_i so far."""
    isometry: Tensor
    """R. Both are (D, D'), and (D, 0) before the first batch, which tells D'."""

    def __init__(self, params: DistillationParams, dim: int) -> None:
        super().__init__()
        self.params = params
        self.register_buffer("covariance", torch.zeros(dim, 0))
        self.register_buffer("isometry", torch.zeros(dim, 0))
        self._seen = 0

    def forward(self, views: Views, rng: torch.Generator) -> dict[str, Tensor]:  # noqa: ARG002 - nothing is drawn
        """Sentence by sentence: none of them meets another."""
        assert views.teacher is not None and views.start is not None, "needs say so"
        own = full_precision(views.noisy[0])
        start, teacher = (of.detach().to(own) for of in (views.start, views.teacher))
        if self._seen < self.params.aligned:
            self._align(start, teacher)
        share = self.params.share
        terms = {"teacher": share * _distance(own @ self.isometry, teacher)}
        if share < 1:
            terms["start"] = (1 - share) * _distance(own, start)
        return terms

    def _align(self, start: Tensor, teacher: Tensor) -> None:
        between = normalize(start, dim=1).T @ normalize(teacher, dim=1)
        self.covariance = self.covariance + between if self._seen else between
        self.isometry = _polar(self.covariance)
        self._seen += len(start)

    def get_extra_state(self) -> Tensor:
        """Sentences seen: a number of Python's, for nobody is to wait for a device to know it."""
        return torch.tensor(self._seen)

    def set_extra_state(self, state: Tensor) -> None:
        """Takes it back."""
        self._seen = int(state)

    def _load_from_state_dict(self, state_dict: Any, prefix: str, *rest: Any) -> None:
        for name in ("covariance", "isometry"):
            setattr(self, name, torch.empty_like(state_dict[prefix + name], device=self.covariance.device))
        super()._load_from_state_dict(state_dict, prefix, *rest)


def _polar(matrix: Tensor) -> Tensor:
    """U V^T of the singular value decomposition (D, D'), without the directions that are not in it."""
    u, values, vh = torch.linalg.svd(matrix, full_matrices=False)
    shown: Tensor = u * (values > NEGLIGIBLE * values.max()) @ vh
    return shown.contiguous()


def _distance(a: Tensor, b: Tensor) -> Tensor:
    return (1 - cosine_similarity(a, b, dim=1)).mean()


CITATION = """\
@inproceedings{reimers2020making,
  title = {Making Monolingual Sentence Embeddings Multilingual using Knowledge Distillation},
  author = {Reimers, Nils and Gurevych, Iryna},
  booktitle = {Proceedings of the 2020 Conference on Empirical Methods in Natural Language Processing},
  year = {2020},
  url = {https://aclanthology.org/2020.emnlp-main.365}
}
"""

RECIPE = Recipe(
    summary="a teacher's vectors as targets, and the encoder's own of before; no sentence is held against another",
    citation=CITATION,
    build=Distillation,
    imitates=True,
    presets={
        "minilm": Preset(
            source="ours: the first values that were tried, see docs/log.md",
            batch_size=64,
            learning_rate=2e-4,
            pooling="mean",
            params=DistillationParams(),
            dropout=0.0,
        ),
    },
    ablations={"teacher-alone": {"share": 1.0}},
)
