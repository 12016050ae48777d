"""Tests of objectives on prefixes of the vectors."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest
import torch

from models.bundle import bundle
from models.encoder.encoder import Encoder
from tests.training.test_objectives import DIM, every_variant, published, views_for, width
from training import cli
from training.data.corpus import open_corpus
from training.objectives import OBJECTIVES
from training.objectives.base import Views
from training.objectives.matryoshka import Matryoshka
from training.postprocess import POSTPROCESSES


def built(name: str, params: Any, widths: tuple[int, ...]) -> Matryoshka:
    torch.manual_seed(0)
    return Matryoshka(lambda dim: OBJECTIVES[name].build(params, dim), widths, width(params))


def loss(objective: Any, views: Views) -> torch.Tensor:
    return torch.stack(list(objective(views, torch.Generator().manual_seed(1)).values())).sum()


def cut(views: Views, narrow: int) -> Views:
    clean = None if views.clean is None else views.clean[..., :narrow]
    return Views(views.noisy[..., :narrow], clean, views.teacher, views.start)


@every_variant
def test_with_the_whole_width_alone_it_is_the_objective(name: str, params: Any) -> None:
    torch.manual_seed(0)
    plain: Any = OBJECTIVES[name].build(params, width(params))
    wrapped = built(name, params, (width(params),))
    assert wrapped.needs == plain.needs
    views, again = views_for(plain, 6), views_for(plain, 6)
    losses = [loss(plain, views), loss(wrapped, again)]
    for each in losses:
        each.backward()  # type: ignore[no-untyped-call]
    assert torch.equal(*losses)
    assert views.noisy.grad is not None and again.noisy.grad is not None
    assert torch.equal(views.noisy.grad, again.noisy.grad)


def test_a_prefix_learns_the_similarities_of_whole_targets() -> None:
    own, target = torch.randn(1, 5, 8), torch.randn(5, 8)
    wrapped = built("static", published("static"), (4,))
    terms = wrapped(Views(noisy=own, start=target), torch.Generator())
    similarities = [torch.nn.functional.normalize(x, dim=1) for x in (own[0, :, :4], target)]
    expected = (similarities[0] @ similarities[0].T - similarities[1] @ similarities[1].T).square().mean()
    assert terms["similarity@4"].item() == pytest.approx(4 * expected.item() / 2, rel=1e-5)


@pytest.mark.parametrize("name", ["simcse", "distillation", "static"])
def test_the_loss_is_the_mean_over_the_widths(name: str) -> None:
    """Check that vectors of frozen encoders stay whole, and that each width has an objective of its own."""
    params = published(name)
    wrapped = built(name, params, (4, 8))
    views = views_for(wrapped.objectives[-1], 6)
    torch.manual_seed(0)
    alone = [OBJECTIVES[name].build(params, narrow) for narrow in (4, 8, DIM)]
    expected = [
        loss(objective, cut(views, narrow)).item() for objective, narrow in zip(alone, (4, 8, DIM), strict=True)
    ]
    assert loss(wrapped, views).item() == pytest.approx(sum(expected) / 3, rel=1e-5)


@pytest.mark.parametrize("widths", [(0, 4), (4, DIM + 1), (-1,)])
def test_a_width_that_the_vectors_do_not_have_is_refused(widths: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match=f"widths must be from 1 to {DIM}"):
        built("simcse", published("simcse"), widths)


def test_a_width_that_the_objective_does_not_fit_is_named() -> None:
    params = published("whitenedcse")
    with pytest.raises(ValueError, match=r"\(at the width 5\)"):
        built("whitenedcse", params, (5,))


def test_the_bundle_of_a_run_says_its_widths(
    tiny_backbone: Path, corpus_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    command = ["train", "simcse", "--backbone", str(tiny_backbone), "--preset", "minilm", "--corpus", str(corpus_file)]
    command += ["--max-steps", "2", "--set", "batch_size=8", "--set", "eval_every=1", "--set", "matryoshka=8,16"]
    assert cli.main(command) == 0
    assert bundle.load(Path("artifacts/simcse")).matryoshka == [8, 16, 32]
    card = Path("artifacts/simcse/README.md").read_text()
    assert card.index("gao2021simcse") < card.index("kusupati2022matryoshka")
    steps = [json.loads(line) for line in Path("runs/simcse/metrics.jsonl").read_text().splitlines()]
    assert {"info_nce", "info_nce@8", "info_nce@16"} <= next(step.keys() for step in steps if step["kind"] == "train")


def test_a_transform_leaves_no_widths_of_the_old_coordinates(tiny_backbone: Path, corpus_file: Path) -> None:
    encoder = Encoder.load(tiny_backbone)
    encoder.backbone.config.update({"matryoshka_dimensions": [8, 16, 32], "is_matryoshka": True})
    whitening = POSTPROCESSES["whitening"]
    whitening.apply(encoder, open_corpus([str(corpus_file)]), whitening.params, seed=0, stream=io.StringIO())
    assert not encoder.backbone.config.to_dict().keys() & {"matryoshka_dimensions", "is_matryoshka"}
