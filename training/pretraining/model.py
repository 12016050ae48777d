"""A BERT that names hidden tokens, in sequences in which sentences lie side by side."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from models.encoder import Encoder
from models.origin import Origin
from models.precision import full_precision
from training.passes.acceleration import swift
from training.pretraining.masking import Vocabulary
from training.speed import Work

if TYPE_CHECKING:
    from transformers import BertForMaskedLM, PreTrainedTokenizerBase


NO_ANSWER = -100
"""The label of a question that is none: `cross_entropy` passes over it, and no token has it."""


class Questions(NamedTuple):
    """Sequences with hidden tokens."""

    ids: Tensor
    """(n, L)"""
    places: Tensor
    """(m,) of the hidden tokens among the n L"""
    labels: Tensor
    """(m,) what stood there, or `NO_ANSWER`"""

    def to(self, device: torch.device) -> Questions:
        """The same there; from pinned memory nobody waits for them."""
        return Questions(*(each.to(device, non_blocking=True) for each in self))

    @property
    def answered(self) -> int:
        """How many have an answer."""
        return int((self.labels != NO_ANSWER).sum())


class MaskedLM(nn.Module):
    """A BERT with the head that names hidden tokens, each sentence of a sequence read by itself."""

    def __init__(
        self,
        bert: BertForMaskedLM,
        tokenizer: PreTrainedTokenizerBase,
        *,
        max_length: int,
        origin: Origin | None = None,
    ) -> None:
        super().__init__()
        self.bert = bert
        self.tokenizer = tokenizer
        self.vocabulary = Vocabulary.of(tokenizer)
        # In a tuple, so that the weights of the body are this module's once.
        encoder = Encoder(bert.bert, tokenizer, pooling="mean", max_length=max_length, origin=origin)
        self._encoder = (swift(encoder),)

    @property
    def encoder(self) -> Encoder:
        """The body, as objectives will know it."""
        return self._encoder[0]

    def forward(self, ids: Tensor, places: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """The cross entropy summed over the m hidden tokens, and how many of them came out first.

        The head reads the hidden tokens alone, which is all that the loss looks at.
        """
        mask, positions = apart(ids, self.vocabulary.cls)
        hidden = self.bert.bert(input_ids=ids, attention_mask=mask, position_ids=positions).last_hidden_state
        logits = full_precision(self.bert.cls(hidden.flatten(0, 1).index_select(0, places)))
        return F.cross_entropy(logits, labels, reduction="sum"), (logits.argmax(dim=1) == labels).sum()

    def work(self, share: float) -> Work:
        """The arithmetic of a token, of which `share` pass the head."""
        body = Work.of(self.encoder)
        head = sum(each.weight.numel() for each in self.bert.cls.modules() if isinstance(each, nn.Linear))
        return Work(body.weights + round(share * head), body.attention)


def apart(ids: Tensor, cls: int) -> tuple[Tensor, Tensor]:
    """What is added to the scores (n, 1, L, L) and the positions (n, L), so that sentences are read as if alone.

    A sentence begins with its [CLS]; what a cut left of one, with its sequence. Others beside it would be noise, as the
    corpus is shuffled. Krell et al., "Efficient Sequence Packing without Cross-contamination" (2021), section 3.2.
    """
    begins, places = ids == cls, torch.arange(ids.size(1), device=ids.device).expand_as(ids)
    sentence = begins.cumsum(dim=1)
    same = sentence[:, None, :, None] == sentence[:, None, None, :]
    first = torch.where(begins, places, 0).cummax(dim=1).values
    return torch.where(same, 0.0, torch.finfo(torch.float32).min), places - first
