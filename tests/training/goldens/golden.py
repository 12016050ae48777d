"""Golden files: inputs, random draws and outputs of published code, read in one precision."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor


class Golden:
    """Arrays of a `.npz` as tensors, floating ones in `dtype`, and the facts of its `.json`.

    Keys with `grad` are gradients. A key that ends with `_f32` is the same value in float32, as computed by published
    code.
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
        """Return the keys that were neither read as an input nor compared."""
        float32 = {f"{key}_f32" for key in self.compared}
        return self._arrays.keys() - self._read - float32 - {*self.compared}

    def __contains__(self, key: str) -> bool:
        return key in self._arrays

    def __getitem__(self, key: str) -> Tensor:
        self._read.add(key)
        tensor = torch.from_numpy(self._arrays[key])
        return tensor.to(self.dtype) if tensor.is_floating_point() else tensor

    def keys(self, prefix: str = "") -> list[str]:
        """Return the keys that begin with `prefix`."""
        return [key for key in self._arrays if key.startswith(prefix)]

    def leaf(self, key: str) -> Tensor:
        """Return an input that needs a gradient."""
        return self[key].clone().requires_grad_()

    def close(self, actual: Tensor | float | None, *keys: str) -> None:
        """Check that `actual` equals the value of each key. Keys that the file lacks are skipped."""
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
        # The tolerance is relative to the largest entry, because small entries are differences of large numbers.
        tolerance = relative * np.abs(expected).max(initial=0) + (1e-7 if narrow else 1e-14)
        np.testing.assert_allclose(values, expected, rtol=0, atol=tolerance, err_msg=key)


class Check(Protocol):
    """Function that computes the values of a golden file with the functions of a run, and compares them."""

    def __call__(self, golden: Golden, dtype: torch.dtype) -> None: ...


def gradients(loss: Tensor, *leaves: Tensor) -> tuple[Tensor, ...]:
    """Return the gradients of a loss with respect to inputs. The graph is kept for another call."""
    return torch.autograd.grad(loss, leaves, retain_graph=True)
