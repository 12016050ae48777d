"""Matryoshka representation learning: an objective that is also computed on prefixes of the vectors.

Source: Kusupati et al., NeurIPS 2022. Training on prefixes allows vectors to be truncated with a small loss of quality.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import cast

import torch
from torch import Tensor, nn

from training.objectives.base import Needs, Objective, Views

CITATION = """\
@inproceedings{kusupati2022matryoshka,
  title = {Matryoshka Representation Learning},
  author = {Kusupati, Aditya and Bhatt, Gantavya and Rege, Aniket and Wallingford, Matthew and Sinha, Aditya and
    Ramanujan, Vivek and Howard-Snyder, William and Chen, Kaifeng and Kakade, Sham and Jain, Prateek and
    Farhadi, Ali},
  booktitle = {Advances in Neural Information Processing Systems},
  year = {2022},
  url = {https://arxiv.org/abs/2205.13147}
}
"""


class Matryoshka(Objective):
    """Mean of an objective's loss over several widths, 1/K · sum_k L_k(z_1, …, z_(m_k)).

    z_1, …, z_(m_k) are the first m_k components of the vectors. The last of the K widths m_k is the width of the whole
    vector. Each width has an objective of its own, with its own head and statistics. The vectors of the teacher and of
    the initial weights are not truncated.
    """

    def __init__(self, build: Callable[[int], Objective], widths: Sequence[int], dim: int) -> None:
        """Build an objective for each of `widths` and for `dim`, the width of the whole vector.

        Raises:
            ValueError: a width does not fit the encoder or the objective; the message names it.
        """
        super().__init__()
        if not all(0 < width <= dim for width in widths):
            raise ValueError(f"matryoshka: widths must be from 1 to {dim}, the width of the vectors, not {[*widths]}")
        self.widths = sorted({*widths, dim})
        self.objectives = nn.ModuleList([_built(build, width) for width in self.widths])

    @property
    def needs(self) -> Needs:
        return self._whole.needs

    def forward(self, views: Views, rng: torch.Generator) -> dict[str, Tensor]:
        """Compute the loss terms of each width's objective, each term divided by the number of widths.

        If the vectors are truncated to a width, the names of its terms end with this width, for example `@128`.
        """
        terms = {}
        for width, objective in zip(self.widths, self.objectives, strict=True):
            suffix = "" if width == self.widths[-1] else f"@{width}"
            for name, term in objective(_prefixes(views, width), rng).items():
                terms[f"{name}{suffix}"] = term / len(self.widths)
        return terms

    def report(self) -> dict[str, float]:
        return self._whole.report()

    def measured(self) -> dict[str, Tensor]:
        return self._whole.measured()

    @property
    def _whole(self) -> Objective:
        """The objective on untruncated vectors. It needs the same encoder passes as those on truncated vectors."""
        return cast(Objective, self.objectives[-1])


def _built(build: Callable[[int], Objective], width: int) -> Objective:
    try:
        return build(width)
    except ValueError as error:
        raise ValueError(f"{error} (at the width {width})") from error


def _prefixes(views: Views, width: int) -> Views:
    clean = None if views.clean is None else views.clean[..., :width]
    return replace(views, noisy=views.noisy[..., :width], clean=clean)
