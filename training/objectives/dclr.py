"""DCLR: noise as additional negatives, and removal of false negatives (Zhou, Zhang, Zhao and Wen, ACL 2022)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from models.encoder.encoder import full_precision
from training.objectives.base import REMOVED_SHARE, Needs, Objective, Preset, Recipe, Views, minilm_presets
from training.objectives.contrastive import MLP, ascend, check_ratio, cosine_logits, gaussian_negatives, info_nce

# Weights of negatives, and the terms that use them. A judge, which is the teacher or the encoder itself, sets the
# weights.


def instance_weights(anchors: Tensor, sentences: Tensor, noise: Tensor, threshold: float) -> Tensor:
    """Compute alpha (N, N + M) of equation 5: 0 for a negative whose cosine reaches the threshold, else 1.

    The judge is the encoder whose cosines are compared with the threshold. `anchors` and `sentences`, each (N, D'), are
    its vectors of two views of the batch. If it has only one view, both are the same tensor. The positives, on the
    diagonal, have weight 1. `noise` (M, D) contains M more negatives. If D differs from D', all of them have weight 1,
    because their cosines with the judge's vectors are undefined.
    """
    genuine = cosine_logits(anchors, sentences, 1.0) < threshold
    if noise.shape[1] == anchors.shape[1]:
        genuine_noise = cosine_logits(anchors, noise, 1.0) < threshold
    else:
        genuine_noise = genuine.new_ones(len(anchors), len(noise))
    return torch.cat([genuine, genuine_noise], dim=1).to(noise.dtype).fill_diagonal_(1)


def removed_share(weights: Tensor) -> Tensor:
    """Return the share of in-batch negatives that have weight 0.

    `weights` is alpha (N, N + M), the result of `instance_weights`. Its M columns for noise are ignored. If N is 1,
    there are no in-batch negatives, and the share is 0.
    """
    n = len(weights)
    return (weights[:, :n] == 0).to(weights.dtype).sum() / max(n * (n - 1), 1)


def binary_cross_entropy(logits: Tensor) -> Tensor:
    """Compute the binary cross-entropy of the softmax of each row of `logits` (N, M >= N).

    The result is the mean of -(y log p + (1 - y) log(1 - p)) over all entries, where p is the softmax and y is 1 on the
    diagonal. This is the loss in DCLR's published code, except that log(1 - p) stays finite if p rounds to 1. In that
    case log(1 - p) is computed from the exponentials of the remaining logits.
    """
    log_shares = logits.log_softmax(dim=1)
    largest = logits.argmax(dim=1, keepdim=True)  # Only the largest share can round to 1.
    others = logits.scatter(1, largest, torch.finfo(logits.dtype).min)
    log_others = others.logsumexp(dim=1, keepdim=True) - logits.logsumexp(dim=1, keepdim=True)
    log_complements = torch.log1p(-log_shares.exp().scatter(1, largest, 0)).scatter(1, largest, log_others)
    positive = torch.eye(*logits.shape, dtype=torch.bool, device=logits.device)
    return -torch.where(positive, log_shares, log_complements).mean()


def distillation(logits: Tensor, teacher: Tensor, temperature: float) -> Tensor:
    """Compute the mean over N rows of KL(teacher || student) between the softmax distributions of similarities.

    `logits` (N, N) are the student's cosines, divided by the temperature. The teacher's logits are the cosines of the
    vectors `teacher` (N, D'), divided by the same `temperature`.

    The DCLR paper names knowledge distillation as an ablation, but gives no details, so this definition is ours. As in
    RankCSE (Liu et al., ACL 2023), the diagonals of both matrices are left out. A sentence's similarity to itself
    carries no information, and at a temperature of 0.05 it would dominate the row.
    """
    targets = cosine_logits(teacher.detach(), teacher.detach(), temperature)
    shares, wanted = (_others(each).log_softmax(dim=1) for each in (logits, targets))
    return F.kl_div(shares, wanted, reduction="batchmean", log_target=True)


def _others(square: Tensor) -> Tensor:
    """Drop the diagonal: (N, N) to (N, N - 1)."""
    n = len(square)
    return square.flatten()[1:].view(n - 1, n + 1)[:, :-1].reshape(n, n - 1)


@dataclass(frozen=True, kw_only=True)
class DCLRParams:
    """Parameters of DCLR. The defaults are the published values for BERT-base."""

    temperature: float = 0.05
    noise_ratio: float = 1.0
    """k, the ratio of noise negatives to sentences of the batch."""
    ascent_steps: int = 4
    """t, the number of gradient steps that make the noise less uniform."""
    ascent_rate: float = 1e-3
    """Beta, the length of a gradient step. For comparison, the norm of a noise vector is about sqrt(D)."""
    ascent_temperature: float = 0.05
    """Tau_u, the temperature of the non-uniformity loss, from the published code. The paper gives no value."""
    ascent_loss: Literal["paper", "reference"] = "paper"
    """Denominator of the non-uniformity loss.

    "paper" uses only the noise. "reference", the published code, also uses the batch.
    """
    weighting: Literal["paper", "reference", "none"] = "paper"
    """Treatment of false negatives.

    "paper" removes them from the denominator. "reference", the published code, sets their logits to 0.
    """
    threshold: float = 0.9
    """Phi. A negative whose cosine is at least Phi counts as a false negative."""
    judge: Literal["teacher", "self"] = "teacher"
    """Encoder whose cosines are compared with the threshold to find false negatives."""
    distillation: float = 0.0
    """Weight of the term that distils the teacher's similarities."""
    head: bool = True
    """True to put a linear layer with tanh between the pooled vector and the loss."""

    def __post_init__(self) -> None:
        for name in ("temperature", "ascent_temperature"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} {getattr(self, name)} is not above 0")
        check_ratio(self.noise_ratio)
        for name in ("ascent_steps", "ascent_rate", "distillation"):
            if not 0 <= getattr(self, name) < math.inf:
                raise ValueError(f"{name} {getattr(self, name)} is not a number of at least 0")
        if not -1 <= self.threshold <= 1:
            raise ValueError(f"threshold {self.threshold} is not a cosine, from -1 to 1")


class DCLR(Objective):
    """DCLR: InfoNCE with noise as additional negatives and a weight alpha for each negative, equation 6 of the paper.

    The loss of a sentence i is -log (exp s(z_i, z'_i) / sum over c of alpha_ic exp s(z_i, c)). The candidates c are the
    sentences z'_j and the noise n_m. Unlike in the paper, the denominator includes the positive z'_i, with weight 1.
    Parameters can select the weighting of the published code instead, and can add a distillation term.
    """

    def __init__(self, params: DCLRParams, dim: int) -> None:
        super().__init__()
        self.params = params
        self.head = MLP(dim) if params.head else nn.Identity()
        self._removed: Tensor | None = None

    @property
    def needs(self) -> Needs:
        """Return the passes that DCLR needs: two views, and possibly a pass of the teacher.

        The teacher is needed if its cosines decide which negatives are false, or if it is distilled.
        """
        judges = self.params.weighting != "none" and self.params.judge == "teacher"
        return Needs(views=2, teacher=judges or self.params.distillation > 0)

    def forward(self, views: Views, rng: torch.Generator) -> dict[str, Tensor]:
        params = self.params
        anchors, positives = full_precision(self.head(views.noisy))
        noise = self._noise(anchors, positives, rng)
        logits = cosine_logits(anchors, torch.cat([positives, noise]), params.temperature)
        weights = self._weights(views, anchors, positives, noise)
        self._removed = None if weights is None else removed_share(weights)
        terms = self._contrast(logits, weights)
        if params.distillation:
            assert views.teacher is not None, "`needs` requests these vectors"
            in_batch = logits[:, : len(anchors)]
            terms["distillation"] = params.distillation * distillation(in_batch, views.teacher, params.temperature)
        return terms

    def measured(self) -> dict[str, Tensor]:
        """Return the share of in-batch negatives that count as false, under the name `REMOVED_SHARE`.

        Return {} if `weighting` is "none", because no negatives are then judged.
        """
        return {} if self._removed is None else {REMOVED_SHARE: self._removed}

    def _noise(self, anchors: Tensor, positives: Tensor, rng: torch.Generator) -> Tensor:
        params = self.params
        return ascend(
            gaussian_negatives(anchors, params.noise_ratio, rng),
            anchors,
            steps=params.ascent_steps,
            rate=params.ascent_rate,
            temperature=params.ascent_temperature,
            sentences=positives if params.ascent_loss == "reference" else None,
        )

    def _weights(self, views: Views, anchors: Tensor, positives: Tensor, noise: Tensor) -> Tensor | None:
        if self.params.weighting == "none":
            return None
        if self.params.judge == "teacher":
            assert views.teacher is not None, "`needs` requests these vectors"
            anchors = positives = views.teacher
        return instance_weights(anchors, positives, noise, self.params.threshold)

    def _contrast(self, logits: Tensor, weights: Tensor | None) -> dict[str, Tensor]:
        if weights is None:
            return {"info_nce": info_nce(logits)}
        if self.params.weighting == "reference":
            return {"binary_cross_entropy": binary_cross_entropy(logits * weights)}
        return {"info_nce": info_nce(logits + weights.log())}


SCRIPT = "run.sh of RUCAIBox/DCLR at e2c3430"


def _published(
    batch_size: int,
    learning_rate: float,
    *,
    threshold: float,
    noise_ratio: float,
    source: str,
    teacher_backbone: str | None = None,
) -> Preset[DCLRParams]:
    """Return a preset with the given settings and 3 epochs, as in all published settings."""
    return Preset(
        source=source,
        batch_size=batch_size,
        learning_rate=learning_rate,
        epochs=3,
        teacher_backbone=teacher_backbone,
        params=DCLRParams(threshold=threshold, noise_ratio=noise_ratio),
    )


CITATION = """\
@inproceedings{zhou2022debiased,
  title = {Debiased Contrastive Learning of Unsupervised Sentence Representations},
  author = {Zhou, Kun and Zhang, Beichen and Zhao, Wayne Xin and Wen, Ji-Rong},
  booktitle = {Proceedings of the 60th Annual Meeting of the Association for Computational Linguistics},
  year = {2022},
  url = {https://aclanthology.org/2022.acl-long.423}
}
"""

RECIPE = Recipe(
    summary="SimCSE with noise negatives, moved to regions without sentences, and false negatives removed by a "
    "frozen encoder",
    citation=CITATION,
    build=DCLR,
    presets={
        "bert-base-uncased": _published(128, 3e-5, threshold=0.9, noise_ratio=1.0, source=f"the paper and {SCRIPT}"),
        "bert-large-uncased": _published(
            256,
            3e-5,
            threshold=0.9,
            noise_ratio=4.0,
            source=f"the paper, which starts from SimCSE's weights; {SCRIPT}: a ratio of 3, 1 epoch",
            teacher_backbone="bert-base-uncased",
        ),
        "roberta-base": _published(128, 3e-5, threshold=0.85, noise_ratio=2.5, source=f"the paper and {SCRIPT}"),
        "roberta-large": _published(
            256,
            1e-5,
            threshold=0.85,
            noise_ratio=5.0,
            source=f"the paper, which starts from SimCSE's weights; {SCRIPT}: 1 epoch",
            teacher_backbone="roberta-base",
        ),
        **minilm_presets(
            "ours: BERT-base's ratio; the threshold removes as many negatives of the mean as 0.9 does of [CLS] "
            "(docs/objectives.md); head and learning rate chosen by STS-B dev, see docs/log.md",
            3e-5,
            DCLRParams(head=False, threshold=0.75),
            published=DCLRParams(),
        ),
    },
    as_simcse={"noise_ratio": 0.0, "weighting": "none"},
    ablations={
        "no-head": {"head": False},
        "no-noise": {"noise_ratio": 0.0},
        "no-weighting": {"weighting": "none"},
        "random-noise": {"ascent_steps": 0},
        "self-weighting": {"judge": "self"},
        "knowledge-distillation": {"weighting": "none", "distillation": 1.0},
        "reference": {"weighting": "reference", "ascent_loss": "reference"},
    },
)
