from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.profiler import ProfilerActivity, profile
from transformers import AutoTokenizer

from models.bundle.sources import SourceError
from models.encoder.encoder import Encoder, dropout_off
from models.encoder.pooling import POOLINGS

ONEDNN = "mkldnn::_linear_pointwise"
"""Operator of torch for a linear layer in oneDNN."""
TEXTS = ["The man plays the guitar.", "a", "", "The river runs to the sea and the sun is hot in the morning."]


@pytest.fixture(scope="module")
def encoder(tiny_backbone: Path) -> Encoder:
    return Encoder.load(tiny_backbone, pooling="mean")


def test_a_text_has_one_vector_alone_or_in_any_batch(encoder: Encoder) -> None:
    together = encoder.encode(TEXTS)
    alone = np.concatenate([encoder.encode([text]) for text in TEXTS])
    by_twos = encoder.encode(TEXTS, batch_size=2)
    np.testing.assert_allclose(together, alone, atol=1e-5)
    np.testing.assert_allclose(together, by_twos, atol=1e-5)


def test_linear_layers_of_onednn_give_the_same_vectors(encoder: Encoder, monkeypatch: pytest.MonkeyPatch) -> None:
    if not torch.backends.mkldnn.is_available():  # type: ignore[no-untyped-call]
        pytest.skip("this build of torch has no oneDNN")
    texts = [" ".join(["ferry"] * words) for words in range(1, 40)]
    monkeypatch.setattr("models.encoder.encoder._is_amd", lambda: False)
    of_mkl = encoder.encode(texts, batch_size=8)
    monkeypatch.setattr("models.encoder.encoder._is_amd", lambda: True)
    with profile(activities=[ProfilerActivity.CPU]) as profiled:
        np.testing.assert_allclose(encoder.encode(texts, batch_size=8), of_mkl, rtol=0, atol=1e-5)
    assert ONEDNN in {event.key for event in profiled.key_averages()}
    with torch.autocast("cpu", torch.bfloat16), profile(activities=[ProfilerActivity.CPU]) as profiled:
        encoder.encode(texts, batch_size=8)
    assert ONEDNN not in {event.key for event in profiled.key_averages()}


def test_encode_leaves_the_mode_as_it_was_and_takes_no_gradient(encoder: Encoder) -> None:
    encoder.train()
    first, second = encoder.encode(TEXTS), encoder.encode(TEXTS)
    assert encoder.training
    np.testing.assert_array_equal(first, second)
    encoder.eval()
    encoder.encode(TEXTS)
    assert not encoder.training


def test_dropout_off_makes_two_passes_identical_and_dropout_on_does_not(encoder: Encoder) -> None:
    batch = encoder.tensors(encoder.tokenizer.encode(TEXTS))
    encoder.train()
    with dropout_off(encoder):
        assert torch.equal(encoder(*batch), encoder(*batch))
    assert not torch.equal(encoder(*batch), encoder(*batch))


def test_dropout_comes_back_after_an_error(encoder: Encoder) -> None:
    encoder.train()
    with pytest.raises(RuntimeError), dropout_off(encoder):
        raise RuntimeError
    assert encoder.training


@pytest.mark.parametrize("pooling", POOLINGS)
def test_padding_never_reaches_the_vector(tiny_backbone: Path, pooling: str) -> None:
    encoder = Encoder.load(tiny_backbone, pooling=pooling).eval()
    tokens = encoder.tokenizer.encode([TEXTS[0]])
    ids, mask = encoder.tensors(tokens)
    padded_ids = torch.nn.functional.pad(ids, (0, 7), value=5)
    padded_mask = torch.nn.functional.pad(mask, (0, 7))
    with torch.inference_mode():
        torch.testing.assert_close(encoder(padded_ids, padded_mask), encoder(ids, mask), atol=1e-5, rtol=1e-5)


def test_an_unknown_pooling_names_the_known_ones(tiny_backbone: Path) -> None:
    with pytest.raises(ValueError, match="cls, mean, first_last"):
        Encoder.load(tiny_backbone, pooling="average")


def test_length_is_bounded_by_what_the_positions_allow(
    tiny_backbone: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    assert Encoder.load(tiny_backbone).max_length == 64
    assert Encoder.load(tiny_backbone, max_length=32).max_length == 32
    assert not [record for record in caplog.records if record.name == "models.encoder.encoder"]
    assert Encoder.load(tiny_backbone, max_length=1000).max_length == 64
    assert f"{tiny_backbone} has a maximum length of 64 tokens, not 1000" in caplog.messages
    shutil.copytree(tiny_backbone, tmp_path, dirs_exist_ok=True)
    said = json.loads((tmp_path / "tokenizer_config.json").read_text())
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(said | {"model_max_length": 20}))
    assert Encoder.load(tmp_path).max_length == 20
    assert Encoder.load(tmp_path, max_length=50).max_length == 50, "who asks for more gets it"


def test_a_tokenizer_with_more_tokens_than_embeddings_is_refused(tiny_backbone: Path, tmp_path: Path) -> None:
    shutil.copytree(tiny_backbone, tmp_path, dirs_exist_ok=True)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path)
    rows = len(tokenizer)
    tokenizer.add_tokens(["xyzzy", "plugh"])
    tokenizer.save_pretrained(tmp_path)
    with pytest.raises(SourceError, match=f"^{tmp_path}: the tokenizer has {rows + 2} tokens, .* has {rows} rows"):
        Encoder.load(tmp_path)


def test_no_length_is_no_default_one(tiny_backbone: Path) -> None:
    with pytest.raises(ValueError, match="max_length 0 leaves no room"):
        Encoder.load(tiny_backbone, max_length=0)
