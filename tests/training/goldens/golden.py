"""A file of inputs, draws and outputs of published code, read in one precision."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor


class Golden:
    """Arrays of a `.npz` as tensors, floating ones in `dtype`, beside the facts of its `.json`.

    Gradients are the keys with `grad` in them. A key with `_f32` at its end is the same in float32, as published code
    computes it.
    """

    def __init__(self, file: Path, dtype: torch.dtype) -> None:
        with np.load(file) as archive:
            self._arrays = {key: archive[key] for key in archive.files}
        self.facts: dict[str, Any] = json.loads(file.with_suffix(".json").read_text(encoding="utf-8"))
        self.dtype = dtype
        self.compared: list[str] = []
        self._read: set[str] = set()

    @property
    def ignored(self) -> set[str]:
        """Keys that were neither read as an input nor compared."""
        float32 = {f"{key}_f32" for key in self.compared}
        return self._arrays.keys() - self._read - float32 - {*self.compared}

    def __contains__(self, key: str) -> bool:
        return key in self._arrays

    def __getitem__(self, key: str) -> Tensor:
        self._read.add(key)
        tensor = torch.from_numpy(self._arrays[key])
        return tensor.to(self.dtype) if tensor.is_floating_point() else tensor

    def keys(self, prefix: str = "") -> list[str]:
        """The keys that begin so."""
        return [key for key in self._arrays if key.startswith(prefix)]

    def leaf(self, key: str) -> Tensor:
        """An input that gradients are asked for."""
        return self[key].clone().requires_grad_()

    def close(self, actual: Tensor | float | None, *keys: str) -> None:
        """Fails unless `actual` is what stands under each of the keys; one that the file lacks is passed over."""
        for key in keys:
            if key not in self:
                continue
            assert actual is not None, f"nothing to compare with {key}"
            self.compared.append(key)
            self._close(actual, key)
            if self.dtype == torch.float32 and f"{key}_f32" in self:
                self._close(actual, f"{key}_f32")

    def _close(self, actual: Tensor | float, key: str) -> None:
        values = np.asarray(actual.detach() if isinstance(actual, Tensor) else actual, dtype=np.float64)
        expected = self._arrays[key]
        narrow = self.dtype == torch.float32
        relative = (1e-3 if "grad" in key else 1e-4) if narrow else 1e-10
        # To the largest entry: an entry near 0 is a difference of larger ones, and can't be better than they are.
        tolerance = relative * np.abs(expected).max(initial=0) + (1e-7 if narrow else 1e-14)
        np.testing.assert_allclose(values, expected, rtol=0, atol=tolerance, err_msg=key)


class Check(Protocol):
    """Computes what a golden holds, through the functions that a run uses, and compares."""

    def __call__(self, golden: Golden, dtype: torch.dtype) -> None: ...


def gradients(loss: Tensor, *leaves: Tensor) -> tuple[Tensor, ...]:
    """Of a loss at some of its inputs; the graph stays for another call."""
    return torch.autograd.grad(loss, leaves, retain_graph=True)
