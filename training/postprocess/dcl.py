"""A linear map of a frozen encoder's pooled vectors, trained by the dimension-wise contrastive loss alone.

Xu, Shao, Chen and Liu, "SimCSE++: Improving Contrastive Learning for Sentence Embeddings from Two Perspectives" (EMNLP
2023), ACL 2023.emnlp-main.737, arXiv:2305.13192, equation 5. The paper trains the encoder with this loss. Here the
encoder is frozen, and the loss trains only the linear map.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from statistics import fmean
from typing import TextIO

import torch
from torch import Tensor, nn

from models.cli.fields import check_finite
from models.encoder.encoder import Encoder
from models.encoder.transform import Affine
from training.data.corpus import Corpus
from training.encoding.lora import has_dropout
from training.encoding.views import ViewEncoder, make_passes
from training.objectives.base import Needs
from training.objectives.contrastive import dimension_contrast
from training.objectives.imsimcse import CITATION
from training.postprocess import base


@dataclass(frozen=True, kw_only=True)
class DCLParams:
    """Parameters of the fit.

    The temperature is from the published SimCSE++ model that was trained by the dimension-wise contrastive loss alone.
    The other values are ours, because the published code trains the whole encoder instead of a linear map.
    """

    temperature: float = 10.0
    """Temperature in models_vicreg.py of SimCSE++. The help text of that code says 20."""
    batch_size: int = 64
    epochs: int = 1
    learning_rate: float = 1e-4
    """Learning rate, chosen on STS.

    A rate ten times as high gives a lower loss, but also lower STS scores (docs/objectives.md).
    """

    def __post_init__(self) -> None:
        check_finite(self)
        base.check_above_zero(self, "temperature", "epochs")
        base.check_training(self)


def dropout_views(encoder: Encoder, batches: Iterable[list[str]]) -> Iterator[Tensor]:
    """Encode each batch of N sentences in two dropout passes to (2, N, D), without gradient, on the CPU."""
    views = ViewEncoder(encoder, Needs(views=2)).train()
    for sentences in batches:
        with torch.no_grad():
            pooled = views(make_passes(encoder, encoder.tokenizer.encode(sentences)))
        yield pooled.cpu()
    encoder.eval()


def train(batches: Iterable[Tensor], dim: int, params: DCLParams) -> tuple[Tensor, list[float]]:
    """Train the matrix (D, D) of the linear map, and return it with the loss of each batch.

    Training starts from the identity. Each batch (2, N, D) has the pooled vectors of two views of N sentences.
    """
    matrix = nn.Parameter(torch.eye(dim))
    optimiser = torch.optim.Adam([matrix], lr=params.learning_rate)
    losses: list[float] = []
    for first, second in batches:
        optimiser.zero_grad()
        loss = dimension_contrast(first @ matrix, second @ matrix, params.temperature)
        loss.backward()  # type: ignore[no-untyped-call]
        optimiser.step()
        losses.append(loss.item())
    return matrix.detach(), losses


def fit(encoder: Encoder, corpus: Corpus, params: DCLParams, seed: int, stream: TextIO) -> base.Fitted:
    """Fit a linear map to the vectors of two dropout views by the dimension-wise contrastive loss.

    The loss is low if each dimension of the mapped first view is most similar to the same dimension of the mapped
    second view.

    Raises:
        PostprocessError: the encoder has no dropout, so that two views would be equal, or the corpus has no complete
            batch.
    """
    if not has_dropout(encoder):
        raise base.PostprocessError(
            f"{encoder.backbone.name_or_path}: has no dropout, so the two views of a sentence would be equal; "
            f"whitening needs no views"
        )
    size = params.batch_size
    sentences = base.check_sentences(corpus, size, "for DCL", " for a complete batch")
    batches = base.sentence_batches(corpus, size=size, least=size, epochs=params.epochs, seed=seed, stream=stream)
    matrix, losses = train(dropout_views(encoder, batches), encoder.dim, params)
    facts = {"sentences": sentences, "loss_at_first": losses[0], "loss": fmean(losses[-base.LAST :])}
    return base.Fitted(Affine.of(torch.zeros(encoder.dim), matrix), facts)


POSTPROCESS = base.Postprocess(
    summary="DCL: a linear map trained by the dimension-wise contrastive loss on two dropout views",
    citation=CITATION,
    params=DCLParams(),
    fit=fit,
)
