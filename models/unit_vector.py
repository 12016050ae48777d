"""What an encoder is once it is exported: a module that ends at the unit vector."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import Tensor, nn

from models.encoder import Encoder

if TYPE_CHECKING:
    from transformers import PretrainedConfig

SHORTEST = 1e-12
"""Length that a vector is divided by at least: zero stays zero."""


class UnitVector(nn.Module):
    """What is exported: token ids and mask (N, L) to unit vectors (N, D) and the norms (N,) they were divided by."""

    def __init__(self, encoder: Encoder) -> None:
        super().__init__()
        self.encoder = encoder

    @property
    def config(self) -> PretrainedConfig:
        """The backbone's: optimum asks the module that it exports for it."""
        return self.encoder.backbone.config

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> tuple[Tensor, Tensor]:
        """See the class."""
        pooled = self.encoder(input_ids, attention_mask)
        norm = pooled.norm(dim=-1)
        return pooled / norm.clamp_min(SHORTEST).unsqueeze(-1), norm
