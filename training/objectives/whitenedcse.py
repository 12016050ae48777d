"""WhitenedCSE: positives made by whitening shuffled groups of channels (Zhuo et al., ACL 2023)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from training.objectives.base import Needs, Objective, Preset, Recipe, Views, minilm_presets
from training.objectives.contrastive import MLP, cosine_logits
from training.objectives.whitening import Gradient, GroupWhitening, MomentumWhitening

# Losses for several positives of one anchor: a sum of InfoNCE, and interpretations of WhitenedCSE's equation 8. In
# these formulas, s_ip is the similarity of anchor i to its p-th positive, divided by tau. Z_ip is the sum of exp s over
# the candidates of view p. lambda_p is the weight of the p-th positive.

MultiPositive = Literal["L1", "L2-eq8", "L2-no-minus", "L2-intended"]


def positive_logits(views: Tensor, temperature: float) -> Tensor:
    """Compute the logits (P, N, N) of the first view, the anchors, against each of the P other views."""
    anchors, positives = views[0], views[1:]
    logits = cosine_logits(anchors, positives.flatten(0, 1), temperature)  # (N, P N)
    return logits.reshape(len(anchors), len(positives), -1).transpose(0, 1)


def multi_positive_loss(logits: Tensor, weights: Sequence[float], reading: MultiPositive) -> Tensor:
    """Compute the mean loss over N anchors, from (P, N, N) logits with positives on the diagonals, and P weights.

    `reading` selects the formula. In the formulas, s is the logit of the p-th positive, and lambda_p is its weight. Z
    is the sum of exp over the row of logits that contains s.

    * L1, equation 7: sum_p lambda_p (log Z - s).
    * L2-eq8, equation 8 as printed: -log sum_p (lambda_p exp(-s) / Z). This loss is smallest if the positives are
      least similar.
    * L2-no-minus, as in commented-out published code: -log sum_p (lambda_p exp(s) / Z).
    * L2-intended, the probable intention of equation 8: log sum_p lambda_p Z exp(-s). Its gradient is largest for the
      least similar positive.
    """
    log_shares = positive_log_shares(logits)
    match reading:
        case "L1":
            losses = -torch.stack([w * x for w, x in zip(weights, log_shares, strict=True)]).sum(dim=0)
        case "L2-eq8":
            losses = -_log_weighted_sum(weights, log_shares - 2 * logits.diagonal(dim1=1, dim2=2))
        case "L2-no-minus":
            losses = -_log_weighted_sum(weights, log_shares)
        case "L2-intended":
            losses = _log_weighted_sum(weights, -log_shares)
    return losses.mean()


def positive_log_shares(logits: Tensor) -> Tensor:
    """Compute s - log Z for each row of `logits` (P, N, N).

    s is the row's entry on the diagonal, and Z is the sum of exp over the row. The result (P, N) is also
    precise near 0, where the logarithm of a rounded softmax would be exactly 0.
    """
    itself = torch.eye(logits.shape[-1], dtype=torch.bool, device=logits.device)
    others = logits.masked_fill(itself, -torch.inf).logsumexp(dim=2)
    return F.logsigmoid(logits.diagonal(dim1=1, dim2=2) - others)


def _log_weighted_sum(weights: Sequence[float], exponents: Tensor) -> Tensor:
    """Compute log sum_p lambda_p exp x_p (N,), with the weights lambda_p and the exponents x (P, N)."""
    return torch.stack([math.log(w) + x for w, x in zip(weights, exponents, strict=True)]).logsumexp(dim=0)


@dataclass(frozen=True, kw_only=True)
class WhitenedCSEParams:
    """Parameters of WhitenedCSE. The defaults are the paper's values for BERT-base."""

    temperature: float = 0.05
    views: int = 3
    """Number of views including the anchor, which the paper calls "number of positives"."""
    head: bool = True
    """True to put a linear layer with tanh between the features and the loss."""
    single_feature: bool = False
    """True if the views are shuffles of a single dropout pass (figure 2).

    By default, each view has a dropout pass of its own.
    """
    whitening: Literal["none", "pca", "zca", "group", "shuffled-group"] = "shuffled-group"
    groups: int = 384
    """Number of groups of channels, each whitened separately: the paper's "group size"."""
    eps: float = 1e-5
    """Term added to every eigenvalue, because the covariance of a single sentence has only zero eigenvalues."""
    gradient: Gradient = "detached"
    momentum: float = 0.99
    """Momentum of the running statistics for the whitening kinds pca and zca. The paper gives no value."""
    chunking: Literal["views", "reference"] = "views"
    """Rows that are whitened together.

    "views" whitens the rows of each view. "reference", as in the published code, whitens the rows of each part that
    `interleaved` returns.
    """
    multi_positive: MultiPositive = "L1"
    positive_weights: tuple[float, ...] | None = None
    """lambda, one weight for each positive. None means 1 for each."""

    def __post_init__(self) -> None:
        if not self.temperature > 0:
            raise ValueError(f"temperature {self.temperature} is not above 0")
        if self.views < 2:
            raise ValueError(f"views {self.views} is below 2, but an anchor and a positive are needed")
        if self.groups < 1:
            raise ValueError(f"groups {self.groups} is below 1")
        if not self.eps > 0:
            raise ValueError(f"eps {self.eps} is not above 0")
        if not 0 <= self.momentum < 1:
            raise ValueError(f"momentum {self.momentum} is not in [0, 1)")
        if len(self.weights) != self.views - 1 or not all(weight > 0 for weight in self.weights):
            raise ValueError(f"positive_weights {self.positive_weights} are not {self.views - 1} numbers above 0")
        if self.gradient == "full" and self.whitening == "pca":
            raise ValueError(
                "gradient full: principal axes have no gradient if two eigenvalues are equal: set gradient=detached"
            )
        if self.single_feature and (self.whitening, self.chunking) != ("shuffled-group", "views"):
            raise ValueError("single_feature: without shuffled groups all views would be the same")
        if self.chunking == "reference" and self.whitening not in ("group", "shuffled-group"):
            raise ValueError(f"chunking reference: whitening {self.whitening} does not divide the rows into parts")

    @property
    def weights(self) -> tuple[float, ...]:
        """Return lambda, one weight for each positive."""
        return (1.0,) * (self.views - 1) if self.positive_weights is None else self.positive_weights


class WhitenedCSE(Objective):
    """WhitenedCSE: whitening, the head, and InfoNCE of the first view against every other view (equations 7 and 8).

    Raises:
        ValueError: the width is not divisible by the number of groups.
    """

    def __init__(self, params: WhitenedCSEParams, dim: int) -> None:
        super().__init__()
        self.params = params
        self.whitening = _whitening(params, dim)
        self.head = MLP(dim) if params.head else nn.Identity()

    @property
    def needs(self) -> Needs:
        """Return the passes: one dropout pass for each view, or with `single_feature` a single pass for all views."""
        views = 1 if self.params.single_feature else self.params.views
        return Needs(views=views, host=self.whitening is not None and self.whitening.host)

    def forward(self, views: Views, rng: torch.Generator) -> dict[str, Tensor]:
        """Compute the loss. Random permutations of the channels are drawn from `rng`."""
        logits = positive_logits(self.head(self._whitened(views.noisy, rng)), self.params.temperature)
        return {"info_nce": multi_positive_loss(logits, self.params.weights, self.params.multi_positive)}

    def _whitened(self, noisy: Tensor, rng: torch.Generator) -> Tensor:
        if self.whitening is None:
            return noisy
        if self.params.single_feature:
            noisy = noisy.expand(self.params.views, -1, -1)
        if self.params.chunking == "reference":
            whitened: Tensor = self.whitening(interleaved(noisy), rng)
            return separated(whitened)
        return self.whitening(noisy, rng)  # type: ignore[no-any-return]


def interleaved(views: Tensor) -> Tensor:
    """Regroup V views (V, N, D) into V parts (V, N, D), as in the published code.

    A part contains all views of about N / V sentences.
    """
    return views.transpose(0, 1).reshape(views.shape)


def separated(parts: Tensor) -> Tensor:
    """Return the V views (V, N, D) from which `interleaved` made the V `parts` (V, N, D)."""
    count, n, dim = parts.shape
    return parts.reshape(n, count, dim).transpose(0, 1)


def _whitening(params: WhitenedCSEParams, dim: int) -> GroupWhitening | MomentumWhitening | None:
    match params.whitening:
        case "none":
            return None
        case "pca" | "zca" as kind:
            return MomentumWhitening(dim, kind, momentum=params.momentum, eps=params.eps, gradient=params.gradient)
        case kind:
            shuffled = kind == "shuffled-group"
            return GroupWhitening(dim, params.groups, shuffled=shuffled, eps=params.eps, gradient=params.gradient)


PAPER = "the paper; its script has batch 128 on each of two devices and 1e-5"
GROUPS = (32, 48, 64, 96, 128, 192, 256, 384)


def _preset(source: str, groups: int) -> Preset[WhitenedCSEParams]:
    """Return a preset with `groups` groups, and with the paper's batch size and learning rate.

    The paper has the same batch size and learning rate for all backbones.
    """
    params = WhitenedCSEParams(groups=groups)
    return Preset(source=source, batch_size=64, learning_rate=3e-5, params=params)


CITATION = """\
@inproceedings{zhuo2023whitenedcse,
  title = {WhitenedCSE: Whitening-based Contrastive Learning of Sentence Embeddings},
  author = {Zhuo, Wenjie and Sun, Yifan and Wang, Xiaohan and Zhu, Linchao and Yang, Yi},
  booktitle = {Proceedings of the 61st Annual Meeting of the Association for Computational Linguistics},
  pages = {12135--12148},
  year = {2023}
}
"""

RECIPE = Recipe(
    summary="InfoNCE with several positives, each whitened in different groups of channels",
    citation=CITATION,
    build=WhitenedCSE,
    presets={
        "bert-base-uncased": _preset(PAPER, 384),
        "bert-large-uncased": _preset(
            f"{PAPER}; its 384 groups do not divide 1024, so there are 512 groups of 2 channels, as in BERT-base", 512
        ),
        "roberta-base": _preset(PAPER, 256),
        "roberta-large": _preset(PAPER, 256),
        **minilm_presets(
            "ours: groups of 2 channels as for BERT; head and learning rate chosen by STS-B dev, see docs/log.md",
            1e-5,
            WhitenedCSEParams(groups=192, head=False),
            published=WhitenedCSEParams(groups=192),
        ),
    },
    as_simcse={"whitening": "none", "views": 2},
    ablations={  # groups, shuffling, number of positives, whitening
        **{f"groups-{k}": {"groups": k} for k in GROUPS},
        **{f"no-shuffle-{k}": {"groups": k, "whitening": "group"} for k in GROUPS},
        **{f"positives-{views}": {"views": views} for views in (2, 3, 4, 5)},
        "no-head": {"head": False},
        "sgw-only": {"views": 2},
        "multi-positive-only": {"whitening": "none"},
        "whitening-none": {"whitening": "none", "views": 2},  # Table 3's "None" is unsupervised SimCSE.
        **{f"whitening-{kind}": {"whitening": kind} for kind in ("pca", "zca", "group")},
    },
)
