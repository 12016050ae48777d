"""States of torch's generators, so that dropout can be repeated."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor


@dataclass(frozen=True)
class RandomState:
    """The state of torch's own generators: the CPU's, and CUDA's for runs on it. Reading it does not wait."""

    cpu: Tensor
    cuda: Tensor | None = None

    @classmethod
    def of(cls, device: torch.device) -> Self:
        """Copy the current state for a computation on `device`."""
        return cls(torch.get_rng_state(), torch.cuda.get_rng_state(device) if device.type == "cuda" else None)

    def restore(self, device: torch.device) -> None:
        """Restore the state, so that the same numbers follow."""
        torch.set_rng_state(self.cpu)
        if self.cuda is not None:
            torch.cuda.set_rng_state(self.cuda, device)
