from __future__ import annotations

import io
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.nn.functional import normalize

from models.encoder.encoder import Encoder
from models.encoder.transform import Affine
from training.data.corpus import Corpus
from training.postprocess.base import PostprocessError
from training.postprocess.whitening import Moments, WhiteningParams, fit, whitening_matrix


def draw(count: int, dim: int, seed: int = 0) -> Tensor:
    """Return correlated vectors whose mean is far from zero."""
    rng = torch.Generator().manual_seed(seed)
    mix = torch.randn(dim, dim, generator=rng, dtype=torch.float64)
    return torch.randn(count, dim, generator=rng, dtype=torch.float64) @ mix + 100


def moments_of(*batches: Tensor) -> Moments:
    moments = Moments(batches[0].shape[1])
    for batch in batches:
        moments.add(batch)
    return moments


def fitted(encoder: Encoder, corpus: Corpus, dims: int | None = None) -> Affine:
    transform = fit(encoder, corpus, WhiteningParams(dims=dims), 0, io.StringIO()).transform
    assert isinstance(transform, Affine)
    return transform


@given(cuts=st.lists(st.integers(1, 59), unique=True, max_size=8), seed=st.integers(0, 99))
def test_moments_do_not_depend_on_how_the_stream_is_cut(cuts: list[int], seed: int) -> None:
    vectors = draw(60, 5, seed)
    moments = moments_of(*vectors.tensor_split(sorted(cuts)))
    np.testing.assert_allclose(moments.mean, vectors.mean(0), rtol=1e-12)
    np.testing.assert_allclose(moments.covariance(), np.cov(vectors.T), rtol=1e-9)


@given(dims=st.integers(1, 8), seed=st.integers(0, 99))
def test_whitened_vectors_have_mean_zero_and_covariance_identity(dims: int, seed: int) -> None:
    vectors = draw(50, 8, seed)
    moments = moments_of(vectors)
    whitened = Affine.of(moments.mean, whitening_matrix(moments.covariance(), dims))(vectors)
    np.testing.assert_allclose(whitened.mean(0), 0, atol=1e-9)
    np.testing.assert_allclose(np.cov(whitened.T).reshape(dims, dims), np.eye(dims), atol=1e-7)


@given(power=st.floats(0, 1), seed=st.integers(0, 99))
def test_a_part_of_the_way_leaves_a_part_of_the_variances(power: float, seed: int) -> None:
    vectors = draw(50, 8, seed)
    moments = moments_of(vectors)
    before = np.linalg.eigvalsh(np.cov(vectors.T))[::-1]
    after = np.cov((vectors @ whitening_matrix(moments.covariance(), power=power)).T)
    np.testing.assert_allclose(after, np.diag(before ** (1 - power)), rtol=1e-6, atol=1e-6 * before[0] ** (1 - power))


def test_a_power_of_nothing_changes_no_cosine_if_the_mean_stays(
    encoder: Encoder, corpus: Corpus, sentences: list[str]
) -> None:
    params = WhiteningParams(power=0, centred=False)
    before = torch.from_numpy(encoder.encode(sentences))
    after = fit(encoder, corpus, params, 0, io.StringIO()).transform(before)
    cosines = [(units @ units.T).numpy() for units in (normalize(before), normalize(after))]
    np.testing.assert_allclose(cosines[0], cosines[1], atol=1e-5)


def test_fewer_dimensions_are_the_first_of_all() -> None:
    covariance = moments_of(draw(50, 8)).covariance()
    assert torch.equal(whitening_matrix(covariance, 3), whitening_matrix(covariance)[:, :3])


def test_a_corpus_is_whitened_to_the_hyperplane_that_the_layer_norm_leaves(
    encoder: Encoder, corpus: Corpus, sentences: list[str]
) -> None:
    transform = fitted(encoder, corpus)
    assert (transform.dim, transform.out) == (32, 31)
    whitened = transform(torch.from_numpy(encoder.encode(sentences))).numpy()
    np.testing.assert_allclose(whitened.mean(axis=0), 0, atol=1e-3)
    np.testing.assert_allclose(np.cov(whitened.T), np.eye(31), atol=1e-2)


def test_the_leading_dimensions_are_kept(encoder: Encoder, corpus: Corpus) -> None:
    assert torch.equal(fitted(encoder, corpus, 8).matrix, fitted(encoder, corpus).matrix[:, :8])


def test_fewer_dimensions_need_fewer_sentences(encoder: Encoder, short_corpus: Corpus) -> None:
    assert fitted(encoder, short_corpus, 16).out == 16
    with pytest.raises(PostprocessError, match="too few to whiten 20 dimensions: at least 21 are needed"):
        fitted(encoder, short_corpus, 20)


@pytest.mark.parametrize(
    ("dims", "message"),
    [(33, "dims: 33 is above 32, the width"), (32, "only 31 of 32 directions vary .* dims=32 is too high")],
)
def test_directions_that_are_not_there_can_not_be_kept(
    encoder: Encoder, corpus: Corpus, dims: int, message: str
) -> None:
    with pytest.raises(PostprocessError, match=message):
        fitted(encoder, corpus, dims)


def test_vectors_that_are_all_the_same_can_not_be_whitened() -> None:
    with pytest.raises(PostprocessError, match="the same vector"):
        whitening_matrix(moments_of(torch.ones(10, 4)).covariance())


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"dims": 0}, "dims: 0 is not above 0"),
        ({"power": 1.1}, "power: 1.1 is not between 0 and 1"),
        ({"power": -0.1}, "power: -0.1 is not"),
        ({"power": float("nan")}, "power: nan is not"),
    ],
)
def test_what_is_out_of_range_is_named(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        WhiteningParams(**given)
