"""Tests of the ingredients of a soup: compatibility of encoders, and the average of their weights."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from models.bundle.bundle import BundleError
from models.encoder.transform import TRANSFORMS
from tests.training.shaken import shaken
from training.config import RunConfig
from training.encoding.lora import load_for_training
from training.machine.devices import Devices
from training.step import load_frozen
from training.studies.soup import Ingredient, Shares, SoupError, SoupRecipe, averaged

weights = st.lists(st.floats(0, 10, width=32), min_size=3, max_size=3).filter(lambda them: sum(them) > 0)


def test_a_bundle_whose_files_were_altered_is_no_encoder_to_begin_with(
    tiny_bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, make_config: Callable[..., RunConfig]
) -> None:
    altered = Path(shutil.copytree(tiny_bundle, tmp_path / "altered"))
    whole = bytearray((altered / "model.safetensors").read_bytes())
    whole[-1] ^= 1
    (altered / "model.safetensors").write_bytes(whole)
    monkeypatch.setenv("HOME", str(tmp_path))
    with pytest.raises(BundleError, match=r"model\.safetensors: changed \(its SHA-256 differs"):
        Ingredient.load("~/altered")
    with pytest.raises(BundleError, match=r"model\.safetensors: changed \(its SHA-256 differs"):
        load_for_training(make_config(backbone=str(altered)), torch.device("cpu"))
    with pytest.raises(BundleError, match=r"model\.safetensors: changed \(its SHA-256 differs"):
        load_frozen(str(altered), Devices("cpu"))


@given(weights=weights, order=st.permutations(range(3)))
@settings(max_examples=20)
def test_the_average_is_that_of_a_plain_loop_in_any_order(
    weights: list[float], order: list[int], ingredients: list[Ingredient]
) -> None:
    shares = SoupRecipe(weights=tuple(weights)).shares(3)
    assert sum(shares) == pytest.approx(1)
    states = [each.encoder.state_dict() for each in ingredients]
    got = averaged(ingredients, shares)
    assert got.keys() == states[0].keys()
    for name, tensor in got.items():
        expected = np.zeros(tuple(tensor.shape))
        for share, state in zip(shares, states, strict=True):
            expected += share * state[name].numpy().astype(np.float64)
        np.testing.assert_array_max_ulp(tensor.numpy(), expected.astype(np.float32), maxulp=1)
    again = averaged([ingredients[i] for i in order], tuple(shares[i] for i in order))
    assert all(torch.equal(again[name], tensor) for name, tensor in got.items())


@pytest.mark.parametrize("shares", [(1.0,), (1 / 3,) * 3, (0.1, 0.2, 0.7)])
def test_equal_encoders_stay_what_they_are_bit_for_bit(shares: Shares, ingredients: list[Ingredient]) -> None:
    one = ingredients[0]
    before = one.encoder.state_dict()
    for name, tensor in averaged([one] * len(shares), shares).items():
        assert tensor.numpy().tobytes() == before[name].numpy().tobytes(), name


def test_an_encoder_without_a_share_is_not_looked_at(ingredients: list[Ingredient], tiny_backbone: Path) -> None:
    broken = shaken(tiny_backbone, 9)
    for each in broken.backbone.parameters():
        each.data.fill_(float("inf"))
    got = averaged([ingredients[0], Ingredient("broken", broken, None)], (1.0, 0.0))
    assert all(torch.equal(got[name], tensor) for name, tensor in ingredients[0].encoder.state_dict().items())


def counted(backbone: Path, seed: int, count: int) -> Ingredient:
    encoder = shaken(backbone, seed)
    encoder.backbone.register_buffer("counts", torch.tensor([count, 2**53 + 1]))
    return Ingredient(f"counted-{seed}", encoder, None)


def test_whole_numbers_are_not_averaged(tiny_backbone: Path) -> None:
    some = [counted(tiny_backbone, 0, 3), counted(tiny_backbone, 1, 3)]
    got = averaged(some, (0.5, 0.5))["backbone.counts"]
    assert got.dtype == torch.int64 and got.tolist() == [3, 2**53 + 1]
    with pytest.raises(SoupError, match=r"counted-2: weights.backbone.counts.0 is 4, but 3 in counted-0"):
        counted(tiny_backbone, 2, 4).check_compatible(some[0])


def test_likeness_is_the_cosine_of_all_matrices(ingredients: list[Ingredient]) -> None:
    def flat(each: Ingredient) -> np.ndarray:
        return np.concatenate([m.double().numpy().ravel() for m in each.encoder.state_dict().values() if m.ndim > 1])

    one, other = map(flat, ingredients[:2])
    expected = one @ other / np.linalg.norm(one) / np.linalg.norm(other)
    assert expected < 0.99 and ingredients[0].cosine_to(ingredients[1]) == pytest.approx(expected, rel=1e-12)
    assert ingredients[0].cosine_to(ingredients[0]) == pytest.approx(1, rel=1e-12)


def test_a_transform_can_not_be_averaged(tiny_backbone: Path, ingredients: list[Ingredient]) -> None:
    encoder = shaken(tiny_backbone, 5)
    encoder.attach(TRANSFORMS["affine"](dim=32, out=32))
    with pytest.raises(SoupError, match=r"whitened: has a transform \(affine\), which can't be averaged"):
        Ingredient("whitened", encoder, None).check_compatible(ingredients[0])
