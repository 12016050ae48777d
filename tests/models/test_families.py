"""Tests of the model families that the papers use, and of two newer ones, each tiny and with random weights."""

from __future__ import annotations

import string
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from tokenizers import Regex, Tokenizer, models, pre_tokenizers, processors
from torch import Tensor
from transformers import PreTrainedTokenizerFast

from models.bundle.sources import SourceError
from models.encoder.encoder import DEFAULT_MAX_LENGTH, Encoder, dropout_off, positions
from models.encoder.pooling import POOLINGS
from models.encoder.pretrained import encoder_class
from models.export.export import PARITY, check_parity, write_onnx
from models.runtimes import openvino
from models.runtimes.base import RuntimeUnavailable
from models.runtimes.unpadding import gather_indices, simplify, unpadded
from tests.conftest import soon

TEXTS = ["The man plays the guitar.", "a", "", "The river runs to the sea and the sun is hot in the morning."]

BERT_PIECES = {"pad": "[PAD]", "unk": "[UNK]", "cls": "[CLS]", "sep": "[SEP]", "mask": "[MASK]"}
ROBERTA_PIECES = {"cls": "<s>", "pad": "<pad>", "sep": "</s>", "unk": "<unk>", "mask": "<mask>"}
"""Special tokens in the order of their ids. RoBERTa's positions begin after the id of the padding, 1."""

SIZES = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 64,
    "initializer_range": 0.2,
}


@dataclass(frozen=True)
class Family:
    """A model family.

    `positions` is the configured number, of which RoBERTa and MPNet reserve two.
    """

    name: str
    pieces: dict[str, str] = field(default_factory=lambda: BERT_PIECES)
    positions: int = 40
    sizes: dict[str, Any] = field(default_factory=lambda: SIZES)
    dropout: tuple[str, ...] = ("hidden_dropout_prob", "attention_probs_dropout_prob")

    def write(self, folder: Path) -> None:
        """Write a tokenizer of single characters, and a model with random weights."""
        vocabulary = {piece: i for i, piece in enumerate([*self.pieces.values(), *string.printable])}
        cls, sep = self.pieces["cls"], self.pieces["sep"]
        tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token=self.pieces["unk"]))
        tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex("."), behavior="isolated")
        tokenizer.post_processor = processors.TemplateProcessing(
            single=f"{cls} $A {sep}", special_tokens=[(piece, vocabulary[piece]) for piece in (cls, sep)]
        )
        PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
            tokenizer_object=tokenizer, **{f"{name}_token": piece for name, piece in self.pieces.items()}
        ).save_pretrained(folder)
        torch.manual_seed(0)
        config = getattr(transformers, f"{self.name}Config")(
            vocab_size=len(vocabulary),
            max_position_embeddings=self.positions,
            **{f"{name}_token_id": vocabulary[self.pieces[name]] for name in ("pad", "cls", "sep")},
            **{"bos_token_id": None, "eos_token_id": None},
            **self.sizes,
            **dict.fromkeys(self.dropout, 0.1),
        )
        getattr(transformers, f"{self.name}Model")(config).save_pretrained(folder)


def test_a_model_without_a_limit_of_positions_reads_the_default_number() -> None:
    config = transformers.XLNetConfig(vocab_size=8, d_model=8, n_layer=1, n_head=2, d_inner=8)
    assert config.max_position_embeddings == -1
    assert positions(transformers.XLNetModel(config)) == DEFAULT_MAX_LENGTH


FAMILIES = [
    Family("Bert"),
    Family("Roberta", ROBERTA_PIECES, positions=42),
    Family("XLMRoberta", ROBERTA_PIECES, positions=42),
    Family("MPNet", ROBERTA_PIECES, positions=42),
    Family(
        "DistilBert",
        sizes={"dim": 32, "n_layers": 2, "n_heads": 2, "hidden_dim": 64, "initializer_range": 0.2},
        dropout=("dropout", "attention_dropout"),
    ),
    Family("Electra", sizes={**SIZES, "embedding_size": 16}),
    Family(
        "ModernBert",
        # The first and the last layer have windows of 8 tokens, so that the longest text spans several windows.
        sizes={**SIZES, "num_hidden_layers": 3, "local_attention": 8, "global_attn_every_n_layers": 2},
        dropout=("attention_dropout", "mlp_dropout", "embedding_dropout"),
    ),
]
T5 = Family(
    "T5",
    sizes={"d_model": 32, "d_kv": 16, "num_layers": 2, "num_heads": 2, "d_ff": 64},
    dropout=("dropout_rate",),
)
"""T5, whose decoder is left out."""
FAMILIES.append(T5)
A_FEW_POOLINGS = soon(POOLINGS, "mean", "first_last_1")
"""A pooling that reads one layer, and a pooling that reads two."""


@pytest.fixture(scope="module", params=soon(FAMILIES, "Bert", "ModernBert", called=lambda family: family.name))
def backbone(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("family")
    request.param.write(folder)
    return folder


def test_of_an_encoder_with_a_decoder_only_that_of_t5_is_read(tmp_path: Path) -> None:
    """Refuse decoders, except T5's, even if the model was saved without its decoder."""
    T5.write(tmp_path / "published")
    encoder = Encoder.load(tmp_path / "published", pooling="mean").eval()
    assert not any("decoder" in name for name, _ in encoder.named_parameters())
    encoder.save(tmp_path / "saved")
    again = Encoder.load(tmp_path / "saved", pooling="mean").eval()
    np.testing.assert_array_equal(again.encode(TEXTS), encoder.encode(TEXTS))
    transformers.BartConfig().save_pretrained(tmp_path)
    with pytest.raises(
        SourceError, match="bart has a decoder; only encoders, and the encoders of T5 models, are supported"
    ):
        encoder_class(tmp_path)


def tensors(encoder: Encoder) -> tuple[Tensor, Tensor]:
    return encoder.tensors(encoder.tokenizer.encode(TEXTS))


def test_a_text_may_be_as_long_as_the_positions_allow(backbone: Path) -> None:
    encoder = Encoder.load(backbone)
    assert encoder.max_length == 40
    long = encoder.tokenizer.encode(["a" * 100])
    assert len(long[0]) == 40
    assert np.isfinite(encoder.encode(["a" * 100])).all()


def test_every_pooling_is_finite_and_padding_never_reaches_it(backbone: Path) -> None:
    for pooling in POOLINGS:
        encoder = Encoder.load(backbone, pooling=pooling).eval()
        together = encoder.encode(TEXTS)
        assert together.shape == (len(TEXTS), 32)
        assert np.isfinite(together).all()
        np.testing.assert_allclose(together, np.concatenate([encoder.encode([text]) for text in TEXTS]), atol=1e-5)


def test_the_last_hidden_state_is_the_last_of_all(backbone: Path) -> None:
    """On which the poolings over two layers rely."""
    encoder = Encoder.load(backbone).eval()
    ids, mask = tensors(encoder)
    output = encoder.backbone(input_ids=ids, attention_mask=mask, output_hidden_states=True)
    assert torch.equal(output.last_hidden_state, output.hidden_states[-1])
    assert len(output.hidden_states) == encoder.backbone.config.num_hidden_layers + 1


def test_dropout_tells_two_passes_apart_until_it_is_off(backbone: Path) -> None:
    encoder = Encoder.load(backbone, pooling="mean").train()
    batch = tensors(encoder)
    assert not torch.equal(encoder(*batch), encoder(*batch))
    with dropout_off(encoder):
        assert torch.equal(encoder(*batch), encoder(*batch))


def test_the_graph_computes_what_torch_computes(backbone: Path, tmp_path: Path) -> None:
    encoder = Encoder.load(backbone, pooling="mean")
    write_onnx(encoder, tmp_path / "model.onnx")
    assert check_parity(encoder, tmp_path / "model.onnx") <= PARITY


@pytest.mark.slow
@pytest.mark.parametrize("pooling", A_FEW_POOLINGS)
def test_openvino_computes_the_same_without_padding(backbone: Path, tmp_path: Path, pooling: str) -> None:
    encoder = Encoder.load(backbone, pooling=pooling)
    write_onnx(encoder, tmp_path / "model.onnx")
    graph = core().read_model(tmp_path / "model.onnx")
    ids, mask = (one.numpy() for one in tensors(encoder))
    feed = {"input_ids": ids, "attention_mask": mask}
    before = run(graph, feed)
    simplify(graph)
    rewritten = unpadded(graph)
    assert (rewritten is None) == (encoder.backbone.config.model_type == "modernbert"), (
        "its attention is of another form"
    )
    for one, inputs in [(graph, feed), (rewritten, feed | gather_indices(mask))]:
        for name, value in run(one, inputs).items() if one else ():
            there = mask > 0 if value.ndim == 3 else slice(None)
            np.testing.assert_allclose(value[there], before[name][there], atol=1e-5)


def core() -> Any:
    """Return the process's core of OpenVINO, because two cores at a time can end the process."""
    try:
        return openvino._core()
    except RuntimeUnavailable as refusal:
        pytest.skip(str(refusal))


def run(graph: Any, feed: dict[str, Any]) -> dict[str, np.ndarray[Any, Any]]:
    """Return the outputs of a graph of OpenVINO in float32 by name."""
    outputs = core().compile_model(graph, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})(feed)
    return {name: outputs[name].copy() for name in ("sentence_embedding", "norm", "token_embeddings")}


@pytest.mark.slow
@pytest.mark.parametrize("pooling", A_FEW_POOLINGS)
def test_every_pooling_of_a_family_without_absolute_positions_is_exported(tmp_path: Path, pooling: str) -> None:
    FAMILIES[-1].write(tmp_path)
    encoder = Encoder.load(tmp_path, pooling=pooling)
    write_onnx(encoder, tmp_path / "model.onnx")
    assert check_parity(encoder, tmp_path / "model.onnx") <= PARITY
