"""A cross-encoder: a backbone that reads two texts together and returns one score."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from models.bundle import origin as origins
from models.bundle.origin import Origin
from models.bundle.sources import SourceError, check_fetched, resolve
from models.bundle.tokenizer import UNKNOWN_WORDS, TextPair, Tokens, padded_types
from models.encoder import pretrained
from models.encoder.encoder import DEFAULT_MAX_LENGTH, dropout_off, fast_tokenizer, positions, save_tokenizer
from models.encoder.pretrained import reading

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase


class CrossEncoder(nn.Module):
    """Sequence classifier with one output, which is the score of a pair of texts."""

    def __init__(
        self, model: PreTrainedModel, hub_tokenizer: PreTrainedTokenizerBase, *, max_length: int, origin: Origin
    ) -> None:
        super().__init__()
        self.model = model
        self.hub_tokenizer = hub_tokenizer
        self.max_length = max_length
        self.origin = origin
        self.tokenizer = fast_tokenizer(hub_tokenizer, max_length)
        several = int(getattr(model.config, "type_vocab_size", 0) or 0) > 1
        self.reads_types = several and "token_type_ids" in hub_tokenizer.model_input_names
        """True if the model distinguishes the first and the second text by token types."""

    @classmethod
    def load(cls, source: str | Path, *, max_length: int | None = None) -> Self:
        """Load a cross-encoder from a hub id, a folder or a bundle.

        The default of `max_length` is the tokenizer's maximum length, but at most 512. The length never exceeds the
        number of position embeddings.

        Raises:
            SourceError: the folder has no readable cross-encoder, the model has several outputs, the tokenizer does not
                fit the model, or a weight is missing or not finite.
        """
        from transformers import AutoModelForSequenceClassification  # Imported late, because the import takes seconds.

        folder = resolve(str(source))
        with reading(folder):
            check_fetched(folder)
            model, missing, _ = pretrained.weights(
                AutoModelForSequenceClassification, folder, attn_implementation="eager"
            )
            if missing:
                raise SourceError(f"{folder}: the weights lack {len(missing)} tensors, e.g. {min(missing)}")
            if model.config.num_labels != 1:
                raise SourceError(f"{folder}: has {model.config.num_labels} outputs, but a cross-encoder has one")
            pretrained.check_finite(folder, model.named_parameters())
            hub_tokenizer = pretrained.tokenizer(folder)
            longest = min(hub_tokenizer.model_max_length, DEFAULT_MAX_LENGTH) if max_length is None else max_length
            made = cls(
                model,
                hub_tokenizer,
                max_length=min(longest, positions(model.base_model)),
                origin=origins.read(str(source), folder),
            )
            made.tokenizer.encode([UNKNOWN_WORDS])
            made.tokenizer.check_rows(len(model.get_input_embeddings().get_parameter("weight")))
        return made

    def forward(self, input_ids: Tensor, attention_mask: Tensor, *token_type_ids: Tensor) -> Tensor:
        """Return the scores (N,) of N pairs. `token_type_ids` must be given if the model reads them."""
        types = {"token_type_ids": token_type_ids[0]} if token_type_ids else {}
        scores: Tensor = self.model(input_ids=input_ids, attention_mask=attention_mask, **types).logits[:, 0]
        return scores

    def tensors(self, batch: Sequence[Tokens]) -> tuple[Tensor, ...]:
        """Return the inputs of `forward` for a batch of N tokenised pairs. Each input has the shape (N, L)."""
        ids, mask = self.tokenizer.pad(batch)
        arrays = [ids, mask, padded_types(batch, ids.shape)] if self.reads_types else [ids, mask]
        return tuple(map(torch.from_numpy, arrays))

    def scores(self, pairs: Sequence[TextPair]) -> NDArray[np.float32]:
        """Return the logits (N,) of pairs of texts."""
        with torch.inference_mode(), dropout_off(self):
            found: NDArray[np.float32] = self(*self.tensors(self.tokenizer.encode_pairs(pairs))).float().numpy()
            return found

    def save(self, folder: Path) -> None:
        self.model.save_pretrained(folder, max_shard_size="100GB")
        save_tokenizer(self.hub_tokenizer, folder)
