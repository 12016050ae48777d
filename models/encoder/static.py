"""A backbone without layers: a table with one vector per token.

The vector of a text is the mean of its tokens' vectors. transformers saves and loads this backbone like any other.
sentence-transformers reads the same weights as a `StaticEmbedding`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AutoConfig, AutoModel, PretrainedConfig, PreTrainedModel
from transformers.modeling_outputs import BaseModelOutput

from models.names import STATIC


class StaticConfig(PretrainedConfig):  # type: ignore[no-untyped-call]
    """Configuration of a `StaticModel`."""

    model_type = STATIC

    def __init__(self, vocab_size: int = 0, hidden_size: int = 0, special_ids: Sequence[int] = (), **more: Any) -> None:
        self.vocab_size = vocab_size
        self.hidden_size = hidden_size
        self.special_ids = [*special_ids]
        """Ids of the special tokens that the tokenizer adds to every text. Training does not change their vectors."""
        self.num_hidden_layers = 0
        super().__init__(**more)


class StaticModel(PreTrainedModel):  # type: ignore[no-untyped-call]
    """A table of token vectors with the interface of a transformers model."""

    config_class = StaticConfig
    base_model_prefix = "static"

    def __init__(self, config: StaticConfig) -> None:
        super().__init__(config)
        self.embedding = nn.Embedding(config.vocab_size, config.hidden_size)
        self.post_init()  # type: ignore[no-untyped-call]

    def get_input_embeddings(self) -> nn.Embedding:
        return self.embedding

    def forward(self, input_ids: Tensor, **_inputs: Any) -> BaseModelOutput:
        """Return the vectors of tokens (N, L) as the last hidden state (N, L, D).

        A token's vector does not depend on other tokens.
        """
        vectors = self.embedding(input_ids)
        if self.training:
            special = torch.isin(input_ids, torch.tensor(self.config.special_ids, device=input_ids.device))
            vectors = torch.where(special.unsqueeze(-1), vectors.detach(), vectors)
        return BaseModelOutput(last_hidden_state=vectors)


AutoConfig.register(STATIC, StaticConfig)
AutoModel.register(StaticConfig, StaticModel)
