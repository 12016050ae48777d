"""Data-parallel training, with one process for each device, on one machine or on several.

`torchrun`, `accelerate` or Ray Train starts the processes. Every process has all weights and encodes its share of each
batch. The vectors are then gathered, and each process computes the loss of the whole batch. All processes draw noise
and permutations from the same seed. Negatives, noise and batch statistics are therefore the same as with a single
process, and no objective needs to know the number of devices.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import numpy as np
import torch
from accelerate import Accelerator  # type: ignore[import-untyped]
from accelerate.utils import DistributedDataParallelKwargs  # type: ignore[import-untyped]
from torch import Tensor, nn

from training.machine.hardware import HardwareError, pick_device


class Devices:
    """Collective operations of a run's processes. With a single process, they do nothing."""

    def __init__(self, name: str) -> None:
        """Select the device called `name` (see `pick_device`).

        With several processes, `auto` and `cuda` select a different CUDA device for each process on a machine. Without
        CUDA, `auto` selects the CPU for all processes.

        Raises:
            HardwareError: the device does not exist; several processes are to use a single numbered device, such as
                `cuda:0`; or the processes did not connect to each other.
        """
        self._group = _group(name) if int(os.environ.get("WORLD_SIZE", "1")) > 1 else None
        self.device = pick_device(name)
        if self._group and self.device.type != "cpu":
            self.device = self._group.device
        if self.device.index is not None and self.device.type == "cuda":
            torch.cuda.set_device(self.device)  # CUDA graphs are recorded on the current device.
        self.count = self._group.num_processes if self._group else 1
        self.rank = self._group.process_index if self._group else 0

    @property
    def first(self) -> bool:
        return self.rank == 0

    @property
    def single_cuda(self) -> bool:
        """True if a single process trains on CUDA. Only then can a step be recorded as a CUDA graph."""
        return self.device.type == "cuda" and self.count == 1

    def own_seed(self, seed: int) -> int:
        """Return the seed for random numbers that differ between processes, such as dropout.

        The first process gets `seed`. Every other process gets a hash of `seed` and of the process's rank. A hash is
        used because `seed` plus the rank could be the seed of another run.
        """
        return int(np.random.SeedSequence((seed, self.rank)).generate_state(1)[0]) if self.rank else seed

    def rows(self, sentences: int) -> range:
        """Return the rows of a batch that this process encodes.

        The numbers of rows differ by at most one between processes.
        """
        return range(self.rank * sentences // self.count, (self.rank + 1) * sentences // self.count)

    def parallel(self, module: nn.Module) -> nn.Module:
        """Move `module` to the device, and average its gradients over the processes after each backward pass."""
        module.to(self.device)
        return self._group.prepare_model(module) if self._group else module

    def gather(self, pooled: Tensor, sentences: int) -> Tensor:
        """Return the vectors (..., N, D) of a whole batch of N = `sentences`, in batch order.

        `pooled` (..., n, D) has the vectors of this process's rows. With several processes, the result has no gradient.
        """
        if self._group is None:
            return pooled
        most = -(-sentences // self.count)
        padded = pooled.new_zeros((most, *pooled.shape[:-2], pooled.shape[-1]))
        padded[: pooled.shape[-2]] = pooled.movedim(-2, 0)
        shares = self._group.gather(padded).split(most)
        sizes = [(r + 1) * sentences // self.count - r * sentences // self.count for r in range(self.count)]
        return torch.cat([share[:size] for share, size in zip(shares, sizes, strict=True)]).movedim(0, -2)

    def from_all(self, value: float) -> list[float]:
        """Return every process's value, ordered by rank."""
        if self._group is None:
            return [value]
        numbers: list[float] = self._group.gather(
            torch.tensor([value], dtype=torch.float64, device=self.device)
        ).tolist()
        return numbers

    def every_random_state(self, state: RandomState) -> list[RandomState]:
        """Return every process's random state, ordered by rank."""
        if self._group is None:
            return [state]
        cpu, cuda = (
            None if x is None else self._group.gather(x.to(self.device)[None]).cpu() for x in (state.cpu, state.cuda)
        )
        assert cpu is not None
        return [RandomState(cpu[rank], None if cuda is None else cuda[rank]) for rank in range(self.count)]

    def average(self, gradients: Iterable[Tensor | None]) -> None:
        """Replace each gradient or other tensor by its mean over the processes. Values of None are skipped.

        This is used, for example, for the gradients of an objective's weights. All processes compute the same
        gradients, but with rounding errors that differ between devices. Without averaging, the processes would
        therefore get different weights.
        """
        if self._group is not None:
            for gradient in gradients:
                if gradient is not None:
                    gradient.copy_(self._group.reduce(gradient, "mean"))

    def no_sync(self, module: nn.Module) -> AbstractContextManager[None]:
        """Return a context in which backward passes do not average gradients over the processes.

        `module` is a module that `parallel` returned. The next backward pass after the context averages its gradients.
        """
        return self._group.no_sync(module) if self._group else nullcontext()

    def wait(self) -> None:
        if self._group is not None:
            self._group.wait_for_everyone()

    def wait_for(self, file: Path) -> None:
        """Wait until every process reaches this point, and check that all processes see `file`.

        The first process must have written the file before this call.

        Raises:
            HardwareError: a process does not see the file, because its machine does not share the folder.
        """
        self.wait()
        if not all(self.from_all(file.exists())):
            raise HardwareError(
                f"{file.parent}: some machines do not see this folder: use a folder that all machines share"
            )


def _group(name: str) -> Accelerator:
    device = pick_device(name)
    if device.index is not None:
        raise HardwareError(f"device {name!r}: several processes need one device each: use auto, cuda or cpu")
    # Buffers are not broadcast, because they are constants (position ids). This package handles the precision itself.
    data_parallel = DistributedDataParallelKwargs(broadcast_buffers=False)
    group = Accelerator(cpu=device.type == "cpu", mixed_precision="no", kwargs_handlers=[data_parallel])
    if group.num_processes != int(os.environ["WORLD_SIZE"]):
        raise HardwareError(
            f"{os.environ['WORLD_SIZE']} processes were started, but they did not connect to each other"
        )
    return group


# States of torch's generators. Restoring them repeats dropout.


@dataclass(frozen=True)
class RandomState:
    """The states of torch's default generators: of the CPU's generator and, in runs on CUDA, of the device's generator.

    Copying a state does not wait for the device.
    """

    cpu: Tensor
    cuda: Tensor | None = None

    @classmethod
    def of(cls, device: torch.device) -> Self:
        return cls(torch.get_rng_state(), torch.cuda.get_rng_state(device) if device.type == "cuda" else None)

    def restore(self, device: torch.device) -> None:
        torch.set_rng_state(self.cpu)
        if self.cuda is not None:
            torch.cuda.set_rng_state(self.cuda, device)
