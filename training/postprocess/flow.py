"""BERT-flow: a normalising flow that makes pooled vectors Gaussian.

Li, Zhou, He, Wang, Yang and Li, "On the Sentence Embeddings from Pre-trained Language Models" (EMNLP 2020),
ACL 2020.emnlp-main.733, arXiv:2011.05864. The flow is Glow: Kingma and Dhariwal, "Glow: Generative Flow with Invertible
1x1 Convolutions" (NeurIPS 2018), arXiv:1807.03039.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from statistics import fmean
from typing import TextIO

import torch
from torch import Tensor, nn
from torch.nn.utils import clip_grad_norm_

from models.cli.fields import check_finite
from models.encoder.encoder import Encoder
from models.encoder.transform import LOG_SCALE_FACTOR, ActNorm, AdditiveCoupling, Flow
from training.data.corpus import Corpus
from training.postprocess import base

NOISE = 1e-3
"""Standard deviation of the noise that is added in training, relative to the vectors' mean deviation.

A last layer norm leaves vectors in a hyperplane, and coordinates can be constant (two of all-MiniLM's 384 are). Without
noise, the likelihood would therefore be unbounded. Images are dequantised by noise in the same way.
"""


@dataclass(frozen=True, kw_only=True)
class FlowParams:
    """Parameters of BERT-flow. The defaults are those of bohanli/BERT-flow.

    Its flow `l3_d3_w32` has 3 levels, a depth of 3 and a width of 32.
    """

    levels: int = 3
    depth: int = 3
    """Steps in a level."""
    hidden: int = 32
    """Width of the two hidden layers in a coupling."""
    batch_size: int = 32
    epochs: int = 1
    learning_rate: float = 1e-3
    weight_decay: float = 0.01
    clip_norm: float = 1.0

    def __post_init__(self) -> None:
        check_finite(self)
        base.check_above_zero(self, "levels", "depth", "hidden", "epochs", "clip_norm")
        base.check_training(self)
        if self.weight_decay < 0:
            raise ValueError(f"weight_decay: {self.weight_decay} is below 0")


def bits_per_dim(flow: Flow, pooled: Tensor) -> Tensor:
    """Compute the mean of -log2 p(x) / D over the pooled vectors x (N, D).

    The density of a vector is the density of its latents times the absolute determinant of the flow's Jacobian.
    """
    latents = flow(pooled)
    log_prior = -0.5 * (latents.square() + math.log(2 * math.pi)).sum(-1)
    bits: Tensor = -(log_prior + flow.log_det()).mean() / (flow.dim * math.log(2))
    return bits


@torch.no_grad()
def initialise(flow: Flow, pooled: Tensor) -> None:
    """Initialise the flow as Glow does.

    Couplings become the identity, and actnorms standardise the first batch (N, D). The parameters of the couplings'
    hidden layers are drawn from N(0, 0.05²), and the actnorms of these layers standardise the layers' outputs.
    """
    for module in flow.modules():
        if isinstance(module, AdditiveCoupling):
            for parameter in module.hidden.parameters():
                nn.init.normal_(parameter, std=0.05)
            nn.init.zeros_(module.shift.weight)
            nn.init.zeros_(module.shift.bias)
    actnorms = [module for module in flow.modules() if isinstance(module, ActNorm)]
    hooks = [actnorm.register_forward_pre_hook(_standardise) for actnorm in actnorms]
    flow(pooled)
    for hook in hooks:
        hook.remove()


def fit(encoder: Encoder, corpus: Corpus, params: FlowParams, seed: int, stream: TextIO) -> base.Fitted:
    """Fit the flow that maximises the likelihood of the corpus's vectors.

    Raises:
        PostprocessError: the width can't be halved `levels` - 1 times, the corpus has no complete batch, or the flow
            diverged.
    """
    sentences = base.check_sentences(corpus, params.batch_size, "for a flow", ", a whole batch to begin with")
    try:
        flow = Flow(dim=encoder.dim, levels=params.levels, depth=params.depth, hidden=params.hidden)
    except ValueError as error:
        raise base.PostprocessError(str(error)) from error
    size, epochs = params.batch_size, params.epochs
    bits = train(flow, base.pooled_batches(encoder, corpus, size=size, epochs=epochs, seed=seed, stream=stream), params)
    if not all(map(math.isfinite, bits)):
        raise base.PostprocessError(f"the flow diverged at learning_rate {params.learning_rate}: use a lower one")
    return base.Fitted(flow.eval(), {"sentences": sentences, "bits_per_dim": fmean(bits[-base.LAST :])})


def train(flow: Flow, batches: Iterable[Tensor], params: FlowParams) -> list[float]:
    """Maximise the likelihood over batches (N, D) of pooled vectors, and return each batch's bits per dimension.

    The first batch initialises the flow.
    """
    optimiser = torch.optim.AdamW(flow.parameters(), lr=params.learning_rate, weight_decay=params.weight_decay)
    bits: list[float] = []
    deviation = torch.tensor(0.0)
    for batch in batches:
        if not bits:
            deviation = NOISE * batch.std(0).mean()
            initialise(flow, batch + deviation * torch.randn_like(batch))
        optimiser.zero_grad()
        loss = bits_per_dim(flow, batch + deviation * torch.randn_like(batch))
        loss.backward()  # type: ignore[no-untyped-call]
        clip_grad_norm_(flow.parameters(), params.clip_norm)
        optimiser.step()
        bits.append(loss.item())
    return bits


def _standardise(actnorm: nn.Module, inputs: tuple[Tensor]) -> None:
    """Set an actnorm so that its output over `inputs` has mean 0 and variance 1."""
    assert isinstance(actnorm, ActNorm)
    deviation, mean = torch.std_mean(inputs[0], dim=0, correction=0)
    actnorm.shift.copy_(-mean)
    actnorm.log_scale.copy_(-(deviation + 1e-6).log() / LOG_SCALE_FACTOR)


CITATION = """\
@inproceedings{li2020sentence,
  title = {On the Sentence Embeddings from Pre-trained Language Models},
  author = {Li, Bohan and Zhou, Hao and He, Junxian and Wang, Mingxuan and Yang, Yiming and Li, Lei},
  booktitle = {Proceedings of the 2020 Conference on Empirical Methods in Natural Language Processing},
  year = {2020},
  url = {https://aclanthology.org/2020.emnlp-main.733}
}
"""

POSTPROCESS = base.Postprocess(
    summary="BERT-flow: Glow on the pooled vector, with standard normal latents",
    citation=CITATION,
    params=FlowParams(),
    fit=fit,
)
