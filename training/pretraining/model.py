"""A BERT for masked language modelling on sequences of packed sentences."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from models.bundle.origin import Origin
from models.encoder.encoder import Encoder, full_precision
from training.passes.acceleration import swift
from training.pretraining.masking import Vocabulary
from training.speed import Work

if TYPE_CHECKING:
    from transformers import BertForMaskedLM, PreTrainedTokenizerBase


NO_ANSWER = -100
"""Label of an empty question. `cross_entropy` ignores it, and no token has it."""


class Questions(NamedTuple):
    """Sequences with masked tokens."""

    ids: Tensor
    """Ids, (n, L)."""
    places: Tensor
    """Indices (m,) of the masked tokens among the n L."""
    labels: Tensor
    """Original ids (m,), or `NO_ANSWER`."""

    def to(self, device: torch.device) -> Questions:
        """Copy to the device. Copies from pinned memory are asynchronous."""
        return Questions(*(each.to(device, non_blocking=True) for each in self))

    @property
    def answered(self) -> int:
        """Return the number of questions with an answer."""
        return int((self.labels != NO_ANSWER).sum())


class MaskedLM(nn.Module):
    """A BERT with a masked language modelling head. Each sentence of a sequence attends only to itself."""

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
        # The tuple prevents a second registration of the body's weights in this module.
        encoder = Encoder(bert.bert, tokenizer, pooling="mean", max_length=max_length, origin=origin)
        self._encoder = (swift(encoder),)

    @property
    def encoder(self) -> Encoder:
        """Return the body as the encoder that objectives use."""
        return self._encoder[0]

    def forward(self, ids: Tensor, places: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """Return the summed cross entropy over the m masked tokens, and the number of correct predictions.

        The head is computed only for masked tokens, which are all that the loss needs.
        """
        mask, positions = apart(ids, self.vocabulary.cls)
        hidden = self.bert.bert(input_ids=ids, attention_mask=mask, position_ids=positions).last_hidden_state
        logits = full_precision(self.bert.cls(hidden.flatten(0, 1).index_select(0, places)))
        return F.cross_entropy(logits, labels, reduction="sum"), (logits.argmax(dim=1) == labels).sum()

    def work(self, share: float) -> Work:
        """Return the operations per token, if a `share` of tokens passes the head."""
        body = Work.of(self.encoder)
        head = sum(each.weight.numel() for each in self.bert.cls.modules() if isinstance(each, nn.Linear))
        return Work(body.weights + round(share * head), body.attention)


def apart(ids: Tensor, cls: int) -> tuple[Tensor, Tensor]:
    """Return an additive mask (n, 1, L, L) and positions (n, L) that separate the sentences of a sequence.

    A sentence begins at its [CLS], and a cut sentence with its sequence. The corpus is shuffled, so neighbouring
    sentences would be noise. Source: Krell et al., "Efficient Sequence Packing without Cross-contamination" (2021),
    section 3.2.
    """
    begins, places = ids == cls, torch.arange(ids.size(1), device=ids.device).expand_as(ids)
    sentence = begins.cumsum(dim=1)
    same = sentence[:, None, :, None] == sentence[:, None, None, :]
    first = torch.where(begins, places, 0).cummax(dim=1).values
    return torch.where(same, 0.0, torch.finfo(torch.float32).min), places - first
