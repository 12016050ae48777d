"""Distillation: a teacher's vectors and the initial encoder's vectors as targets.

Source of the teacher's term: Reimers and Gurevych, EMNLP 2020. In the paper a student reproduces the teacher's vectors.
Here the student keeps its own space, and an isometry maps this space to the teacher's space. The isometry preserves
cosines, so it can be discarded after training.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import cosine_similarity, normalize

from models.encoder.encoder import full_precision
from training.objectives.base import Needs, Objective, Preset, Recipe, Views
from training.objectives.contrastive import similarity_distance

NEGLIGIBLE = 1e-5
"""Smallest singular value that is used, relative to the largest.

Smaller singular values belong to directions that the sentences so far do not span. The isometry maps them to 0.
"""


@dataclass(frozen=True, kw_only=True)
class DistillationParams:
    """The parameters of distillation. The defaults are ours, not from a paper."""

    share: float = 0.5
    """Weight of the teacher's term. The term for the initial encoder's vectors has the weight 1 - `share`."""
    similarity: float = 0.0
    """Weight of the term for the teacher's similarities within the batch. Students with few layers need this term."""
    aligned: int = 6000
    """Number of sentences to which the isometry is fitted before it is fixed.

    With 0 there is no isometry. The student then learns the teacher's own space, which must have the same width.
    """

    def __post_init__(self) -> None:
        if not 0 < self.share <= 1:
            raise ValueError(f"share {self.share} is not above 0 and at most 1")
        if self.similarity < 0:
            raise ValueError(f"similarity {self.similarity} is below 0")
        if self.aligned < 0:
            raise ValueError(f"aligned {self.aligned} is below 0")


class Distillation(Objective):
    """Loss between the encoder's vectors and two targets: the teacher's vectors and the initial encoder's vectors.

    The loss is the mean over N sentences of share · (1 - cos(z_i R, t_i)) + (1 - share) · (1 - cos(z_i, s_i)). With
    `similarity`, the mean over all pairs of the batch of similarity · (cos(z_i, z_j) - cos(t_i, t_j))^2 is added.

    z_i (D) is the encoder's vector of a sentence, s_i (D) is the initial encoder's vector, and t_i (D') is the
    teacher's vector. R (D, D') is the isometry that maps every s_i as near as possible to t_i. It is the polar factor
    of the sum of s_i^T t_i (Schönemann 1966). While R is being fitted, it overfits the current batch, so the loss and
    the updates are small at first.
    """

    covariance: Tensor
    """Sum of s_i^T t_i over all sentences so far, (D, D')."""
    isometry: Tensor
    """R, (D, D'). The first batch determines D'. Until then, this buffer and `covariance` have the shape (D, 0)."""

    def __init__(self, params: DistillationParams, dim: int) -> None:
        super().__init__()
        self.params = params
        self.register_buffer("covariance", torch.zeros(dim, 0))
        self.register_buffer("isometry", torch.zeros(dim, 0))
        self._seen = 0

    @property
    def needs(self) -> Needs:
        """Return the encoder passes that this objective needs.

        The initial encoder's vectors are needed in two cases: as targets if `share` is below 1, and for the fit of the
        isometry if `aligned` is above 0.
        """
        aligned = self.params.aligned > 0
        start = aligned or self.params.share < 1
        return Needs(views=1, teacher=True, start=start, host=aligned, same_width=not aligned)

    def forward(self, views: Views, rng: torch.Generator) -> dict[str, Tensor]:  # noqa: ARG002 - nothing is drawn
        """Compute the terms of the loss, which use no negatives, unlike contrastive losses."""
        assert views.teacher is not None, "`needs` requests these vectors"
        own = full_precision(views.noisy[0])
        teacher = views.teacher.detach().to(own)
        start = None if views.start is None else views.start.detach().to(own)[:, : own.shape[1]]
        share = self.params.share
        terms = {"teacher": share * _distance(self._turned(own, start, teacher), teacher)}
        if share < 1:
            assert start is not None, "`needs` requests these vectors"
            terms["start"] = (1 - share) * _distance(own, start)
        if self.params.similarity:
            terms["similarity"] = self.params.similarity * similarity_distance(own, teacher)
        return terms

    def _turned(self, own: Tensor, start: Tensor | None, teacher: Tensor) -> Tensor:
        """Map the encoder's vectors `own` (N, D) to the teacher's space by the isometry R, and return them (N, D').

        If fewer than `aligned` sentences were seen before this batch, first fit R again, to all sentences up to and
        including this batch. R maps the initial encoder's vectors `start` to the vectors `teacher`. If `aligned` is 0,
        there is no isometry, and `own` is returned unchanged.
        """
        if not self.params.aligned:
            return own
        if self._seen < self.params.aligned:
            assert start is not None, "`needs` requests these vectors"
            between = normalize(start, dim=1).T @ normalize(teacher, dim=1)
            self.covariance = self.covariance + between if self._seen else between
            self.isometry = _polar(self.covariance)
            self._seen += len(start)
        return own @ self.isometry

    def get_extra_state(self) -> Tensor:
        """Return the number of sentences seen so far, for a checkpoint.

        During training, the count is a Python number, because reading a tensor on the device would wait for the device.
        """
        return torch.tensor(self._seen)

    def set_extra_state(self, state: Tensor) -> None:
        self._seen = int(state)

    def _load_from_state_dict(self, state_dict: Any, prefix: str, *rest: Any) -> None:
        for name in ("covariance", "isometry"):
            setattr(self, name, torch.empty_like(state_dict[prefix + name], device=self.covariance.device))
        super()._load_from_state_dict(state_dict, prefix, *rest)


def _polar(matrix: Tensor) -> Tensor:
    """Return U V^T of the singular value decomposition of `matrix` (D, D').

    Directions with a negligible singular value are left out.
    """
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
    summary="a teacher's vectors and the encoder's initial vectors as targets, without negatives",
    citation=CITATION,
    build=Distillation,
    needs_named_teacher=True,
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
    added_params={"similarity": 0.0},
)
