"""Where torch's generators stand, so that dropout can be drawn again as it was."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor


@dataclass(frozen=True)
class RandomState:
    """The state of torch's own generators: the CPU's, and CUDA's where the run is on it. Neither is waited for."""

    cpu: Tensor
    cuda: Tensor | None = None

    @classmethod
    def of(cls, device: torch.device) -> Self:
        """As it is now, for a computation on `device`."""
        return cls(torch.get_rng_state(), torch.cuda.get_rng_state(device) if device.type == "cuda" else None)

    def restore(self, device: torch.device) -> None:
        """What is drawn next is what was drawn after the state was taken."""
        torch.set_rng_state(self.cpu)
        if self.cuda is not None:
            torch.cuda.set_rng_state(self.cuda, device)
